#include "gemm.h"

/* A tile of `rows` x (8 * panels) outputs lives in registers while the inner dimension runs. */
INLINE void tile(const int rows, const int panels, const Gemm *g, int row, int panel) {
    const int vectors = 2 * panels;
    f32x4 acc[12];
    const float *init = g->init + row * g->init_stride + 8 * panel;
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vectors; v++) {
            acc[r * vectors + v] = g->init ? load(init + r * g->init_stride + 4 * v) : splat(0);
        }
    }

    const char *x[6], *w[4];
    UNROLL for (int r = 0; r < rows; r++) x[r] = (const char *)(g->x + (row + r) * g->x_stride);
    UNROLL for (int p = 0; p < panels; p++) w[p] = (const char *)(g->w + (panel + p) * g->panel_stride);

#define STEP(q)                                                                                                           \
    do {                                                                                                                  \
        if (rows == 1) { /* weights are used once: no need to hold them */                                                \
            f32x4 element = splat_at(x[0], 4 * (q));                                                                      \
            UNROLL for (int v = 0; v < vectors; v++) {                                                                    \
                acc[v] = fma(element, load_at(w[v / 2], 32 * (q) + 16 * (v % 2)), acc[v]);                                \
                KEEP(acc[v]);                                                                                             \
            }                                                                                                             \
        } else {                                                                                                          \
            f32x4 weights[8];                                                                                             \
            UNROLL for (int v = 0; v < vectors; v++) weights[v] = load_at(w[v / 2], 32 * (q) + 16 * (v % 2));             \
            UNROLL for (int r = 0; r < rows; r++) {                                                                       \
                f32x4 element = splat_at(x[r], 4 * (q));                                                                  \
                UNROLL for (int v = 0; v < vectors; v++) {                                                                \
                    acc[r * vectors + v] = fma(weights[v], element, acc[r * vectors + v]);                                \
                    KEEP(acc[r * vectors + v]);                                                                           \
                }                                                                                                         \
            }                                                                                                             \
        }                                                                                                                 \
    } while (0)
#define ADVANCE(count)                                                                                                    \
    do {                                                                                                                  \
        UNROLL for (int r = 0; r < rows; r++) x[r] += 4 * (count);                                                        \
        UNROLL for (int p = 0; p < panels; p++) w[p] += 32 * (count);                                                     \
    } while (0)

    int left = g->inner;
    for (; left >= 4; left -= 4) {
        STEP(0);
        STEP(1);
        STEP(2);
        STEP(3);
        ADVANCE(4);
    }
    for (; left > 0; left--) {
        STEP(0);
        ADVANCE(1);
    }
#undef STEP
#undef ADVANCE

    float *y = g->y + row * g->y_stride + 8 * panel;
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int v = 0; v < vectors; v++) store(y + r * g->y_stride + 4 * v, acc[r * vectors + v]);
    }
}

#define TILE(rows, panels)                                                                                                \
    static NOINLINE void tile_##rows##x##panels(const Gemm *g, int row, int panel) { tile(rows, panels, g, row, panel); }
TILE(1, 1) TILE(2, 1) TILE(3, 1) TILE(4, 1) TILE(5, 1) TILE(6, 1)
TILE(1, 4) TILE(2, 2) TILE(3, 2)

/* Rows in tiles of at most 6, none much smaller than the others. */
static void all_rows(const Gemm *g, int panel) {
    for (int row = 0; row < g->rows;) {
        int left = g->rows - row, rows = ceil_div(left, ceil_div(left, 6));
        switch (rows) {
            case 1: tile_1x1(g, row, panel); break;
            case 2: tile_2x1(g, row, panel); break;
            case 3: tile_3x1(g, row, panel); break;
            case 4: tile_4x1(g, row, panel); break;
            case 5: tile_5x1(g, row, panel); break;
            default: tile_6x1(g, row, panel);
        }
        row += rows;
    }
}

void gemm(const Gemm *g) {
    int panel = 0;
    if (g->rows == 1)
        for (; panel + 4 <= g->panels; panel += 4) tile_1x4(g, 0, panel);
    else if (g->rows == 2)
        for (; panel + 2 <= g->panels; panel += 2) tile_2x2(g, 0, panel);
    else if (g->rows == 3)
        for (; panel + 2 <= g->panels; panel += 2) tile_3x2(g, 0, panel);
    for (; panel < g->panels; panel++) all_rows(g, panel);
}
