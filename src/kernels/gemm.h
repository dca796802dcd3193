/* y [rows][8 * panels] = init + x [rows][inner] * panels[inner][8], in float32. */
#pragma once

#include "common.h"

enum {
    TILE_ROWS = 6, /* at most; with so few every panel is read once */
    STREAMS = 8,   /* panels at a time for one row, or half as many */
};

typedef struct {
    const float *x;    /* rows, `x_stride` floats apart, each `inner` contiguous floats */
    const float *w;    /* panels [inner][8], `panel_stride` floats apart */
    const float *init; /* what y starts from, rows `init_stride` apart (0: one for all rows); NULL: zero; may be y */
    float *y;          /* rows, `y_stride` floats apart */
    int x_stride, panel_stride, init_stride, y_stride;
    int rows, panels, inner;
} Gemm;

void gemm(const Gemm *g);

/* Where a part begins, in panels. For one row the parts are whole numbers of panels that go together. */
INLINE int first_panel(int panels, int rows, int part, int parts) {
    const int unit = rows == 1 ? STREAMS : 1;
    return minimum(unit * split(ceil_div(panels, unit), part, parts), panels);
}
