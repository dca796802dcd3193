/* Vector functions of float32. Errors are absolute unless said otherwise; none makes denormals on the way.

   Their constants sit in a struct that a caller makes once, before its loop: LLVM would rebuild them at every use. */
#pragma once

#include "common.h"

#define LOG2E 1.4426950408889634f

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

/* 2^t for t <= 126, relative error 2e-7; below 2^-80 it stays 2^-80. */
INLINE f32x4 vec_exp2(f32x4 t, const Exp2 *k) {
    t = vec_max(t, k->low);
    f32x4 shifted = t + k->magic;
    f32x4 r = t - (shifted - k->magic);
    f32x4 p = fma(k->c5, r, k->c4);
    p = fma(p, r, k->c3);
    p = fma(p, r, k->c2);
    p = fma(p, r, k->c1);
    p = fma(p, r, k->one);
    return (f32x4)((i32x4)p + ((i32x4)shifted << 23));
}

/* 1 / (1 + 2^t) for any t. */
INLINE f32x4 logistic2(f32x4 t, const Exp2 *k) { return k->one / (k->one + vec_exp2(vec_min(t, k->high), k)); }

typedef struct {
    f32x4 limit, p0, p1, p2, p3, p4, p5, q1, q2, q3, q4, q5;
} Erf;

INLINE Erf erf_constants(void) {
    Erf k = {
        splat(3.92f),
        splat(1.12837899f), splat(0.192764327f), splat(0.0530605167f), splat(0.00386833935f), splat(2.87479721e-4f),
        splat(2.03473337e-6f),
        splat(0.504164636f), splat(0.11508473f), splat(0.0151723195f), splat(0.00118811813f), splat(3.80706406e-5f),
    };
    KEEP_ALL(k);
    return k;
}

/* erf(x) = x P(x^2) / Q(x^2), minimax on [-3.92, 3.92]; error 3e-7. */
INLINE f32x4 vec_erf(f32x4 x, f32x4 one, const Erf *k) {
    x = vec_max(vec_min(x, k->limit), -k->limit);
    f32x4 u = x * x;
    f32x4 p = fma(k->p5, u, k->p4), q = fma(k->q5, u, k->q4);
    p = fma(p, u, k->p3), q = fma(q, u, k->q3);
    p = fma(p, u, k->p2), q = fma(q, u, k->q2);
    p = fma(p, u, k->p1), q = fma(q, u, k->q1);
    p = fma(p, u, k->p0), q = fma(q, u, one);
    return x * p / q;
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
