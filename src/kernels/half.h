/* float16 and bfloat16 to float32 and back. */
#pragma once

#include "common.h"

INLINE f32x4 bfloat16_load(const uint16_t *p) { return (f32x4)((u32x4)wasm_u32x4_load16x4(p) << 16); }

/* Constants of float16_load, made once before a loop. */
typedef struct {
    i32x4 magnitude, sign, rebias, normal, special, step;
    f32x4 least;
} Float16;

INLINE Float16 float16_constants(void) {
    Float16 k = {
        splat_int(0x7fff), splat_int(0x8000), splat_int(112 << 23), splat_int(113 << 23), splat_int((143 << 23) - 1),
        splat_int(1 << 23), splat(0x1p-14f),
    };
    KEEP_ALL(k);
    return k;
}

INLINE f32x4 float16_load(const uint16_t *p, const Float16 *k) {
    i32x4 half = (i32x4)wasm_u32x4_load16x4(p);
    i32x4 bits = ((half & k->magnitude) << 13) + k->rebias;
    /* A subnormal's mantissa over 2^-14's implicit one, which is taken off again. */
    f32x4 subnormal = (f32x4)(bits + k->step) - k->least;
    bits += (bits > k->special) & k->rebias; /* infinity and NaN */
    return (f32x4)((i32x4)select(bits < k->normal, subnormal, (f32x4)bits) | (half & k->sign) << 16);
}

INLINE float bfloat16_to_float(uint16_t half) { return __builtin_bit_cast(float, (uint32_t)half << 16); }

INLINE float float16_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = (uint32_t)(half & 0x7fff) << 13;
    if (magnitude >= 0x7c00u << 13) return __builtin_bit_cast(float, sign | (magnitude + (224u << 23)));
    if (magnitude >= 0x400u << 13) return __builtin_bit_cast(float, sign | (magnitude + (112u << 23)));
    float subnormal = __builtin_bit_cast(float, magnitude + (113u << 23)) - 0x1p-14f;
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, subnormal));
}

/* Rounds to nearest even. */
INLINE uint16_t float_to_bfloat16(float x) {
    if (x != x) return 0x7fc0;
    uint32_t bits = __builtin_bit_cast(uint32_t, x);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Rounds once, to nearest even. */
INLINE uint16_t double_to_float16(double x) {
    uint64_t bits = __builtin_bit_cast(uint64_t, x);
    uint16_t sign = (uint16_t)(bits >> 48 & 0x8000);
    if (x != x) return sign | 0x7e00;
    double magnitude = __builtin_fabs(x);
    if (magnitude >= 65520) return sign | 0x7c00;
    /* Adding 2^52 steps rounds to whole steps, of which the exponent (at least that of subnormals) gives the size. */
    int exponent = maximum((int)(bits >> 52 & 0x7ff) - 1023, -14);
    double rounder = __builtin_bit_cast(double, (uint64_t)(exponent - 10 + 52 + 1023) << 52);
    double rounded = magnitude + rounder;
    int steps = (int)(__builtin_bit_cast(uint64_t, rounded) - __builtin_bit_cast(uint64_t, rounder));
    return (uint16_t)(sign | (((exponent + 14) << 10) + steps)); /* 1024 steps or more carry into the exponent */
}
