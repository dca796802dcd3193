/* Strided batched product of two matrices that are both results: b is packed on the way. */
#include "gemm.h"
#include "pack.h"

enum { BUFFER = 4096, MAX_ROWS = 96 };

typedef struct {
    const float *a, *b;
    float *c;
    int rows, columns, inner, a_row, b_row, b_inner, c_row;
    float alpha;
} Matmul;

/* One panel of columns (`width` of 8) for all rows, in blocks of the inner dimension that fit the buffer. */
static void columns_of_panel(const Matmul *m, int column, int width) {
    float packed[BUFFER], aside[MAX_ROWS * PANEL];
    for (int start = 0; start < m->inner; start += BUFFER / PANEL) {
        int inner = minimum(m->inner - start, BUFFER / PANEL);
        pack_panel(packed, m->b + column * m->b_row + start * m->b_inner, width, inner, m->b_row, m->b_inner, m->alpha);
        for (int row = 0; row < m->rows; row += MAX_ROWS) {
            float *c = m->c + row * m->c_row + column;
            Gemm g = {
                .x = m->a + row * m->a_row + start, .x_stride = m->a_row,
                .w = packed, .y = c, .y_stride = m->c_row,
                .rows = minimum(m->rows - row, MAX_ROWS), .panels = 1, .inner = inner,
            };
            if (width < PANEL) {
                g.y = aside;
                g.y_stride = PANEL;
                for (int r = 0; start && r < g.rows; r++)
                    for (int j = 0; j < width; j++) aside[r * PANEL + j] = c[r * m->c_row + j];
            }
            if (start) {
                g.init = g.y;
                g.init_stride = g.y_stride;
            }
            gemm(&g);
            for (int r = 0; width < PANEL && r < g.rows; r++)
                for (int j = 0; j < width; j++) c[r * m->c_row + j] = aside[r * PANEL + j];
        }
    }
}

int op_matmul(const Instruction *i, int part, int parts) {
    int outer = INT(MATMUL_OUTER), middle = INT(MATMUL_MIDDLE), columns = INT(MATMUL_COLUMNS);
    int panels = ceil_div(columns, PANEL), items = outer * middle * panels, end = split(items, part + 1, parts);
    for (int item = split(items, part, parts); item < end; item++) {
        int o = item / panels / middle, p = item / panels % middle, column = item % panels * PANEL;
        Matmul m = {
            .a = INPUT(MATMUL_A) + o * INT(MATMUL_A_OUTER) + p * INT(MATMUL_A_MIDDLE),
            .b = INPUT(MATMUL_B) + o * INT(MATMUL_B_OUTER) + p * INT(MATMUL_B_MIDDLE),
            .c = OUTPUT(MATMUL_C) + o * INT(MATMUL_C_OUTER) + p * INT(MATMUL_C_MIDDLE),
            .rows = INT(MATMUL_ROWS), .columns = columns, .inner = INT(MATMUL_INNER),
            .a_row = INT(MATMUL_A_ROW), .b_row = INT(MATMUL_B_ROW), .b_inner = INT(MATMUL_B_INNER),
            .c_row = INT(MATMUL_C_ROW), .alpha = FLOAT(MATMUL_ALPHA),
        };
        columns_of_panel(&m, column, minimum(columns - column, PANEL));
    }
    return 0;
}
