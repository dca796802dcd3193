#pragma once

#include "common.h"

typedef struct {
    float *values;
    int32_t *indices;
} Heap;

/* The k largest of x [columns], largest first and of equal ones the lower index, with their indices. */
void select_largest(Heap *h, const float *x, int columns, int k);
