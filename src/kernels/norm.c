/* Normalisation of rows. */
#include "common.h"

enum { SIDE = 4 }; /* sums side by side, as one would wait for itself */

/* x + residual, or x. */
INLINE f32x4 input(const float *x, const float *residual, int j, int count) {
    f32x4 v = load_some(x + j, count);
    return residual ? v + load_some(residual + j, count) : v;
}

INLINE float sum_all(const f32x4 v[SIDE]) { return sum_lanes((v[0] + v[1]) + (v[2] + v[3])); }

typedef struct {
    f32x4 sum[SIDE], squares[SIDE];
} Moments;

/* y = x + residual - mean for four elements, and sum `n` of each moment. */
INLINE void centre(float *y, Moments *m, const float *x, const float *residual, float mean, int j, const int n) {
    f32x4 centred = input(x, residual, j, 4) - splat(mean);
    m->sum[n] += centred;
    m->squares[n] = fma(centred, centred, m->squares[n]);
    store(y + j, centred);
}

/* The first mean is rounded, which shows where it is large; the mean of what is left corrects it. */
INLINE void layer_norm_row(float *y, const float *x, const float *residual, const float *weight, const float *bias,
                           int dim, float eps) {
    f32x4 sum[SIDE] = {0};
    Moments m = {0};
    int whole = dim & ~3, j = 0;
    for (; j + 4 * SIDE <= dim; j += 4 * SIDE)
        UNROLL for (int n = 0; n < SIDE; n++) sum[n] += input(x, residual, j + 4 * n, 4);
    for (; j < dim; j += 4) sum[0] += input(x, residual, j, dim - j);
    float mean = sum_all(sum) / (float)dim;
    for (j = 0; j + 4 * SIDE <= dim; j += 4 * SIDE)
        UNROLL for (int n = 0; n < SIDE; n++) centre(y, &m, x, residual, mean, j + 4 * n, n);
    for (; j < whole; j += 4) centre(y, &m, x, residual, mean, j, 0);
    float correction = sum_all(m.sum), variance = sum_all(m.squares);
    for (; j < dim; j++) {
        float centred = x[j] + (residual ? residual[j] : 0) - mean;
        correction += centred;
        variance += centred * centred;
        y[j] = centred;
    }
    correction /= (float)dim;
    variance = variance / (float)dim - correction * correction;
    variance = variance < 0 ? 0 : variance;
    f32x4 scale = splat(1 / __builtin_sqrtf(variance + eps)), shift = splat(correction);
    for (j = 0; j < whole; j += 4)
        store(y + j, fma((load(y + j) - shift) * scale, load(weight + j), load(bias + j)));
    if (j < dim) {
        f32x4 scaled = (load_some(y + j, dim - j) - shift) * scale;
        store_some(y + j, fma(scaled, load_some(weight + j, dim - j), load_some(bias + j, dim - j)), dim - j);
    }
}

int op_layer_norm(const Instruction *i, int part, int parts) {
    int rows = INT(LAYER_NORM_ROWS), dim = INT(LAYER_NORM_DIM), end = split(rows, part + 1, parts);
    const float *x = INPUT(LAYER_NORM_X), *residual = INPUT(LAYER_NORM_RESIDUAL);
    const float *weight = INPUT(LAYER_NORM_WEIGHT), *bias = INPUT(LAYER_NORM_BIAS);
    for (int r = split(rows, part, parts); r < end; r++) {
        float *y = OUTPUT(LAYER_NORM_Y) + r * dim, eps = FLOAT(LAYER_NORM_EPS);
        if (residual) layer_norm_row(y, x + r * dim, residual + r * dim, weight, bias, dim, eps);
        else layer_norm_row(y, x + r * dim, 0, weight, bias, dim, eps);
    }
    return 0;
}

/* Each row over its Euclidean norm. */
int op_normalize(const Instruction *i, int part, int parts) {
    int rows = INT(NORMALIZE_ROWS), dim = INT(NORMALIZE_DIM), end = split(rows, part + 1, parts);
    float eps = FLOAT(NORMALIZE_EPS);
    for (int r = split(rows, part, parts); r < end; r++) {
        const float *x = INPUT(NORMALIZE_X) + r * dim;
        float *y = OUTPUT(NORMALIZE_Y) + r * dim;
        f32x4 squares = splat(0);
        for (int j = 0; j < dim; j += 4) {
            f32x4 v = load_some(x + j, dim - j);
            squares = fma(v, v, squares);
        }
        float norm = __builtin_sqrtf(sum_lanes(squares));
        f32x4 divisor = splat(norm > eps ? norm : eps);
        for (int j = 0; j < dim; j += 4) store_some(y + j, load_some(x + j, dim - j) / divisor, dim - j);
    }
    return 0;
}

/* Each row over its root mean square, times weight + offset. */
int op_rms_norm(const Instruction *i, int part, int parts) {
    int rows = INT(RMS_NORM_ROWS), dim = INT(RMS_NORM_DIM), end = split(rows, part + 1, parts);
    const float *weight = INPUT(RMS_NORM_WEIGHT);
    f32x4 offset = splat(FLOAT(RMS_NORM_OFFSET));
    for (int r = split(rows, part, parts); r < end; r++) {
        const float *x = INPUT(RMS_NORM_X) + r * dim;
        float *y = OUTPUT(RMS_NORM_Y) + r * dim;
        f32x4 a = splat(0), b = a;
        int j = 0;
        for (; j + 8 <= dim; j += 8) {
            f32x4 low = load(x + j), high = load(x + j + 4);
            a = fma(low, low, a);
            b = fma(high, high, b);
        }
        for (; j < dim; j += 4) {
            f32x4 v = load_some(x + j, dim - j);
            a = fma(v, v, a);
        }
        f32x4 scale = splat(1 / __builtin_sqrtf(sum_lanes(a + b) / (float)dim + FLOAT(RMS_NORM_EPS)));
        for (j = 0; j < dim; j += 4) {
            f32x4 v = load_some(x + j, dim - j) * scale;
            store_some(y + j, v * (load_some(weight + j, dim - j) + offset), dim - j);
        }
    }
    return 0;
}
