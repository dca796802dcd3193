#include "gemm.h"

/* `count` tiles of `rows` x (8 * panels) outputs, which live in registers while the inner dimension runs. The first is
   at (row, panel), the others lie below it or beside it. The panels of a tile are `count` apart, as memory delivers
   several distant streams faster than one; so these tiles lie beside each other. */
INLINE void tiles(const int rows, const int panels, const Gemm *g, int row, int panel, int count, int below) {
    const int vectors = 2 * panels, inner = g->inner;
    const int x_stride = 4 * g->x_stride, w_stride = 4 * g->panel_stride, y_stride = 4 * g->y_stride;
    const int init_stride = 4 * g->init_stride;
    const char *next_x = (const char *)g->x + row * x_stride, *next_w = (const char *)g->w + panel * w_stride;
    const char *init = (const char *)g->init + row * init_stride + 32 * panel;
    const int apart = panels > 1 ? count : 0;
    char *y = (char *)g->y + row * y_stride + 32 * panel;

    for (; count > 0; count--) {
        f32x4 acc[12];
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int v = 0; v < vectors; v++) {
                const char *start = init + r * init_stride + v / 2 * 32 * apart + v % 2 * 16;
                acc[r * vectors + v] = g->init ? load(start) : splat(0);
            }
        }

        const char *x[6], *w[4];
        UNROLL for (int r = 0; r < rows; r++) x[r] = next_x + r * x_stride;
        UNROLL for (int p = 0; p < panels; p++) w[p] = next_w + p * apart * w_stride;

#define STEP(q)                                                                                                       \
    do {                                                                                                              \
        if (rows == 1) { /* weights are used once: no need to hold them */                                            \
            f32x4 element = splat_at(x[0], 4 * (q));                                                                  \
            UNROLL for (int v = 0; v < vectors; v++) {                                                                \
                acc[v] = fma(element, load_at(w[v / 2], 32 * (q) + 16 * (v % 2)), acc[v]);                            \
                KEEP(acc[v]);                                                                                         \
            }                                                                                                         \
        } else {                                                                                                      \
            f32x4 weights[8];                                                                                         \
            UNROLL for (int v = 0; v < vectors; v++) weights[v] = load_at(w[v / 2], 32 * (q) + 16 * (v % 2));         \
            UNROLL for (int r = 0; r < rows; r++) {                                                                   \
                f32x4 element = splat_at(x[r], 4 * (q));                                                              \
                UNROLL for (int v = 0; v < vectors; v++) {                                                            \
                    acc[r * vectors + v] = fma(weights[v], element, acc[r * vectors + v]);                            \
                    KEEP(acc[r * vectors + v]);                                                                       \
                }                                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
    } while (0)
#define ADVANCE(count)                                                                                                \
    do {                                                                                                              \
        UNROLL for (int r = 0; r < rows; r++) x[r] += 4 * (count);                                                    \
        UNROLL for (int p = 0; p < panels; p++) w[p] += 32 * (count);                                                 \
    } while (0)

        int left = inner;
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

        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int v = 0; v < vectors; v++)
                store(y + r * y_stride + v / 2 * 32 * apart + v % 2 * 16, acc[r * vectors + v]);
        }
        next_x += below ? rows * x_stride : 0;
        next_w += below ? 0 : w_stride;
        init += below ? rows * init_stride : 32;
        y += below ? rows * y_stride : 32;
    }
}

#define TILES(rows, panels)                                                                                           \
    static NOINLINE void tiles_##rows##x##panels(const Gemm *g, int row, int panel, int count, int below) {           \
        tiles(rows, panels, g, row, panel, count, below);                                                             \
    }
TILES(1, 1) TILES(2, 1) TILES(3, 1) TILES(4, 1) TILES(5, 1) TILES(6, 1)
TILES(1, 4) TILES(2, 2) TILES(3, 2)

static void tiles_of(int rows, const Gemm *g, int row, int panel, int count, int below) {
    switch (rows) {
        case 1: tiles_1x1(g, row, panel, count, below); break;
        case 2: tiles_2x1(g, row, panel, count, below); break;
        case 3: tiles_3x1(g, row, panel, count, below); break;
        case 4: tiles_4x1(g, row, panel, count, below); break;
        case 5: tiles_5x1(g, row, panel, count, below); break;
        default: tiles_6x1(g, row, panel, count, below);
    }
}

/* One line of tiles: no row to spare for hiding latency, so the widest tiles go first. */
static void few_rows(const Gemm *g) {
    int panel = 0, wide = g->panels / 4, double_width = g->panels / 2;
    if (g->rows == 1) {
        tiles_1x4(g, 0, 0, wide, 0);
        panel = 4 * wide;
    } else if (g->rows == 2) {
        tiles_2x2(g, 0, 0, double_width, 0);
        panel = 2 * double_width;
    } else if (g->rows == 3) {
        tiles_3x2(g, 0, 0, double_width, 0);
        panel = 2 * double_width;
    }
    tiles_of(g->rows, g, 0, panel, g->panels - panel, 0);
}

void gemm(const Gemm *g) {
    if (g->rows <= TILE_ROWS) {
        few_rows(g);
        return;
    }
    /* Columns of tiles, none much lower than the others; a panel stays in the first-level cache for its column. */
    int lines = ceil_div(g->rows, TILE_ROWS), low = g->rows / lines, higher = g->rows % lines;
    for (int panel = 0; panel < g->panels; panel++) {
        tiles_of(low + 1, g, 0, panel, higher, 1);
        tiles_of(low, g, higher * (low + 1), panel, lines - higher, 1);
    }
}
