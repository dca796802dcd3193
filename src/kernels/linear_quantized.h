/* What the tiles of all quantised layouts share: what they multiply, and the dot product of bytes. */
#pragma once

#include "gemm.h"
#include "layout.h"

/* A group of a panel, with which several rows are multiplied. */
typedef struct {
    f32x4 scale[2], offset[2];
    i32x4 quants[16]; /* [8 steps][8 columns][4]: 0 .. 127, and without relaxed SIMD less the zero point */
} Unpacked;

typedef struct {
    Activations x;
    const char *w;
    const float *bias; /* up to the end of the last panel, whatever is there; without one, zeros for every panel */
    int panel_bytes, bias_step;
    const Unpacked *unpacked; /* grouped layouts: of the panel at hand, the groups from `group` on */
    int group, groups;
} Product;

/* `count` tiles, one below the other: the tile's rows of x, from `row` on, times a panel, with bias, into y. */
typedef void Tiles(const Product *g, int row, int panel, int count, float *y, int y_stride);

/* One row of x times STREAMS panels, into y. The panels are `apart` from each other, as memory delivers several distant
   streams faster than one. */
typedef void Streams(const Product *g, int row, int panel, int apart, float *y);

#ifdef __wasm_relaxed_simd__
INLINE i32x4 dot(i32x4 signed_bytes, i32x4 seven_bits, i32x4 sum) {
    return (i32x4)wasm_i32x4_relaxed_dot_i8x16_i7x16_add((v128_t)signed_bytes, (v128_t)seven_bits, (v128_t)sum);
}
INLINE i32x4 int_at(const char *p, const int offset) { return (i32x4)load_at(p, offset); }
INLINE i32x4 quad_at(const char *p, const int offset) { return (i32x4)splat_at(p, offset); }
#else
INLINE i32x4 widen_at(const char *p, const int offset) { return (i32x4)ASM_LOAD("i16x8.load8x8_s", p, offset); }
INLINE i32x4 quad_at(const char *p, const int offset) { return (i32x4)ASM_LOAD("v128.load64_splat", p, offset); }
INLINE i32x4 dot(i32x4 a, i32x4 b, i32x4 sum) { return sum + (i32x4)wasm_i32x4_dot_i16x8((v128_t)a, (v128_t)b); }
/* Sums over pairs: each column's dot product was left in two lanes. */
INLINE i32x4 join(i32x4 low, i32x4 high) {
    return __builtin_shufflevector(low, high, 0, 2, 4, 6) + __builtin_shufflevector(low, high, 1, 3, 5, 7);
}
#endif

INLINE f32x4 bias_of(const Product *g, int panel, int vector) {
    return load(g->bias + g->bias_step * panel + 4 * vector);
}

INLINE f32x4 to_float(i32x4 v) { return (f32x4)wasm_f32x4_convert_i32x4((v128_t)v); }
