/* Tiles of the grouped layouts: integer sums within a group, then float sums over groups. */
#pragma once

#include "linear_quantized.h"

#include <stddef.h>

/* Four float16 scales; the sign of a scale may be negative. */
INLINE f32x4 scales_at(const char *p) {
    i32x4 half = (i32x4)wasm_i32x4_load16x4(p);
    return (f32x4)(half << 13 & splat_int((int)0x8fffe000)) * splat(0x1p112f);
}

/* What a row's totals start from: the bias, or what the groups before gave. */
INLINE f32x4 start_of(const Product *g, int panel, int vector, const float *y) {
    return g->group ? load(y + 4 * vector) : bias_of(g, panel, vector);
}

/* What a tile reads instead of a packed layout. */
enum { UNPACKED = -1, UNPACKED_OFFSETS = -2 };

/* Where things lie in an Unpacked, and in a RowGroup. */
enum {
    OFFSETS = offsetof(Unpacked, offset),
    QUANTS = offsetof(Unpacked, quants),
    ROW_ZERO = offsetof(RowGroup, zero),
    ROW_START = offsetof(RowGroup, start),
    ROW_SUM = offsetof(RowGroup, sum),
};

INLINE void unpack_layout(const int layout, Unpacked *u, const char *w, int groups) {
    const int quants = layout == LAYOUT_Q4Z ? 32 : 16;
#ifdef __wasm_relaxed_simd__
    const int zero = 0;
#else
    const int zero = layout == LAYOUT_Q8G ? 64 : layout == LAYOUT_Q4 ? 8 : 0;
#endif
    const v128_t nibble = wasm_i8x16_splat(15), zeros = wasm_i8x16_splat(zero);
    for (; groups > 0; groups--, u++, w += group_bytes(layout)) {
        UNROLL for (int v = 0; v < 2; v++) {
            u->scale[v] = scales_at(w + 8 * v);
            if (layout == LAYOUT_Q4Z) u->offset[v] = scales_at(w + 16 + 8 * v);
        }
        UNROLL for (int j = 0; j < (layout == LAYOUT_Q8G ? 16 : 8); j++) {
            v128_t bytes = wasm_v128_load(w + quants + 16 * j);
            if (layout == LAYOUT_Q8G) {
                u->quants[j] = (i32x4)wasm_i8x16_sub(bytes, zeros);
            } else {
                int at = j / 2 * 4 + j % 2;
                u->quants[at] = (i32x4)wasm_i8x16_sub(bytes & nibble, zeros);
                u->quants[at + 2] = (i32x4)wasm_i8x16_sub(wasm_u16x8_shr(bytes, 4) & nibble, zeros);
            }
        }
    }
}

static void unpack(int layout, Unpacked *u, const char *w, int groups) {
    if (layout == LAYOUT_Q8G) unpack_layout(LAYOUT_Q8G, u, w, groups);
    else if (layout == LAYOUT_Q4) unpack_layout(LAYOUT_Q4, u, w, groups);
    else unpack_layout(LAYOUT_Q4Z, u, w, groups);
}

/* Row `row` from the group on that is at hand. */
INLINE const char *row_at(const Product *g, int row) {
    return (const char *)(g->x.row_groups + row * g->x.groups + g->group);
}

#ifdef __wasm_relaxed_simd__
/* In memory, as no register is free for it. */
static const i32x4 NIBBLES = {0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f};

INLINE int has_offsets(const int source) { return source == LAYOUT_Q4Z || source == UNPACKED_OFFSETS; }

/* The quants of step 0 .. 7 for four columns. */
INLINE i32x4 quants_at(const int source, const char *w, const int step, const int v) {
    const int first = source == LAYOUT_Q4Z ? 32 : 16;
    if (source < 0) return int_at(w, QUANTS + 32 * step + 16 * v);
    if (source == LAYOUT_Q8G) return int_at(w, first + 32 * step + 16 * v);
    i32x4 both = int_at(w, first + step / 2 * 32 + 16 * v), nibble = int_at((const char *)&NIBBLES, 0);
    i32x4 quants = (step % 2 ? (i32x4)wasm_u16x8_shr((v128_t)both, 4) : both) & nibble;
    KEEP(quants);
    return quants;
}

/* What integer sums start from. */
INLINE i32x4 start_at(const int offsets, const char *row_group) {
    return quad_at(row_group, offsets ? ROW_ZERO : ROW_START);
}

INLINE void tile_grouped(const int source, const int rows, const Product *g, int row, int panel, float *y,
                         int y_stride) {
    const int size = source < 0 ? (int)sizeof(Unpacked) : group_bytes(source), offsets = has_offsets(source);
    const char *x[TILE_ROWS], *w = source < 0 ? (const char *)g->unpacked : g->w + panel * g->panel_bytes;
    /* The totals do not fit into registers beside the integer sums, so they wait in memory. */
    f32x4 totals[2 * TILE_ROWS];
    char *waiting = (char *)totals;
    KEEP(waiting);
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < 2; v++) store(waiting + 32 * r + 16 * v, start_of(g, panel, v, y + r * y_stride));
        x[r] = row_at(g, row + r);
    }
    for (int n = g->groups; n > 0; n--) {
        i32x4 acc[2 * TILE_ROWS];
        UNROLL for (int r = 0; r < rows; r++) acc[2 * r] = acc[2 * r + 1] = start_at(offsets, x[r]);
        UNROLL for (int step = 0; step < 8; step++) { /* of 4 quants */
            i32x4 low = quants_at(source, w, step, 0), high = quants_at(source, w, step, 1);
            UNROLL for (int r = 0; r < rows; r++) {
                i32x4 quad = quad_at(x[r], 4 * step);
                acc[2 * r] = dot(quad, low, acc[2 * r]);
                KEEP(acc[2 * r]);
                acc[2 * r + 1] = dot(quad, high, acc[2 * r + 1]);
                KEEP(acc[2 * r + 1]);
            }
        }
        f32x4 scale[2];
        UNROLL for (int v = 0; v < 2; v++) {
            scale[v] = source < 0 ? load_at(w, 16 * v) : scales_at(w + 8 * v);
            KEEP(scale[v]);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            f32x4 zero = splat_at(x[r], ROW_ZERO), sum[2];
            UNROLL for (int v = 0; v < 2; v++) {
                sum[v] = (f32x4)acc[2 * r + v] - zero;
                KEEP(sum[v]);
            }
            f32x4 row_sum = offsets ? splat_at(x[r], ROW_SUM) : splat(0);
            UNROLL for (int v = 0; v < 2; v++) {
                char *place = waiting + 32 * r + 16 * v;
                f32x4 total = fma(sum[v], scale[v], load(place));
                if (offsets) {
                    f32x4 offset = source < 0 ? load_at(w, OFFSETS + 16 * v) : scales_at(w + 16 + 8 * v);
                    total = fma(row_sum, offset, total);
                }
                store(place, total);
            }
        }
        UNROLL for (int r = 0; r < rows; r++) {
            x[r] += sizeof(RowGroup);
            KEEP(x[r]); /* or the compiler keeps what the rows share, and adds it every time */
        }
        w += size;
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < 2; v++) store(y + r * y_stride + 4 * v, load(waiting + 32 * r + 16 * v));
}

INLINE void streams_grouped(const int layout, const Product *g, int row, int panel, int apart, float *y) {
    const int size = group_bytes(layout), quants = layout == LAYOUT_Q4Z ? 32 : 16;
    const char *x = row_at(g, row), *w[STREAMS];
    i32x4 nibble = splat_int(0x0f0f0f0f);
    f32x4 totals[2 * STREAMS]; /* in memory, as the quants of the row live in registers */
    char *waiting = (char *)totals;
    KEEP(waiting);
    KEEP(nibble);
    UNROLL for (int p = 0; p < STREAMS; p++) {
        w[p] = g->w + (panel + p * apart) * g->panel_bytes;
        UNROLL for (int v = 0; v < 2; v++) store(waiting + 32 * p + 16 * v, bias_of(g, panel + p * apart, v));
    }
    for (int n = g->x.groups; n > 0; n--) {
        i32x4 quads[8];
        UNROLL for (int step = 0; step < 8; step++) {
            quads[step] = quad_at(x, 4 * step);
            KEEP(quads[step]);
        }
        UNROLL for (int p = 0; p < STREAMS; p++) {
            i32x4 acc[2];
            UNROLL for (int v = 0; v < 2; v++) acc[v] = start_at(layout == LAYOUT_Q4Z, x);
            UNROLL for (int step = 0; step < (layout == LAYOUT_Q8G ? 8 : 4); step++) {
                UNROLL for (int v = 0; v < 2; v++) {
                    i32x4 weights = int_at(w[p], quants + 32 * step + 16 * v);
                    if (layout == LAYOUT_Q8G) {
                        acc[v] = dot(quads[step], weights, acc[v]);
                    } else {
                        acc[v] = dot(quads[2 * step], weights & nibble, acc[v]);
                        KEEP(acc[v]);
                        acc[v] = dot(quads[2 * step + 1], (i32x4)wasm_u16x8_shr((v128_t)weights, 4) & nibble, acc[v]);
                    }
                    KEEP(acc[v]);
                }
            }
            UNROLL for (int v = 0; v < 2; v++) {
                f32x4 sum = (f32x4)acc[v] - splat_at(x, ROW_ZERO), total = load(waiting + 32 * p + 16 * v);
                if (layout == LAYOUT_Q4Z) total = fma(splat_at(x, ROW_SUM), scales_at(w[p] + 16 + 8 * v), total);
                store(waiting + 32 * p + 16 * v, fma(sum, scales_at(w[p] + 8 * v), total));
            }
            w[p] += size;
        }
        x += sizeof(RowGroup);
    }
    UNROLL for (int p = 0; p < STREAMS; p++)
        UNROLL for (int v = 0; v < 2; v++) store(y + 8 * p * apart + 4 * v, load(waiting + 32 * p + 16 * v));
}
#else
INLINE void tile_grouped(const int source, const int rows, const Product *g, int row, int panel, float *y,
                         int y_stride) {
    UNROLL for (int v = 0; v < 2; v++) {
        f32x4 total[TILE_ROWS];
        const char *x[TILE_ROWS], *w = (const char *)g->unpacked;
        UNROLL for (int r = 0; r < rows; r++) {
            total[r] = start_of(g, panel, v, y + r * y_stride);
            x[r] = row_at(g, row + r);
        }
        for (int n = 0; n < g->groups; n++, w += sizeof(Unpacked)) {
            i32x4 low[TILE_ROWS] = {0}, high[TILE_ROWS] = {0};
            UNROLL for (int step = 0; step < 8; step++) {
                i32x4 first = widen_at(w, QUANTS + 32 * step + 16 * v);
                i32x4 second = widen_at(w, QUANTS + 32 * step + 16 * v + 8);
                UNROLL for (int r = 0; r < rows; r++) {
                    i32x4 quad = quad_at(x[r], 8 * step);
                    low[r] = dot(first, quad, low[r]);
                    KEEP(low[r]);
                    high[r] = dot(second, quad, high[r]);
                    KEEP(high[r]);
                }
            }
            f32x4 scale = load_at(w, 16 * v), offset = splat(0);
            if (source == UNPACKED_OFFSETS) offset = load_at(w, OFFSETS + 16 * v);
            UNROLL for (int r = 0; r < rows; r++) {
                if (source == UNPACKED_OFFSETS) total[r] = fma(splat_at(x[r], ROW_SUM), offset, total[r]);
                f32x4 zero = splat_at(x[r], ROW_ZERO), sum = (f32x4)((i32x4)zero + join(low[r], high[r])) - zero;
                total[r] = fma(sum, scale, total[r]);
                x[r] += sizeof(RowGroup);
            }
        }
        UNROLL for (int r = 0; r < rows; r++) store(y + r * y_stride + 4 * v, total[r]);
    }
}
#endif
