#pragma once

/* y [count] = activation(x [count]); y may be x. */
void activate(float *y, const float *x, int count, int activation);
