/* y = activation(x W^T + bias) + residual, with W [columns][inner] in panels. */
#include "elementwise.h"
#include "gemm.h"

enum {
    MAX_INNER = 768, /* of a step: a panel's part stays in the first-level cache while rows pass */
    MAX_ROWS = 192,  /* of a block: its part of x stays in the second-level cache while a group of panels passes */
    NEAR = 8,        /* panels after which what was computed is finished, while it is still near */
};

/* The product in steps along the inner dimension. */
static void product(const Gemm *whole) {
    Gemm g = *whole;
    if (g.rows <= TILE_ROWS) {
        gemm(&g);
        return;
    }
    int size = round_up(ceil_div(g.inner, ceil_div(g.inner, MAX_INNER)), 4);
    for (int left = whole->inner; left > 0; left -= size) {
        g.inner = minimum(left, size);
        gemm(&g);
        g.x += size;
        g.w += PANEL * size;
        g.init = g.y;
        g.init_stride = g.y_stride;
    }
}

/* The panel that columns end in is computed aside, as its lines would run over the end of the rows of y. */
static void last_panel(const Gemm *full, const float *bias, int columns) {
    float y[MAX_ROWS * PANEL], start[PANEL] = {0};
    for (int c = 0; bias && c < columns; c++) start[c] = bias[c];
    Gemm g = *full;
    g.init = start;
    g.init_stride = 0;
    g.y = y;
    g.y_stride = PANEL;
    g.panels = 1;
    product(&g);
    for (int r = 0; r < g.rows; r++)
        for (int c = 0; c < columns; c++) full->y[r * full->y_stride + c] = y[r * PANEL + c];
}

int op_linear(const Instruction *i, int part, int parts) {
    int rows = INT(LINEAR_ROWS), columns = INT(LINEAR_COLUMNS), inner = INT(LINEAR_INNER);
    int activation = INT(LINEAR_ACTIVATION), panels = ceil_div(columns, PANEL);
    int begin = first_panel(panels, rows, part, parts), end = first_panel(panels, rows, part + 1, parts);
    int near = rows <= TILE_ROWS ? panels : NEAR;
    const float *bias = INPUT(LINEAR_BIAS), *residual = INPUT(LINEAR_RESIDUAL);
    for (int row = 0; row < rows; row += MAX_ROWS) {
        for (int panel = begin; panel < end; panel += near) {
            int column = panel * PANEL, width = minimum(minimum(panel + near, end) * PANEL, columns) - column;
            int whole = width / PANEL;
            float *y = OUTPUT(LINEAR_Y) + row * columns + column;
            Gemm g = {
                .x = INPUT(LINEAR_X) + row * inner, .x_stride = inner,
                .w = INPUT(LINEAR_WEIGHT) + panel * PANEL * inner, .panel_stride = PANEL * inner,
                .init = bias ? bias + column : 0, .init_stride = 0,
                .y = y, .y_stride = columns,
                .rows = minimum(MAX_ROWS, rows - row), .panels = whole, .inner = inner,
            };
            product(&g);
            if (width % PANEL) {
                Gemm tail = g;
                tail.w += whole * g.panel_stride;
                tail.y += whole * PANEL;
                last_panel(&tail, bias ? bias + column + whole * PANEL : 0, width % PANEL);
            }
            if (activation != ACT_NONE || residual)
                finish(y, residual ? residual + row * columns + column : 0, g.rows, width, columns, activation);
        }
    }
    return 0;
}
