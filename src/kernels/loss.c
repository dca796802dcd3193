/* Losses: means over all elements, added up in double. They are serial: part 0 does all. */
#include "math.h"

/* log(sum(exp(x))) */
static double log_sum_exp(const float *x, int count) {
    const Exp2 k = exp2_constants();
    float highest = x[0];
    for (int j = 1; j < count; j++) highest = x[j] > highest ? x[j] : highest;
    double sum = 0;
    for (int j = 0; j < count; j += 4) {
        f32x4 e = vec_exp2((load_some(x + j, count - j) - splat(highest)) * splat(LOG2E), &k);
        for (int lane = 0; lane < minimum(count - j, 4); lane++) sum += e[lane];
    }
    return highest + log_double(sum);
}

int op_cross_entropy(const Instruction *i, int part, int parts) {
    (void)parts;
    int rows = INT(CROSS_ENTROPY_ROWS), classes = INT(CROSS_ENTROPY_CLASSES), counted = 0;
    int32_t ignored = LITERAL(CROSS_ENTROPY_IGNORE_INDEX);
    const int32_t *labels = ADDRESS(const int32_t, CROSS_ENTROPY_LABELS);
    double sum = 0;
    if (part) return 0;
    for (int r = 0; r < rows; r++) {
        if (labels[r] == ignored) continue;
        if (labels[r] < 0 || labels[r] >= classes) return 1;
        const float *logits = INPUT(CROSS_ENTROPY_LOGITS) + r * classes;
        sum += log_sum_exp(logits, classes) - logits[labels[r]];
        counted++;
    }
    *OUTPUT(CROSS_ENTROPY_LOSS) = (float)(sum / counted); /* nothing counted: NaN */
    return 0;
}

int op_mse_loss(const Instruction *i, int part, int parts) {
    (void)parts;
    const float *x = INPUT(MSE_LOSS_X), *target = INPUT(MSE_LOSS_TARGET);
    int count = INT(MSE_LOSS_COUNT);
    double sum = 0;
    if (part) return 0;
    for (int j = 0; j < count; j++) sum += ((double)x[j] - target[j]) * ((double)x[j] - target[j]);
    *OUTPUT(MSE_LOSS_LOSS) = (float)(sum / count);
    return 0;
}

/* Of logits: max(x, 0) - x t + log(1 + e^-|x|). */
int op_bce_loss(const Instruction *i, int part, int parts) {
    (void)parts;
    const float *x = INPUT(BCE_LOSS_LOGITS), *target = INPUT(BCE_LOSS_TARGET);
    int count = INT(BCE_LOSS_COUNT);
    const Exp2 k = exp2_constants();
    double sum = 0;
    if (part) return 0;
    for (int j = 0; j < count; j++) {
        float e = vec_exp2(splat(-LOG2E * __builtin_fabsf(x[j])), &k)[0];
        sum += (x[j] > 0 ? x[j] : 0) - (double)x[j] * target[j] + log_double(1.0 + e);
    }
    *OUTPUT(BCE_LOSS_LOSS) = (float)(sum / count);
    return 0;
}
