/* Attention of few queries, which would not pay for packing: each key and value is read once for up to three of them.
   The head dimension is a multiple of 4. */
#include "attention.h"

enum { FEW = 3 };

INLINE void scores_of(const int rows, const int dtype, const Head *h, const Keys *keys, const float *q, float *scores) {
    const Float16 k = float16_constants();
    f32x4 scale = splat(h->scale);
    for (int j = 0; j < keys->count; j += 4) {
        const uint32_t *key[4];
        f32x4 acc[4 * FEW], scales = scale;
        UNROLL for (int n = 0; n < 4; n++) {
            key[n] = h->k + (keys->start + minimum(j + n, keys->count - 1)) * h->k_stride;
            if (dtype == CACHE_Q8) scales[n] *= head_scale(key[n]);
        }
        UNROLL for (int n = 0; n < 4 * rows; n++) acc[n] = splat(0);
        for (int d = 0; d < h->dim; d += 4) {
            f32x4 x[4];
            UNROLL for (int n = 0; n < 4; n++) x[n] = head_load(key[n], d, dtype, &k);
            UNROLL for (int r = 0; r < rows; r++) {
                f32x4 query = load(q + r * h->q_stride + d);
                UNROLL for (int n = 0; n < 4; n++) {
                    acc[4 * r + n] = fma(query, x[n], acc[4 * r + n]);
                    KEEP(acc[4 * r + n]);
                }
            }
        }
        UNROLL for (int r = 0; r < rows; r++) {
            f32x4 *a = acc + 4 * r;
            transpose4(a);
            store(scores + r * MAX_KEYS + j, ((a[0] + a[1]) + (a[2] + a[3])) * scales);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = keys->count; j < keys->padded; j++) scores[r * MAX_KEYS + j] = 0;
}

/* 4 * vectors elements from d on. */
INLINE void values_of(const int rows, const int vectors, const int dtype, const Head *h, const Keys *keys,
                      const float *weights, float *y, int d, int first) {
    const Float16 k = float16_constants();
    f32x4 acc[4 * FEW];
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vectors; v++)
            acc[r * vectors + v] = first ? splat(0) : load(y + r * h->y_stride + d + 4 * v);
    }
    const uint32_t *value = h->v + keys->start * h->v_stride;
    for (int j = 0; j < keys->count; j++, value += h->v_stride) {
        f32x4 x[4];
        UNROLL for (int v = 0; v < vectors; v++) x[v] = head_load(value, d + 4 * v, dtype, &k);
        UNROLL for (int r = 0; r < rows; r++) {
            f32x4 weight = splat(weights[r * MAX_KEYS + j]);
            UNROLL for (int v = 0; v < vectors; v++) {
                acc[r * vectors + v] = fma(weight, x[v], acc[r * vectors + v]);
                KEEP(acc[r * vectors + v]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vectors; v++) store(y + r * h->y_stride + d + 4 * v, acc[r * vectors + v]);
    }
}

INLINE void all_values_of(const int rows, const int dtype, const Head *h, const Keys *keys, float *weights, float *y,
                          int first) {
    int d = 0;
    if (dtype == CACHE_Q8)
        for (int j = 0; j < keys->count; j++) {
            float scale = head_scale(h->v + (keys->start + j) * h->v_stride);
            UNROLL for (int r = 0; r < rows; r++) weights[r * MAX_KEYS + j] *= scale;
        }
    for (; d + 16 <= h->dim; d += 16) values_of(rows, 4, dtype, h, keys, weights, y, d, first);
    for (; d < h->dim; d += 4) values_of(rows, 1, dtype, h, keys, weights, y, d, first);
}

#define DIRECT(rows, name, dtype)                                                                                     \
    static NOINLINE void scores_##name##_##rows(const Head *h, const Keys *keys, const float *q, float *scores) {     \
        scores_of(rows, dtype, h, keys, q, scores);                                                                   \
    }                                                                                                                 \
    static NOINLINE void values_##name##_##rows(const Head *h, const Keys *keys, float *weights, float *y, int first) { \
        all_values_of(rows, dtype, h, keys, weights, y, first);                                                       \
    }
#define DIRECT_ROWS(name, dtype) DIRECT(1, name, dtype) DIRECT(2, name, dtype) DIRECT(3, name, dtype)
DIRECT_ROWS(f32, CACHE_F32)
DIRECT_ROWS(f16, CACHE_F16)
DIRECT_ROWS(q8, CACHE_Q8)

typedef void Scores(const Head *h, const Keys *keys, const float *q, float *scores);
typedef void Values(const Head *h, const Keys *keys, float *weights, float *y, int first);

/* By cache dtype and the number of queries less one. */
static Scores *const SCORES[][FEW] = {
    [CACHE_F32] = {scores_f32_1, scores_f32_2, scores_f32_3},
    [CACHE_F16] = {scores_f16_1, scores_f16_2, scores_f16_3},
    [CACHE_Q8] = {scores_q8_1, scores_q8_2, scores_q8_3},
};
static Values *const VALUES[][FEW] = {
    [CACHE_F32] = {values_f32_1, values_f32_2, values_f32_3},
    [CACHE_F16] = {values_f16_1, values_f16_2, values_f16_3},
    [CACHE_Q8] = {values_q8_1, values_q8_2, values_q8_3},
};

void direct_scores(const Head *h, const Keys *keys, const float *q, float *scores, int queries) {
    for (int r = 0; r < queries; r += FEW)
        SCORES[h->dtype][minimum(queries - r, FEW) - 1](h, keys, q + r * h->q_stride, scores + r * MAX_KEYS);
}

void direct_values(const Head *h, const Keys *keys, float *weights, float *y, int queries, int first) {
    for (int r = 0; r < queries; r += FEW)
        VALUES[h->dtype][minimum(queries - r, FEW) - 1](h, keys, weights + r * MAX_KEYS, y + r * h->y_stride, first);
}
