/* y = activation(x W^T + bias) + residual with quantised weights. The operands are those of `linear`, x the result of
   `quantize_rows`. Tiles of up to 6 rows x 8 columns of integer sums live in registers. */
#include "elementwise.h"
#include "gemm.h"
#include "layout.h"

enum {
    BLOCK_BYTES = 192 * 1024, /* rows of x that stay in the second-level cache while all panels pass */
    MAX_ROWS = 96,
    MOST = 6, /* rows of a tile */
};

typedef struct {
    Activations x;
    const char *w;
    const float *bias; /* or NULL; up to the end of the last panel, whatever is there */
    int panel_bytes;
} Product;

/* A tile: rows row .. row + rows - 1 of x times `panels` panels, with bias, into y. */
typedef void Tile(const Product *g, int row, int panel, float *y, int y_stride);

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
    return g->bias ? load(g->bias + PANEL * panel + 4 * vector) : splat(0);
}

INLINE f32x4 to_float(i32x4 v) { return (f32x4)wasm_f32x4_convert_i32x4((v128_t)v); }

/* ---- q8: the row's scale and lowest value, the column's scale and sum ---- */

INLINE f32x4 finish_q8(const Product *g, int row, int panel, int vector, i32x4 sum) {
    const float *scale = (const float *)(g->w + panel * g->panel_bytes + 8 * g->x.inner) + 4 * vector;
    f32x4 shift = splat(g->x.correction[row]) * load(scale + 8);
    return fma(load(scale), fma(splat(g->x.scale[row]), to_float(sum), shift), bias_of(g, panel, vector));
}

#ifdef __wasm_relaxed_simd__
INLINE void tile_q8(const int rows, const int panels, const Product *g, int row, int panel, float *y, int y_stride) {
    const int vectors = 2 * panels;
    i32x4 acc[12] = {0};
    const char *x[MOST], *w[4];
    UNROLL for (int r = 0; r < rows; r++) x[r] = (const char *)(g->x.quants + (row + r) * g->x.inner);
    UNROLL for (int p = 0; p < panels; p++) w[p] = g->w + (panel + p) * g->panel_bytes;
    for (int left = g->x.inner; left > 0; left -= 16) {
        UNROLL for (int q = 0; q < 4; q++) {
            i32x4 weights[8];
            if (rows > 1) {
                UNROLL for (int v = 0; v < vectors; v++) weights[v] = int_at(w[v / 2], 32 * q + 16 * (v % 2));
            }
            UNROLL for (int r = 0; r < rows; r++) {
                i32x4 quad = quad_at(x[r], 4 * q);
                UNROLL for (int v = 0; v < vectors; v++) {
                    i32x4 weight = rows > 1 ? weights[v] : int_at(w[v / 2], 32 * q + 16 * (v % 2));
                    acc[r * vectors + v] = dot(weight, quad, acc[r * vectors + v]);
                    KEEP(acc[r * vectors + v]);
                }
            }
        }
        UNROLL for (int r = 0; r < rows; r++) x[r] += 16;
        UNROLL for (int p = 0; p < panels; p++) w[p] += 128;
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vectors; v++) {
            f32x4 value = finish_q8(g, row + r, panel + v / 2, v % 2, acc[r * vectors + v]);
            store(y + r * y_stride + 4 * v, value);
        }
    }
}
#else
INLINE void tile_q8(const int rows, const int panels, const Product *g, int row, int panel, float *y, int y_stride) {
    UNROLL for (int v = 0; v < 2 * panels; v++) {
        i32x4 low[MOST] = {0}, high[MOST] = {0};
        const char *x[MOST], *w = g->w + (panel + v / 2) * g->panel_bytes + v % 2 * 16;
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
        UNROLL for (int r = 0; r < rows; r++)
            store(y + r * y_stride + 4 * v, finish_q8(g, row + r, panel + v / 2, v % 2, join(low[r], high[r])));
    }
}
#endif

/* ---- Groups: integer sums within a group, then float sums over groups ---- */

/* Four float16 scales; the sign of a scale may be negative. */
INLINE f32x4 scales_at(const char *p) {
    i32x4 half = (i32x4)wasm_i32x4_load16x4(p);
    return (f32x4)(half << 13 & splat_int((int)0x8fffe000)) * splat(0x1p112f);
}

#ifdef __wasm_relaxed_simd__
INLINE void tile_grouped(const int layout, const int rows, const int panels, const Product *g, int row, int panel,
                         float *y, int y_stride) {
    const int vectors = 2 * panels, size = group_bytes(layout), quants = layout == LAYOUT_Q4Z ? 32 : 16;
    const char *x[MOST], *w[2], *scale = (const char *)(g->x.scale + row);
    const char *correction = (const char *)(g->x.correction + row);
    i32x4 nibble = splat_int(0x0f0f0f0f);
    f32x4 total[12];
    KEEP(nibble);
    UNROLL for (int v = 0; v < rows * vectors; v++) total[v] = splat(0);
    /* More than one row of totals does not fit into registers beside the integer sums, so they wait in memory. */
    char *waiting = (char *)total;
    if (rows > 1) KEEP(waiting);
    UNROLL for (int r = 0; r < rows; r++) x[r] = (const char *)(g->x.quants + (row + r) * g->x.inner);
    UNROLL for (int p = 0; p < panels; p++) w[p] = g->w + (panel + p) * g->panel_bytes;
    for (int n = 0; n < g->x.groups; n++) {
        i32x4 acc[12];
        UNROLL for (int r = 0; r < rows; r++) {
            i32x4 start = layout == LAYOUT_Q4Z ? splat_int(0) : quad_at(correction, 4 * r);
            UNROLL for (int v = 0; v < vectors; v++) acc[r * vectors + v] = start;
        }
        UNROLL for (int step = 0; step < (layout == LAYOUT_Q8G ? 8 : 4); step++) {
            UNROLL for (int v = 0; v < vectors; v++) {
                i32x4 weights = int_at(w[v / 2], quants + 32 * step + 16 * (v % 2));
                if (layout == LAYOUT_Q8G) {
                    UNROLL for (int r = 0; r < rows; r++) {
                        acc[r * vectors + v] = dot(quad_at(x[r], 4 * step), weights, acc[r * vectors + v]);
                        KEEP(acc[r * vectors + v]);
                    }
                } else {
                    i32x4 low = weights & nibble;
                    KEEP(low);
                    UNROLL for (int r = 0; r < rows; r++) {
                        acc[r * vectors + v] = dot(quad_at(x[r], 8 * step), low, acc[r * vectors + v]);
                        KEEP(acc[r * vectors + v]);
                    }
                    i32x4 high = (i32x4)wasm_u16x8_shr((v128_t)weights, 4) & nibble;
                    KEEP(high);
                    UNROLL for (int r = 0; r < rows; r++) {
                        acc[r * vectors + v] = dot(quad_at(x[r], 8 * step + 4), high, acc[r * vectors + v]);
                        KEEP(acc[r * vectors + v]);
                    }
                }
            }
        }
        UNROLL for (int v = 0; v < vectors; v++) {
            f32x4 weight_scale = scales_at(w[v / 2] + 8 * (v % 2)), offset = splat(0);
            if (layout == LAYOUT_Q4Z) offset = scales_at(w[v / 2] + 16 + 8 * (v % 2));
            UNROLL for (int r = 0; r < rows; r++) {
                const int at = r * vectors + v;
                f32x4 factor = weight_scale * splat_at(scale, 4 * r);
                f32x4 sum = rows > 1 ? load_at(waiting, 16 * at) : total[at];
                if (layout == LAYOUT_Q4Z) sum = fma(splat_at(correction, 4 * r), offset, sum);
                sum = fma(to_float(acc[at]), factor, sum);
                if (rows > 1) store(waiting + 16 * at, sum);
                else total[at] = sum;
                KEEP(sum);
            }
        }
        scale += 4 * g->x.rows;
        correction += 4 * g->x.rows;
        UNROLL for (int r = 0; r < rows; r++) x[r] += GROUP_SIZE;
        UNROLL for (int p = 0; p < panels; p++) w[p] += size;
    }
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vectors; v++) {
            const int at = r * vectors + v;
            f32x4 value = rows > 1 ? load(waiting + 16 * at) : total[at];
            store(y + r * y_stride + 4 * v, value + bias_of(g, panel + v / 2, v % 2));
        }
    }
}
#else
INLINE void tile_grouped(const int layout, const int rows, const int panels, const Product *g, int row, int panel,
                         float *y, int y_stride) {
    const int size = group_bytes(layout), quants = layout == LAYOUT_Q4Z ? 32 : 16;
    const v128_t nibble = wasm_i8x16_splat(15), shift = wasm_i8x16_splat(layout == LAYOUT_Q8G ? 64 : 8);
    UNROLL for (int v = 0; v < 2 * panels; v++) {
        f32x4 total[MOST];
        const char *x[MOST], *w = g->w + (panel + v / 2) * g->panel_bytes;
        UNROLL for (int r = 0; r < rows; r++) {
            total[r] = splat(0);
            x[r] = (const char *)(g->x.quants + (row + r) * g->x.inner);
        }
        for (int n = 0; n < g->x.groups; n++, w += size) {
            i32x4 low[MOST] = {0}, high[MOST] = {0};
            UNROLL for (int step = 0; step < (layout == LAYOUT_Q8G ? 8 : 4); step++) {
                v128_t weights = (v128_t)load_at(w, quants + 32 * step + 16 * (v % 2));
                UNROLL for (int half = 0; half < (layout == LAYOUT_Q8G ? 1 : 2); half++) {
                    v128_t bytes = weights;
                    if (layout != LAYOUT_Q8G) bytes = (half ? wasm_u16x8_shr(weights, 4) : weights) & nibble;
                    if (layout != LAYOUT_Q4Z) bytes = wasm_i8x16_sub(bytes, shift);
                    i32x4 first = (i32x4)wasm_i16x8_extend_low_i8x16(bytes);
                    i32x4 second = (i32x4)wasm_i16x8_extend_high_i8x16(bytes);
                    UNROLL for (int r = 0; r < rows; r++) {
                        i32x4 quad = quad_at(x[r], layout == LAYOUT_Q8G ? 8 * step : 16 * step + 8 * half);
                        low[r] = dot(first, quad, low[r]);
                        KEEP(low[r]);
                        high[r] = dot(second, quad, high[r]);
                        KEEP(high[r]);
                    }
                }
            }
            f32x4 weight_scale = scales_at(w + 8 * (v % 2));
            UNROLL for (int r = 0; r < rows; r++) {
                int at = n * g->x.rows + row + r;
                f32x4 factor = weight_scale * splat(g->x.scale[at]);
                if (layout == LAYOUT_Q4Z)
                    total[r] = fma(splat(g->x.correction[at]), scales_at(w + 16 + 8 * (v % 2)), total[r]);
                total[r] = fma(to_float(join(low[r], high[r])), factor, total[r]);
                x[r] += 2 * GROUP_SIZE;
            }
        }
        f32x4 bias = bias_of(g, panel + v / 2, v % 2);
        UNROLL for (int r = 0; r < rows; r++) store(y + r * y_stride + 4 * v, total[r] + bias);
    }
}
#endif

/* ---- Tiles by layout and number of rows; the last one takes several panels, for one row ---- */

#define DEFINE_GROUPED(name, layout)                                                                                      \
    INLINE void tile_##name(const int rows, const int panels, const Product *g, int row, int panel, float *y, int stride) { \
        tile_grouped(layout, rows, panels, g, row, panel, y, stride);                                                     \
    }
DEFINE_GROUPED(q8g, LAYOUT_Q8G)
DEFINE_GROUPED(q4, LAYOUT_Q4)
DEFINE_GROUPED(q4z, LAYOUT_Q4Z)

#define DEFINE_TILE(name, rows, panels)                                                                                   \
    static NOINLINE void name##_##rows##x##panels(const Product *g, int row, int panel, float *y, int y_stride) {         \
        tile_##name(rows, panels, g, row, panel, y, y_stride);                                                            \
    }
#define DEFINE_TILES(name, wide)                                                                                          \
    DEFINE_TILE(name, 1, 1)                                                                                               \
    DEFINE_TILE(name, 2, 1)                                                                                               \
    DEFINE_TILE(name, 3, 1)                                                                                               \
    DEFINE_TILE(name, 4, 1)                                                                                               \
    DEFINE_TILE(name, 5, 1)                                                                                               \
    DEFINE_TILE(name, 6, 1)                                                                                               \
    DEFINE_TILE(name, 1, wide)                                                                                            \
    static Tile *const name##_tiles[] = {                                                                                 \
        name##_1x1, name##_2x1, name##_3x1, name##_4x1, name##_5x1, name##_6x1, name##_1x##wide,                          \
    };
DEFINE_TILES(q8, 4)
DEFINE_TILES(q8g, 2)
DEFINE_TILES(q4, 2)
DEFINE_TILES(q4z, 2)

static void multiply(const Product *g, Tile *const *tiles, int wide, int row, int rows, int panel, int panels, float *y,
                     int y_stride) {
    int end = panel + panels;
    if (rows == 1)
        for (; panel + wide <= end; panel += wide, y += 8 * wide) tiles[MOST](g, row, panel, y, y_stride);
    for (; panel < end; panel++, y += 8) {
        for (int r = 0; r < rows;) {
            int left = rows - r, count = ceil_div(left, ceil_div(left, MOST)); /* none much smaller than the others */
            tiles[count - 1](g, row + r, panel, y + r * y_stride, y_stride);
            r += count;
        }
    }
}

/* The panel that columns end in is computed aside, as its lines would run over the end of the rows of y. */
static void last_panel(const Product *g, Tile *const *tiles, int row, int rows, int panel, int columns, float *y,
                       int y_stride) {
    float aside[MAX_ROWS * PANEL];
    multiply(g, tiles, 2, row, rows, panel, 1, aside, PANEL);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) y[r * y_stride + c] = aside[r * PANEL + c];
}

enum { NEAR = 8 }; /* panels after which what was computed is finished, while it is still near */

static int linear(const Instruction *i, int part, int parts, int layout, Tile *const *tiles, int wide) {
    int rows = INT(LINEAR_ROWS), columns = INT(LINEAR_COLUMNS), inner = INT(LINEAR_INNER);
    int activation = INT(LINEAR_ACTIVATION), panels = ceil_div(columns, PANEL);
    int begin = split(panels, part, parts), end = split(panels, part + 1, parts);
    const float *residual = INPUT(LINEAR_RESIDUAL);
    Product g = {
        activations(ADDRESS(char, LINEAR_X), layout, rows, inner), ADDRESS(const char, LINEAR_WEIGHT),
        INPUT(LINEAR_BIAS), panel_bytes(layout, inner),
    };
    int block = BLOCK_BYTES / maximum(g.x.inner * (int)sizeof(Quant), 1) / MOST * MOST;
    block = minimum(maximum(block, MOST), MAX_ROWS);
    for (int row = 0; row < rows; row += block) {
        int count = minimum(block, rows - row);
        for (int panel = begin; panel < end; panel += NEAR) {
            int column = panel * PANEL, width = minimum(minimum(panel + NEAR, end) * PANEL, columns) - column;
            int whole = width / PANEL;
            float *y = OUTPUT(LINEAR_Y) + row * columns + column;
            multiply(&g, tiles, wide, row, count, panel, whole, y, columns);
            if (width % PANEL)
                last_panel(&g, tiles, row, count, panel + whole, width % PANEL, y + whole * PANEL, columns);
            if (activation != ACT_NONE || residual)
                finish(y, residual ? residual + row * columns + column : 0, count, width, columns, activation);
        }
    }
    return 0;
}

int op_linear_q8(const Instruction *i, int part, int parts) { return linear(i, part, parts, LAYOUT_Q8, q8_tiles, 4); }
int op_linear_q8g(const Instruction *i, int part, int parts) { return linear(i, part, parts, LAYOUT_Q8G, q8g_tiles, 2); }
int op_linear_q4(const Instruction *i, int part, int parts) { return linear(i, part, parts, LAYOUT_Q4, q4_tiles, 2); }
int op_linear_q4z(const Instruction *i, int part, int parts) { return linear(i, part, parts, LAYOUT_Q4Z, q4z_tiles, 2); }
