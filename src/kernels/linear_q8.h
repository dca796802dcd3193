/* Tiles of q8: the row's scale and lowest value, the column's scale and sum. */
#pragma once

#include "linear_quantized.h"

/* What turns the sums of some columns into results. */
typedef struct {
    f32x4 scale, sum, bias;
} Columns;

/* `w` is where the quants of the panel end. */
INLINE Columns columns_q8(const Product *g, const char *w, int panel, int v) {
    return (Columns){load_at(w, 16 * v), load_at(w, 32 + 16 * v), bias_of(g, panel, v)};
}

/* `scale` and `low` are those of a tile's first row. */
INLINE f32x4 finish_q8(const Columns *c, const char *scale, const char *low, int r, i32x4 sum) {
    f32x4 scaled = fma(splat_at(scale, 4 * r), to_float(sum), splat_at(low, 4 * r) * c->sum);
    return fma(c->scale, scaled, c->bias);
}

#ifdef __wasm_relaxed_simd__
INLINE void tile_q8(const int rows, const Product *g, int row, int panel, float *y, int y_stride) {
    i32x4 acc[2 * TILE_ROWS] = {0};
    const char *x[TILE_ROWS], *w = g->w + panel * g->panel_bytes;
    const char *scale = (const char *)(g->x.scale + row), *lowest = (const char *)(g->x.low + row);
    UNROLL for (int r = 0; r < rows; r++) x[r] = (const char *)(g->x.quants + (row + r) * g->x.inner);
    for (int left = g->x.inner; left > 0; left -= 16, w += 128) {
        UNROLL for (int q = 0; q < 4; q++) {
            i32x4 low = int_at(w, 32 * q), high = int_at(w, 32 * q + 16);
            UNROLL for (int r = 0; r < rows; r++) {
                i32x4 quad = quad_at(x[r], 4 * q);
                acc[2 * r] = dot(low, quad, acc[2 * r]);
                KEEP(acc[2 * r]);
                acc[2 * r + 1] = dot(high, quad, acc[2 * r + 1]);
                KEEP(acc[2 * r + 1]);
            }
        }
        UNROLL for (int r = 0; r < rows; r++) x[r] += 16;
    }
    const Columns columns[2] = {columns_q8(g, w, panel, 0), columns_q8(g, w, panel, 1)};
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < 2; v++)
            store(y + r * y_stride + 4 * v, finish_q8(&columns[v], scale, lowest, r, acc[2 * r + v]));
}

INLINE void streams_q8(const Product *g, int row, int panel, int apart, float *y) {
    i32x4 acc[2 * STREAMS] = {0};
    const char *x = (const char *)(g->x.quants + row * g->x.inner), *w[STREAMS];
    const char *scale = (const char *)(g->x.scale + row), *lowest = (const char *)(g->x.low + row);
    UNROLL for (int p = 0; p < STREAMS; p++) w[p] = g->w + (panel + p * apart) * g->panel_bytes;
    for (int left = g->x.inner; left > 0; left -= 16, x += 16) {
        UNROLL for (int q = 0; q < 4; q++) {
            i32x4 quad = quad_at(x, 4 * q);
            UNROLL for (int v = 0; v < 2 * STREAMS; v++) {
                acc[v] = dot(int_at(w[v / 2], 32 * q + 16 * (v % 2)), quad, acc[v]);
                KEEP(acc[v]);
            }
        }
        UNROLL for (int p = 0; p < STREAMS; p++) w[p] += 128;
    }
    UNROLL for (int p = 0; p < STREAMS; p++) {
        UNROLL for (int v = 0; v < 2; v++) {
            const Columns columns = columns_q8(g, w[p], panel + p * apart, v);
            store(y + 8 * p * apart + 4 * v, finish_q8(&columns, scale, lowest, 0, acc[2 * p + v]));
        }
    }
}
#else
INLINE void tile_q8(const int rows, const Product *g, int row, int panel, float *y, int y_stride) {
    const char *scale = (const char *)(g->x.scale + row), *lowest = (const char *)(g->x.low + row);
    UNROLL for (int v = 0; v < 2; v++) {
        i32x4 low[TILE_ROWS] = {0}, high[TILE_ROWS] = {0};
        const char *x[TILE_ROWS], *w = g->w + panel * g->panel_bytes + 16 * v;
        UNROLL for (int r = 0; r < rows; r++) x[r] = (const char *)(g->x.quants + (row + r) * g->x.inner);
        for (int left = g->x.inner; left > 0; left -= 16, w += 128) {
            UNROLL for (int q = 0; q < 4; q++) {
                i32x4 first = widen_at(w, 32 * q), second = widen_at(w, 32 * q + 8);
                UNROLL for (int r = 0; r < rows; r++) {
                    i32x4 quad = quad_at(x[r], 8 * q);
                    low[r] = dot(first, quad, low[r]);
                    KEEP(low[r]);
                    high[r] = dot(second, quad, high[r]);
                    KEEP(high[r]);
                }
            }
            UNROLL for (int r = 0; r < rows; r++) x[r] += 32;
        }
        const Columns columns = columns_q8(g, w - 16 * v, panel, v);
        UNROLL for (int r = 0; r < rows; r++)
            store(y + r * y_stride + 4 * v, finish_q8(&columns, scale, lowest, r, join(low[r], high[r])));
    }
}
#endif
