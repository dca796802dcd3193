/* y = activation(x W^T + bias) + residual with quantised weights. The operands are those of `linear`, x the result of
   `quantize_rows`. Tiles of up to 6 rows x 8 columns of integer sums live in registers. */
#include "elementwise.h"
#include "linear_grouped.h"
#include "linear_q8.h"

enum {
    BLOCK_BYTES = 192 * 1024, /* rows of x that stay in the second-level cache while all panels pass */
    MAX_ROWS = 128,
    BAND_ROWS = 48,  /* at least, of a part of many rows: fewer lines of y where parts meet, which threads wait for */
    MANY_ROWS = 20,  /* from which on it pays to unpack a panel before */
    MAX_GROUPS = 48, /* whose quants stay in the first-level cache, unpacked, while the rows pass */
};

static const float ZEROS[PANEL];

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
