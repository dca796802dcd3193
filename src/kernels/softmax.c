/* Softmax of rows of attention scores. */
#include "math.h"
#include "scores.h"

static void softmax_row(float *y, int count, int log) {
    const Exp2 k = exp2_constants();
    f32x4 highest = splat(y[0]), log2e = splat(LOG2E);
    for (int j = 0; j < (count & ~3); j += 4) highest = vec_max(highest, load(y + j));
    for (int j = count & ~3; j < count; j++) highest = vec_max(highest, splat(y[j]));
    highest = splat(max_lanes(highest));

    f32x4 sums = splat(0);
    float sum = 0;
    for (int j = 0; j < count; j += 4) {
        int left = count - j;
        f32x4 shifted = load_some(y + j, left) - highest, e = vec_exp2(shifted * log2e, &k);
        if (left >= 4)
            sums += e;
        else
            for (int lane = 0; lane < left; lane++) sum += e[lane];
        store_some(y + j, log ? shifted : e, left);
    }
    sum += sum_lanes(sums);
    f32x4 factor = splat(1 / sum), log_sum = splat((float)log_double(sum));
    for (int j = 0; j < count; j += 4) {
        f32x4 v = load_some(y + j, count - j);
        store_some(y + j, log ? v - log_sum : v * factor, count - j);
    }
}

int op_softmax(const Instruction *i, int part, int parts) {
    int batch = INT(SOFTMAX_BATCH), heads = INT(SOFTMAX_HEADS), q_len = INT(SOFTMAX_Q_LEN);
    int kv_len = INT(SOFTMAX_KV_LEN), causal = INT(SOFTMAX_CAUSAL), stride = INT(SOFTMAX_BIAS_BATCH_STRIDE);
    int window = INT(SOFTMAX_WINDOW);
    const float *bias = INPUT(SOFTMAX_BIAS);
    const int32_t *mask = ADDRESS(const int32_t, SOFTMAX_MASK);
    int rows = batch * heads * q_len, end = split(rows, part + 1, parts);
    for (int r = split(rows, part, parts); r < end && kv_len; r++) {
        int item = r / (heads * q_len), query = r % q_len;
        const float *x = INPUT(SOFTMAX_X) + r * kv_len;
        float *y = OUTPUT(SOFTMAX_Y) + r * kv_len;
        for (int j = 0; j < kv_len; j += 4) store_some(y + j, load_some(x + j, kv_len - j), kv_len - j);
        const float *row_bias = bias ? bias + item * stride + r % (heads * q_len) * kv_len : 0;
        const int32_t *row_mask = mask ? mask + item * kv_len : 0;
        int last = causal ? query + kv_len - q_len : kv_len, first = window ? last - window + 1 : 0;
        if (row_bias || row_mask || causal) adjust_scores(y, row_bias, 1, row_mask, first, last, kv_len);
        softmax_row(y, kv_len, INT(SOFTMAX_LOG));
    }
    return 0;
}
