/* y = activation(x W^T + bias) + residual with quantised weights. The operands are those of `linear`, x the result of
   `quantize_rows`. Tiles of up to 6 rows x 8 columns of integer sums live in registers. */
#include "elementwise.h"
#include "gemm.h"
#include "layout.h"

#include <stddef.h>

enum {
    BLOCK_BYTES = 192 * 1024, /* rows of x that stay in the second-level cache while all panels pass */
    MAX_ROWS = 96,
    BAND_ROWS = 48, /* at least, of a part of many rows: fewer lines of y where parts meet, which threads wait for */
    MANY_ROWS = 20,  /* from which on it pays to unpack a panel before */
    MAX_GROUPS = 48, /* whose quants stay in the first-level cache, unpacked, while the rows pass */
};

/* A group of a panel, with which several rows are multiplied. */
typedef struct {
    f32x4 scale[2], offset[2];
    f32x4 lift[2];    /* -MAGIC * scale, which is exact: (sum + MAGIC) * scale + lift is rounded once */
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

static const float ZEROS[PANEL];

INLINE f32x4 bias_of(const Product *g, int panel, int vector) {
    return load(g->bias + g->bias_step * panel + 4 * vector);
}

INLINE f32x4 to_float(i32x4 v) { return (f32x4)wasm_f32x4_convert_i32x4((v128_t)v); }

/* ---- q8: the row's scale and lowest value, the column's scale and sum ---- */

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

/* ---- Groups: integer sums within a group, then float sums over groups ---- */

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
    LIFTS = offsetof(Unpacked, lift),
    OFFSETS = offsetof(Unpacked, offset),
    QUANTS = offsetof(Unpacked, quants),
    ROW_SCALE = offsetof(RowGroup, scale),
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
            u->lift[v] = u->scale[v] * splat(-__builtin_bit_cast(float, MAGIC));
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
/* In memory, as no register is free for them. */
static const i32x4 NIBBLES = {0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f, 0x0f0f0f0f}, NO_SUMS = {MAGIC, MAGIC, MAGIC, MAGIC};

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
    return offsets ? int_at((const char *)&NO_SUMS, 0) : quad_at(row_group, offsetof(RowGroup, start));
}

/* The integer sum as float32: exact, and on another port than the conversion instruction and the dot products. */
INLINE f32x4 sum_to_float(i32x4 sum) { return (f32x4)sum - splat(__builtin_bit_cast(float, MAGIC)); }

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
        f32x4 scale[2], lift[2], offset[2];
        UNROLL for (int v = 0; v < 2; v++) {
            scale[v] = source < 0 ? load_at(w, 16 * v) : scales_at(w + 8 * v);
            lift[v] = source < 0 ? load_at(w, LIFTS + 16 * v) : splat(0);
            offset[v] = source == LAYOUT_Q4Z ? scales_at(w + 16 + 8 * v) : splat(0);
            if (source == UNPACKED_OFFSETS) offset[v] = load_at(w, OFFSETS + 16 * v);
            KEEP(scale[v]);
            KEEP(lift[v]);
            KEEP(offset[v]);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            f32x4 row_scale = splat_at(x[r], ROW_SCALE), row_sum = offsets ? splat_at(x[r], ROW_SUM) : splat(0);
            UNROLL for (int v = 0; v < 2; v++) {
                f32x4 total = load(waiting + 32 * r + 16 * v), sum = (f32x4)acc[2 * r + v];
                if (offsets) total = fma(row_sum, offset[v], total);
                sum = source < 0 ? fma(sum, scale[v], lift[v]) : sum_to_float(acc[2 * r + v]) * scale[v];
                store(waiting + 32 * r + 16 * v, fma(sum, row_scale, total));
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
                f32x4 factor = scales_at(w[p] + 8 * v) * splat_at(x, ROW_SCALE);
                f32x4 total = load(waiting + 32 * p + 16 * v);
                if (layout == LAYOUT_Q4Z) total = fma(splat_at(x, ROW_SUM), scales_at(w[p] + 16 + 8 * v), total);
                store(waiting + 32 * p + 16 * v, fma(sum_to_float(acc[v]), factor, total));
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
            f32x4 weight_scale = load_at(w, 16 * v), offset = splat(0);
            if (source == UNPACKED_OFFSETS) offset = load_at(w, OFFSETS + 16 * v);
            UNROLL for (int r = 0; r < rows; r++) {
                if (source == UNPACKED_OFFSETS) total[r] = fma(splat_at(x[r], ROW_SUM), offset, total[r]);
                f32x4 factor = weight_scale * splat_at(x[r], ROW_SCALE);
                total[r] = fma(to_float(join(low[r], high[r])), factor, total[r]);
                x[r] += sizeof(RowGroup);
            }
        }
        UNROLL for (int r = 0; r < rows; r++) store(y + r * y_stride + 4 * v, total[r]);
    }
}
#endif

/* ---- Kernels by layout ---- */

typedef struct {
    int layout;
    Tiles *const *packed, *const *unpacked; /* tiles on such weights, if there are, by the number of rows, less 1 */
    Streams *streams;
} Kernel;

INLINE void tile(const int source, const int rows, const Product *g, int row, int panel, float *y, int y_stride) {
    if (source == LAYOUT_Q8) tile_q8(rows, g, row, panel, y, y_stride);
    else tile_grouped(source, rows, g, row, panel, y, y_stride);
}

#define DEFINE_TILE(name, source, rows)                                                                               \
    static NOINLINE void name##_##rows##x1(const Product *g, int row, int panel, int count, float *y, int y_stride) { \
        const Product product = *g; /* which no store can change */                                                   \
        for (; count > 0; count--, row += rows, y += rows * y_stride)                                                 \
            tile(source, rows, &product, row, panel, y, y_stride);                                                    \
    }
#define DEFINE_TILES(name, source)                                                                                    \
    DEFINE_TILE(name, source, 1)                                                                                      \
    DEFINE_TILE(name, source, 2)                                                                                      \
    DEFINE_TILE(name, source, 3)                                                                                      \
    DEFINE_TILE(name, source, 4)                                                                                      \
    DEFINE_TILE(name, source, 5)                                                                                      \
    DEFINE_TILE(name, source, 6)                                                                                      \
    static Tiles *const name[] = {name##_1x1, name##_2x1, name##_3x1, name##_4x1, name##_5x1, name##_6x1};
DEFINE_TILES(q8, LAYOUT_Q8)
DEFINE_TILES(unpacked, UNPACKED)
DEFINE_TILES(unpacked_offsets, UNPACKED_OFFSETS)

#ifdef __wasm_relaxed_simd__
DEFINE_TILES(q8g, LAYOUT_Q8G)
DEFINE_TILES(q4, LAYOUT_Q4)
DEFINE_TILES(q4z, LAYOUT_Q4Z)

static NOINLINE void q8_1x8(const Product *g, int row, int panel, int apart, float *y) {
    streams_q8(g, row, panel, apart, y);
}

#define DEFINE_STREAMS(name, layout)                                                                                  \
    static NOINLINE void name##_1x8(const Product *g, int row, int panel, int apart, float *y) {                      \
        streams_grouped(layout, g, row, panel, apart, y);                                                             \
    }
DEFINE_STREAMS(q8g, LAYOUT_Q8G)
DEFINE_STREAMS(q4, LAYOUT_Q4)
DEFINE_STREAMS(q4z, LAYOUT_Q4Z)

static const Kernel Q8 = {LAYOUT_Q8, q8, 0, q8_1x8}, Q8G = {LAYOUT_Q8G, q8g, unpacked, q8g_1x8};
static const Kernel Q4 = {LAYOUT_Q4, q4, unpacked, q4_1x8}, Q4Z = {LAYOUT_Q4Z, q4z, unpacked_offsets, q4z_1x8};
#else
static const Kernel Q8 = {LAYOUT_Q8, q8, 0, 0}, Q8G = {LAYOUT_Q8G, 0, unpacked, 0};
static const Kernel Q4 = {LAYOUT_Q4, 0, unpacked, 0}, Q4Z = {LAYOUT_Q4Z, 0, unpacked_offsets, 0};
#endif

/* A panel's column of tiles, none much lower than the others. */
static void column(Tiles *const *tiles, const Product *g, int row, int rows, int panel, float *y, int y_stride) {
    int lines = ceil_div(rows, TILE_ROWS), low = rows / lines, higher = rows % lines, first = higher * (low + 1);
    if (higher) tiles[low](g, row, panel, higher, y, y_stride);
    tiles[low - 1](g, row + first, panel, lines - higher, y + first * y_stride, y_stride);
}

static void unpacked_column(const Product *whole, const Kernel *k, int row, int rows, int panel, float *y,
                            int y_stride) {
    Unpacked groups[MAX_GROUPS];
    Product g = *whole;
    g.unpacked = groups;
    for (; g.group < g.x.groups; g.group += g.groups) {
        g.groups = minimum(MAX_GROUPS, g.x.groups - g.group);
        unpack(k->layout, groups, g.w + panel * g.panel_bytes + g.group * group_bytes(k->layout), g.groups);
        column(k->unpacked, &g, row, rows, panel, y, y_stride);
    }
}

static void multiply(const Product *g, const Kernel *k, int row, int rows, int panel, int panels, float *y,
                     int y_stride) {
    int end = panel + panels, unpacking = k->unpacked && (!k->packed || rows >= MANY_ROWS);
    if (rows == 1 && k->streams) {
        int apart = panels / STREAMS;
        for (int p = 0; p < apart; p++) k->streams(g, row, panel + p, apart, y + 8 * p);
        panel += STREAMS * apart;
        y += 8 * STREAMS * apart;
    }
    for (; panel < end; panel++, y += 8) {
        if (unpacking) unpacked_column(g, k, row, rows, panel, y, y_stride);
        else column(k->packed, g, row, rows, panel, y, y_stride);
    }
}

/* The panel that columns end in is computed aside, as its lines would run over the end of the rows of y. */
static void last_panel(const Product *g, const Kernel *k, int row, int rows, int panel, int columns, float *y,
                       int y_stride) {
    float aside[MAX_ROWS * PANEL];
    multiply(g, k, row, rows, panel, 1, aside, PANEL);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) y[r * y_stride + c] = aside[r * PANEL + c];
}

enum { NEAR = 8 }; /* panels after which what was computed for several rows is finished, while it is still near */

static int linear(const Instruction *i, int part, int parts, const Kernel *k) {
    int rows = INT(LINEAR_ROWS), columns = INT(LINEAR_COLUMNS), inner = INT(LINEAR_INNER);
    int activation = INT(LINEAR_ACTIVATION), panels = ceil_div(columns, PANEL);
    int bands = 1;
    while (parts % (2 * bands) == 0 && rows >= 2 * bands * BAND_ROWS) bands *= 2;
    int band = part % bands, last = split(rows, band + 1, bands);
    int begin = first_panel(panels, rows, part / bands, parts / bands);
    int end = first_panel(panels, rows, part / bands + 1, parts / bands);
    const float *bias = INPUT(LINEAR_BIAS), *residual = INPUT(LINEAR_RESIDUAL);
    Product g = {
        activations(ADDRESS(char, LINEAR_X), k->layout, rows, inner), ADDRESS(const char, LINEAR_WEIGHT),
        bias ? bias : ZEROS, panel_bytes(k->layout, inner), bias ? PANEL : 0, 0, 0, 0,
    };
    g.groups = g.x.groups;
    int near = rows == 1 ? panels : NEAR, row_bytes = maximum(g.x.inner * (int)sizeof(Quant), 1);
    int block = minimum(maximum(BLOCK_BYTES / row_bytes / TILE_ROWS * TILE_ROWS, TILE_ROWS), MAX_ROWS);
    for (int row = split(rows, band, bands); row < last; row += block) {
        int count = minimum(block, last - row);
        for (int panel = begin; panel < end; panel += near) {
            int column = panel * PANEL, width = minimum(minimum(panel + near, end) * PANEL, columns) - column;
            int whole = width / PANEL;
            float *y = OUTPUT(LINEAR_Y) + row * columns + column;
            multiply(&g, k, row, count, panel, whole, y, columns);
            if (width % PANEL)
                last_panel(&g, k, row, count, panel + whole, width % PANEL, y + whole * PANEL, columns);
            if (activation != ACT_NONE || residual)
                finish(y, residual ? residual + row * columns + column : 0, count, width, columns, activation);
        }
    }
    return 0;
}

int op_linear_q8(const Instruction *i, int part, int parts) { return linear(i, part, parts, &Q8); }
int op_linear_q8g(const Instruction *i, int part, int parts) { return linear(i, part, parts, &Q8G); }
int op_linear_q4(const Instruction *i, int part, int parts) { return linear(i, part, parts, &Q4); }
int op_linear_q4z(const Instruction *i, int part, int parts) { return linear(i, part, parts, &Q4Z); }
