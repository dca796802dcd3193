/* Vector functions of float32. Errors are absolute unless said otherwise; none makes denormals on the way.

   Their constants sit in a struct that a caller makes once, before its loop: LLVM would rebuild them at every use. */
#pragma once

#include "common.h"

#define LOG2E 1.4426950408889634f

/* y = a * b + c for `n` vectors. */
#define FMA_STEP(y, a, b, c)                                                                                          \
    UNROLL for (int j = 0; j < n; j++) {                                                                              \
        y[j] = fma(a[j], b[j], c);                                                                                    \
        KEEP(y[j]);                                                                                                   \
    }

typedef struct {
    f32x4 low, high, magic, c1, c2, c3, c4, c5, one;
} Exp2;

/* 2^r on [-1/2, 1/2]: minimax polynomial with c0 = 1, relative error 9e-8. */
INLINE Exp2 exp2_constants(void) {
    Exp2 k = {
        splat(-80), splat(126), splat(12582912), /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
        splat(0.693147004f), splat(0.240222424f), splat(0.0555073358f), splat(0.00967151299f), splat(0.00132647273f),
        splat(1),
    };
    KEEP_ALL(k);
    return k;
}

/* 2^t in place for `n` vectors, t <= 126; relative error 2e-7; below 2^-80 it stays 2^-80. Vectors go side by side, so
   that each constant is fetched once for all of them. */
INLINE void vecs_exp2(f32x4 *t, const int n, const Exp2 *k) {
    f32x4 shifted[4], p[4];
    UNROLL for (int j = 0; j < n; j++) {
        t[j] = vec_max(t[j], k->low);
        shifted[j] = t[j] + k->magic;
        t[j] -= shifted[j] - k->magic;
    }
    UNROLL for (int j = 0; j < n; j++) p[j] = fma(k->c5, t[j], k->c4);
    FMA_STEP(p, p, t, k->c3);
    FMA_STEP(p, p, t, k->c2);
    FMA_STEP(p, p, t, k->c1);
    FMA_STEP(p, p, t, k->one);
    UNROLL for (int j = 0; j < n; j++) t[j] = (f32x4)((i32x4)p[j] + ((i32x4)shifted[j] << 23));
}

INLINE f32x4 vec_exp2(f32x4 t, const Exp2 *k) {
    vecs_exp2(&t, 1, k);
    return t;
}

/* 1 / (1 + 2^t) for any t. */
INLINE f32x4 logistic2(f32x4 t, const Exp2 *k) { return k->one / (k->one + vec_exp2(vec_min(t, k->high), k)); }

typedef struct {
    f32x4 high, c0, c1, c2, c3, c4, c5, c6, c7, c8;
} Gelu;

INLINE Gelu gelu_constants(void) {
    Gelu k = {
        splat(13), splat(-1), splat(-1.15111101f), splat(-0.459162146f), splat(-0.0526276119f), splat(0.00724542094f),
        splat(-2.72075587e-4f), splat(-1.31473265e-4f), splat(2.80569493e-5f), splat(-1.90206629e-6f),
    };
    KEEP_ALL(k);
    return k;
}

/* x Phi(x) in place for `n` vectors, with Phi the normal distribution function; error 1e-7. It is max(x, 0) - |x|
   Phi(-|x|), and log2 of Phi(-a) is close to a polynomial: minimax for the error of a Phi(-a). Beyond 13 it is 0 or x. */
INLINE void vecs_gelu(f32x4 *x, const int n, const Gelu *k, const Exp2 *e) {
    f32x4 a[4], p[4];
    UNROLL for (int j = 0; j < n; j++) a[j] = vec_min(vec_abs(x[j]), k->high);
    UNROLL for (int j = 0; j < n; j++) p[j] = fma(k->c8, a[j], k->c7);
    FMA_STEP(p, p, a, k->c6);
    FMA_STEP(p, p, a, k->c5);
    FMA_STEP(p, p, a, k->c4);
    FMA_STEP(p, p, a, k->c3);
    FMA_STEP(p, p, a, k->c2);
    FMA_STEP(p, p, a, k->c1);
    FMA_STEP(p, p, a, k->c0);
    vecs_exp2(p, n, e);
    UNROLL for (int j = 0; j < n; j++) x[j] = vec_max(x[j], splat(0)) - a[j] * p[j];
}

/* Natural logarithm of a positive normal number, error 1e-13. */
INLINE double log_double(double x) {
    const int64_t half_sqrt = 0x3fe6a09e667f3bcd;
    int64_t bits = __builtin_bit_cast(int64_t, x);
    int64_t exponent = (bits - half_sqrt) >> 52;
    double m = __builtin_bit_cast(double, bits - (exponent << 52)); /* in [sqrt(1/2), sqrt(2)) */
    double s = (m - 1) / (m + 1), u = s * s, sum = 0;
    for (int n = 19; n >= 1; n -= 2) sum = sum * u + 1.0 / n;
    return 0.6931471805599453 * (double)exponent + 2 * s * sum;
}

/* Cosine and sine of 2 pi u for u in [0, 1). */
INLINE void circle(double u, double *cosine, double *sine) {
    double turn = __builtin_rint(4 * u), x = (4 * u - turn) * 1.5707963267948966, xx = x * x;
    double s = x * (1 + xx * (-1.0 / 6 + xx * (1.0 / 120 + xx * (-1.0 / 5040 + xx / 362880))));
    double c = 1 + xx * (-1.0 / 2 + xx * (1.0 / 24 + xx * (-1.0 / 720 + xx / 40320)));
    int quadrant = (int)turn & 3;
    *cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
    *sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
}
