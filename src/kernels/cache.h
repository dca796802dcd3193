/* Head vectors of a key-value cache; see optable.py. */
#pragma once

#include "half.h"

/* Words of one head vector. */
INLINE int head_words(int dtype, int dim) {
    return dtype == CACHE_F32 ? dim : dtype == CACHE_F16 ? ceil_div(dim, 2) : 1 + ceil_div(dim, 4);
}

/* Four elements of a head vector from d on; those of q8 without its scale. */
INLINE f32x4 head_load(const uint32_t *head, int d, const int dtype, const Float16 *k) {
    if (dtype == CACHE_F32) return load((const float *)head + d);
    if (dtype == CACHE_F16) return float16_load((const uint16_t *)head + d, k);
    v128_t bytes = wasm_v128_load32_zero((const int8_t *)(head + 1) + d);
    return (f32x4)wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(wasm_i16x8_extend_low_i8x16(bytes)));
}

INLINE float head_scale(const uint32_t *head) { return *(const float *)head; }

/* y [dim] = a head vector. */
void head_decode(float *y, const uint32_t *head, int dtype, int dim);
