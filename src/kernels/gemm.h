/* y [rows][8 * panels] = init + x [rows][inner] * panels[inner][8], in float32. */
#pragma once

#include "common.h"

typedef struct {
    const float *x;    /* rows, `x_stride` floats apart, each `inner` contiguous floats */
    const float *w;    /* panels [inner][8], `panel_stride` floats apart */
    const float *init; /* what y starts from, rows `init_stride` apart (0: one for all rows); NULL: zero; may be y */
    float *y;          /* rows, `y_stride` floats apart */
    int x_stride, panel_stride, init_stride, y_stride;
    int rows, panels, inner;
} Gemm;

void gemm(const Gemm *g);
