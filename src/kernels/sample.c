/* Choosing the next token from its scores. */
#include "math.h"
#include "topk.h"

enum { FEW = 256 };

static float highest_of(const float *x, int count) {
    f32x4 a = splat(x[0]), b = a;
    int j = 0;
    for (; j + 8 <= count; j += 8) {
        a = vec_max(a, load(x + j));
        b = vec_max(b, load(x + j + 4));
    }
    float highest = max_lanes(vec_max(a, b));
    for (; j < count; j++) highest = x[j] > highest ? x[j] : highest;
    return highest;
}

int op_argmax(const Instruction *i, int part, int parts) {
    int rows = INT(ARGMAX_ROWS), columns = INT(ARGMAX_COLUMNS), end = split(rows, part + 1, parts);
    for (int r = split(rows, part, parts); r < end; r++) {
        const float *x = INPUT(ARGMAX_X) + r * columns, highest = highest_of(x, columns);
        int best = 0;
        while (best < columns - 1 && x[best] != highest) best++;
        ADDRESS(int32_t, ARGMAX_Y)[r] = best;
    }
    return 0;
}

/* Weights of scores relative to the highest, and their sum; those below `least` are 0. */
static double weigh(float *weights, const float *x, int count, float highest, float scale, float least) {
    const Exp2 k = exp2_constants();
    double total = 0;
    for (int j = 0; j < count; j += 4) {
        f32x4 t = (load_some(x + j, count - j) - splat(highest)) * splat(scale);
        f32x4 w = select(t > -79, vec_exp2(t, &k), splat(0));
        w = select(w >= least, w, splat(0));
        store_some(weights + j, w, count - j);
        for (int lane = 0; lane < minimum(count - j, 4); lane++) total += w[lane];
    }
    return total;
}

/* The first item at which the sum of weights passes `goal`. */
static int draw(const float *weights, int count, double goal) {
    double sum = 0;
    int last = 0;
    for (int j = 0; j < count; j++) {
        if (weights[j] > 0) last = j;
        sum += weights[j];
        if (sum > goal) return j;
    }
    return last;
}

/* How many of the descending weights it takes to reach `goal`, or fewer, as those below min_p are out; their sum. */
static int nucleus(const float *weights, int count, double goal, float min_p, double *kept) {
    int n = 0;
    *kept = 0;
    while (n < count && (!n || *kept < goal) && weights[n] >= min_p) *kept += weights[n++];
    return n;
}

int op_sample(const Instruction *i, int part, int parts) {
    int rows = INT(SAMPLE_ROWS), columns = INT(SAMPLE_COLUMNS), k = INT(SAMPLE_K), end = split(rows, part + 1, parts);
    float temperature = FLOAT(SAMPLE_TEMPERATURE), top_p = FLOAT(SAMPLE_TOP_P), min_p = FLOAT(SAMPLE_MIN_P);
    if (k < 1 || k > columns || !(temperature > 0)) return 1;
    float scale = LOG2E / temperature;
    for (int r = split(rows, part, parts); r < end; r++) {
        const float *x = INPUT(SAMPLE_X) + r * columns, highest = highest_of(x, columns);
        float *weights = OUTPUT(SAMPLE_WEIGHTS) + r * k;
        int32_t *order = ADDRESS(int32_t, SAMPLE_ORDER) + r * k, *y = ADDRESS(int32_t, SAMPLE_Y) + r;
        double uniform = INPUT(SAMPLE_UNIFORM)[r], total = 0, kept;
        if (k == columns) total = weigh(weights, x, columns, highest, scale, top_p < 1 ? 0 : min_p);
        if (k == columns && top_p >= 1) {
            *y = draw(weights, columns, uniform * total);
            continue;
        }
        Heap heap = {weights, order};
        /* Sorting a whole vocabulary takes long, and few of the best usually have the probability that is wanted. */
        for (int some = k == columns ? minimum(k, FEW) : k;; some = minimum(16 * some, k)) {
            select_largest(&heap, x, columns, some);
            double sum = weigh(weights, weights, some, highest, scale, 0);
            int count = nucleus(weights, some, top_p * (k == columns ? total : sum), min_p, &kept);
            if (count == some && some < k) continue;
            *y = order[draw(weights, count, uniform * kept)];
            break;
        }
    }
    return 0;
}

/* Edits in their order, each of one score; a part has the scores of its range. */
int op_edit_scores(const Instruction *i, int part, int parts) {
    int count = INT(EDIT_SCORES_COUNT), size = INT(EDIT_SCORES_SIZE);
    int begin = split(size, part, parts), end = split(size, part + 1, parts);
    const int32_t *index = ADDRESS(const int32_t, EDIT_SCORES_INDEX);
    const float *factors = INPUT(EDIT_SCORES_FACTORS);
    float *y = OUTPUT(EDIT_SCORES_Y);
    for (int j = 0; j < count; j++, factors += 3) {
        if (index[j] < begin || index[j] >= end) continue;
        float x = y[index[j]], bias = factors[2];
        if (bias == -__builtin_inff()) y[index[j]] = bias;
        else if (__builtin_isfinite(x)) y[index[j]] = x * factors[x < 0 ? 0 : 1] + bias;
    }
    return 0;
}

int op_mask_scores(const Instruction *i, int part, int parts) {
    int rows = INT(MASK_SCORES_ROWS), columns = INT(MASK_SCORES_COLUMNS), words = ceil_div(columns, 32);
    int end = split(rows, part + 1, parts);
    for (int r = split(rows, part, parts); r < end; r++) {
        const uint32_t *bits = ADDRESS(const uint32_t, MASK_SCORES_BITS) + r * words;
        float *y = OUTPUT(MASK_SCORES_Y) + r * columns;
        for (int j = 0; j < columns; j += 32, bits++) {
            if (*bits == 0xFFFFFFFF) continue;
            for (int k = 0; k < minimum(columns - j, 32); k++)
                if (!(*bits >> k & 1)) y[j + k] = -__builtin_inff();
        }
    }
    return 0;
}
