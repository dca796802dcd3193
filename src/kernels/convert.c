/* Between element types. To a float: nearest even. To an integer: towards zero, saturated, NaN gives 0. */
#include "convert.h"

#include "half.h"

int dtype_size(int dtype) {
    switch (dtype) {
        case DTYPE_FLOAT64: case DTYPE_INT64: return 8;
        case DTYPE_FLOAT32: case DTYPE_INT32: return 4;
        case DTYPE_FLOAT16: case DTYPE_BFLOAT16: case DTYPE_INT16: return 2;
        case DTYPE_INT8: case DTYPE_UINT8: case DTYPE_BOOL: return 1;
        default: return 0;
    }
}

static int is_float(int dtype) {
    return dtype == DTYPE_FLOAT32 || dtype == DTYPE_FLOAT16 || dtype == DTYPE_BFLOAT16 || dtype == DTYPE_FLOAT64;
}

static double read_float(const void *x, int dtype, int index) {
    switch (dtype) {
        case DTYPE_FLOAT32: return ((const float *)x)[index];
        case DTYPE_FLOAT16: return float16_to_float(((const uint16_t *)x)[index]);
        case DTYPE_BFLOAT16: return bfloat16_to_float(((const uint16_t *)x)[index]);
        default: return ((const double *)x)[index];
    }
}

static int64_t read_integer(const void *x, int dtype, int index) {
    switch (dtype) {
        case DTYPE_INT64: return ((const int64_t *)x)[index];
        case DTYPE_INT32: return ((const int32_t *)x)[index];
        case DTYPE_INT16: return ((const int16_t *)x)[index];
        case DTYPE_INT8: return ((const int8_t *)x)[index];
        default: return ((const uint8_t *)x)[index];
    }
}

float convert_to_float(const void *x, int dtype, int index) {
    return is_float(dtype) ? (float)read_float(x, dtype, index) : (float)read_integer(x, dtype, index);
}

static void write_float(void *y, int dtype, int index, double value) {
    switch (dtype) {
        case DTYPE_FLOAT32: ((float *)y)[index] = (float)value; break;
        case DTYPE_FLOAT16: ((uint16_t *)y)[index] = double_to_float16(value); break;
        case DTYPE_BFLOAT16: ((uint16_t *)y)[index] = float_to_bfloat16((float)value); break;
        default: ((double *)y)[index] = value;
    }
}

INLINE int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

static void write_integer(void *y, int dtype, int index, int64_t value) {
    switch (dtype) {
        case DTYPE_INT64: ((int64_t *)y)[index] = value; break;
        case DTYPE_INT32: ((int32_t *)y)[index] = (int32_t)clamp(value, INT32_MIN, INT32_MAX); break;
        case DTYPE_INT16: ((int16_t *)y)[index] = (int16_t)clamp(value, INT16_MIN, INT16_MAX); break;
        case DTYPE_INT8: ((int8_t *)y)[index] = (int8_t)clamp(value, INT8_MIN, INT8_MAX); break;
        default: ((uint8_t *)y)[index] = (uint8_t)clamp(value, 0, UINT8_MAX);
    }
}

static void convert_any(void *y, const void *x, int begin, int end, int source, int target) {
    for (int j = begin; j < end; j++) {
        if (target == DTYPE_BOOL)
            ((uint8_t *)y)[j] = is_float(source) ? read_float(x, source, j) != 0 : read_integer(x, source, j) != 0;
        else if (is_float(source) && is_float(target))
            write_float(y, target, j, read_float(x, source, j));
        else if (is_float(source))
            write_integer(y, target, j, __builtin_wasm_trunc_saturate_s_i64_f64(read_float(x, source, j)));
        else if (target == DTYPE_FLOAT32)
            ((float *)y)[j] = convert_to_float(x, source, j);
        else if (is_float(target))
            write_float(y, target, j, (double)read_integer(x, source, j));
        else
            write_integer(y, target, j, read_integer(x, source, j));
    }
}

int op_convert(const Instruction *i, int part, int parts) {
    int count = INT(CONVERT_COUNT), source = INT(CONVERT_SOURCE), target = INT(CONVERT_TARGET);
    void *y = ADDRESS(void, CONVERT_Y);
    const void *x = ADDRESS(const void, CONVERT_X);
    if (!dtype_size(source) || !dtype_size(target)) return 1;
    const Float16 k = float16_constants();
    int j = split(count, part, parts), end = split(count, part + 1, parts);
    if (target == DTYPE_FLOAT32) { /* the load path of checkpoints; what is left over is converted below */
        if (source == DTYPE_FLOAT32)
            for (; j + 4 <= end; j += 4) store((float *)y + j, load((const float *)x + j));
        else if (source == DTYPE_FLOAT16)
            for (; j + 4 <= end; j += 4) store((float *)y + j, float16_load((const uint16_t *)x + j, &k));
        else if (source == DTYPE_BFLOAT16)
            for (; j + 4 <= end; j += 4) store((float *)y + j, bfloat16_load((const uint16_t *)x + j));
    }
    convert_any(y, x, j, end, source, target);
    return 0;
}
