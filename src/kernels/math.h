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

/* x Phi(x), with Phi the normal distribution function; error 1e-7. It is max(x, 0) - |x| Phi(-|x|), and log2 of Phi(-a)
   is close to a polynomial: minimax for the error of a Phi(-a). Beyond 13 it is 0 or x. */
INLINE f32x4 vec_gelu(f32x4 x, const Gelu *k, const Exp2 *e) {
    f32x4 a = vec_min(vec_abs(x), k->high);
    f32x4 p = fma(k->c8, a, k->c7);
    p = fma(p, a, k->c6);
    p = fma(p, a, k->c5);
    p = fma(p, a, k->c4);
    p = fma(p, a, k->c3);
    p = fma(p, a, k->c2);
    p = fma(p, a, k->c1);
    p = fma(p, a, k->c0);
    return vec_max(x, splat(0)) - a * vec_exp2(p, e);
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
