/* Quantising activations before the linears of a quantised layout. */
#include "layout.h"

INLINE i32x4 to_int(f32x4 v) {
#ifdef __wasm_relaxed_simd__
    return (i32x4)wasm_i32x4_relaxed_trunc_f32x4((v128_t)v);
#else
    return (i32x4)wasm_i32x4_trunc_sat_f32x4((v128_t)v);
#endif
}

INLINE void store_quants(Quant *q, i32x4 a, i32x4 b, i32x4 c, i32x4 d) {
    v128_t low = wasm_i16x8_narrow_i32x4((v128_t)a, (v128_t)b), high = wasm_i16x8_narrow_i32x4((v128_t)c, (v128_t)d);
#ifdef __wasm_relaxed_simd__
    wasm_v128_store(q, wasm_i8x16_narrow_i16x8(low, high));
#else
    wasm_v128_store(q, low);
    wasm_v128_store(q + 8, high);
#endif
}

/* 16 values, zeros from `left` on. */
INLINE void read16(f32x4 v[4], const float *x, int left) {
    UNROLL for (int j = 0; j < 4; j++)
        v[j] = left >= 4 * j + 4 ? load(x + 4 * j) : left > 4 * j ? load_some(x + 4 * j, left - 4 * j) : splat(0);
}

/* 16 quants x * factor + shift, whose fraction is cut off; zeros stand for x from `left` on. */
INLINE void quantize16(Quant *q, const float *x, int left, f32x4 factor, f32x4 shift) {
    f32x4 v[4];
    read16(v, x, left);
    UNROLL for (int j = 0; j < 4; j++) v[j] = vec_max(fma(v[j], factor, shift), splat(0));
    store_quants(q, to_int(v[0]), to_int(v[1]), to_int(v[2]), to_int(v[3]));
}

/* A row as quants 0 .. 127 over its range: x = low + scale * q. */
static void quantize_row(Quant *q, float *scale, float *low, const float *x, int inner, int padded) {
    f32x4 least[4], most[4]; /* side by side, as one would wait for itself */
    int k = 0;
    UNROLL for (int j = 0; j < 4; j++) least[j] = most[j] = splat(x[0]);
    for (; k + 16 <= inner; k += 16) {
        UNROLL for (int j = 0; j < 4; j++) {
            f32x4 e = load(x + k + 4 * j);
            least[j] = vec_min(least[j], e);
            most[j] = vec_max(most[j], e);
        }
    }
    float bottom = -max_lanes(-vec_min(vec_min(least[0], least[1]), vec_min(least[2], least[3])));
    float top = max_lanes(vec_max(vec_max(most[0], most[1]), vec_max(most[2], most[3])));
    for (; k < inner; k++) {
        bottom = smaller(bottom, x[k]);
        top = larger(top, x[k]);
    }
    float step = (top - bottom) / 127, inverse = step > 1e-30f ? 1 / step : 0;
    f32x4 factor = splat(inverse), shift = splat(0.5f - bottom * inverse);
    KEEP(factor);
    KEEP(shift);
    for (k = 0; k + 16 <= inner; k += 16) quantize16(q + k, x + k, 16, factor, shift);
    if (k < padded) quantize16(q + k, x + k, inner - k, factor, shift);
    *scale = step;
    *low = bottom;
}

/* The least power of two of which 127 reach `top`, within what float32 can add up. */
INLINE float scale_of(float top) {
    int32_t bits = (__builtin_bit_cast(int32_t, top * (1.0f / 127)) + 0x7fffff) & 0x7f800000;
    return __builtin_bit_cast(float, maximum(minimum(bits, (127 + 100) << 23), (127 - 100) << 23));
}

/* A row in groups of signed 8-bit quants: x = scale * q. */
static void quantize_groups(RowGroup *g, int groups, const float *x, int inner, int layout) {
    const int zero = layout == LAYOUT_Q8G ? 64 : 8;
    const float magic = __builtin_bit_cast(float, MAGIC);
    for (int n = 0; n < groups; n++, g++, x += GROUP_SIZE) {
        f32x4 v[8], most = splat(0);
        i32x4 quants[8], sum = {0};
        read16(v, x, inner - n * GROUP_SIZE);
        read16(v + 4, x + 16, inner - n * GROUP_SIZE - 16);
        if (is_rotated(layout, n, inner)) rotate(v);
        UNROLL for (int j = 0; j < 8; j++) most = vec_max(most, vec_abs(v[j]));
        float scale = scale_of(max_lanes(most));
        f32x4 inverse = splat(1 / scale);
        UNROLL for (int j = 0; j < 8; j++) {
            quants[j] = (i32x4)fma(v[j], inverse, splat(magic)) - splat_int(MAGIC); /* the nearest integer */
            sum += quants[j];
        }
        store_quants(g->quants, quants[0], quants[1], quants[2], quants[3]);
        store_quants(g->quants + 16, quants[4], quants[5], quants[6], quants[7]);
        int total = sum[0] + sum[1] + sum[2] + sum[3];
        g->zero = magic * scale;
        if (layout == LAYOUT_Q4Z) g->sum = scale * (float)total;
        else g->start = __builtin_bit_cast(int32_t, g->zero) - zero * total;
    }
}

int op_quantize_rows(const Instruction *i, int part, int parts) {
    int rows = INT(QUANTIZE_ROWS_ROWS), inner = INT(QUANTIZE_ROWS_INNER), layout = INT(QUANTIZE_ROWS_LAYOUT);
    int end = split(rows, part + 1, parts);
    Activations a = activations(ADDRESS(char, QUANTIZE_ROWS_XQ), layout, rows, inner);
    for (int r = split(rows, part, parts); r < end; r++) {
        const float *x = INPUT(QUANTIZE_ROWS_X) + r * inner;
        if (is_grouped(layout)) quantize_groups(a.row_groups + r * a.groups, a.groups, x, inner, layout);
        else quantize_row(a.quants + r * a.inner, a.scale + r, a.low + r, x, inner, a.inner);
    }
    return 0;
}
