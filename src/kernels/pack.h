#pragma once

/* One panel y [inner][8] = scale * x, where element (r, c) of x is at r * row_stride + c * column_stride; columns of
   the panel from `rows` (1 .. 8) on are zero. */
void pack_panel(float *y, const float *x, int rows, int inner, int row_stride, int column_stride, float scale);
