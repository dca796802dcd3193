#pragma once

/* y [count] = activation(x [count]); y may be x. */
void activate(float *y, const float *x, int count, int activation);

/* The end of a linear: y [rows][columns], rows `stride` apart, becomes activation(y) + residual (NULL: none). */
void finish(float *y, const float *residual, int rows, int columns, int stride, int activation);
