#pragma once

#include "common.h"

/* Bytes of an element of a dtype of the op table; 0 when there is no such dtype. */
int dtype_size(int dtype);

/* Element `index` of an array of any dtype. */
float convert_to_float(const void *x, int dtype, int index);
