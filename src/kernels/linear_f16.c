/* `linear` with float16 weights: panels are widened piece by piece and multiplied by the float32 kernel. */
#include "elementwise.h"
#include "gemm.h"
#include "layout.h"

enum {
    PIECE = 512,  /* of the inner dimension, widened at a time */
    MAX_ROWS = 96, /* of x that stay in the second-level cache while a piece passes */
};

static void widen(float *w, const uint16_t *half, int count) {
    Float16 k = float16_constants();
    for (int j = 0; j < count; j += 4) store(w + j, float16_load(half + j, &k));
}

/* One panel for a block of rows, into y [rows][8] that holds the start values. */
static void multiply(float *y, const float *x, const uint16_t *panel, int rows, int inner) {
    float w[PIECE * PANEL];
    for (int first = 0; first < inner; first += PIECE) {
        int count = minimum(PIECE, inner - first);
        widen(w, panel + PANEL * first, PANEL * count);
        Gemm g = {
            .x = x + first, .x_stride = inner, .w = w, .panel_stride = PANEL * count,
            .init = y, .init_stride = PANEL, .y = y, .y_stride = PANEL,
            .rows = rows, .panels = 1, .inner = count,
        };
        gemm(&g);
    }
}

int op_linear_f16(const Instruction *i, int part, int parts) {
    int rows = INT(LINEAR_F16_ROWS), columns = INT(LINEAR_F16_COLUMNS), inner = INT(LINEAR_F16_INNER);
    int activation = INT(LINEAR_F16_ACTIVATION), panels = ceil_div(columns, PANEL), end = split(panels, part + 1, parts);
    const float *bias = INPUT(LINEAR_F16_BIAS), *residual = INPUT(LINEAR_F16_RESIDUAL);
    float block[MAX_ROWS * PANEL];
    for (int row = 0; row < rows; row += MAX_ROWS) {
        int count = minimum(MAX_ROWS, rows - row);
        for (int panel = split(panels, part, parts); panel < end; panel++) {
            int column = panel * PANEL, width = minimum(PANEL, columns - column);
            for (int r = 0; r < count; r++)
                for (int c = 0; c < PANEL; c++) block[r * PANEL + c] = bias && c < width ? bias[column + c] : 0;
            const uint16_t *w = ADDRESS(const uint16_t, LINEAR_F16_WEIGHT) + column * inner;
            multiply(block, INPUT(LINEAR_F16_X) + row * inner, w, count, inner);
            if (activation != ACT_NONE) activate(block, block, count * PANEL, activation);
            for (int r = 0; r < count; r++) {
                int at = (row + r) * columns + column;
                for (int c = 0; c < width; c++)
                    OUTPUT(LINEAR_F16_Y)[at + c] = block[r * PANEL + c] + (residual ? residual[at + c] : 0);
            }
        }
    }
    return 0;
}
