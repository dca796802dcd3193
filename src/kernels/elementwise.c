#include "elementwise.h"

#include "math.h"

enum { SIDE = 4 }; /* vectors at a time */

#define FOR_VECTORS(j, count) for (int j = 0; j < (count); j += 4)

void activate(float *y, const float *x, int count, int activation) {
    const Exp2 k = exp2_constants();
    switch (activation) {
        case ACT_GELU: {
            const Gelu g = gelu_constants();
            int j = 0;
            for (; j + 4 * SIDE <= count; j += 4 * SIDE) {
                f32x4 v[SIDE];
                UNROLL for (int n = 0; n < SIDE; n++) v[n] = load(x + j + 4 * n);
                vecs_gelu(v, SIDE, &g, &k);
                UNROLL for (int n = 0; n < SIDE; n++) store(y + j + 4 * n, v[n]);
            }
            for (; j < count; j += 4) {
                f32x4 v = load_some(x + j, count - j);
                vecs_gelu(&v, 1, &g, &k);
                store_some(y + j, v, count - j);
            }
            break;
        }
        case ACT_GELU_TANH: { /* 0.5 (1 + tanh(u)) = 1 / (1 + e^-2u) */
            f32x4 linear = splat(-2 * LOG2E * 0.79788456f), cubic = splat(-2 * LOG2E * 0.79788456f * 0.044715f);
            KEEP(linear);
            KEEP(cubic);
            FOR_VECTORS(j, count) {
                f32x4 v = load_some(x + j, count - j);
                store_some(y + j, v * logistic2(v * fma(v * v, cubic, linear), &k), count - j);
            }
            break;
        }
        case ACT_RELU: {
            f32x4 zero = splat(0);
            FOR_VECTORS(j, count) store_some(y + j, vec_max(load_some(x + j, count - j), zero), count - j);
            break;
        }
        case ACT_SILU: {
            f32x4 scale = splat(-LOG2E);
            KEEP(scale);
            FOR_VECTORS(j, count) {
                f32x4 v = load_some(x + j, count - j);
                store_some(y + j, v * logistic2(v * scale, &k), count - j);
            }
            break;
        }
        case ACT_TANH: { /* 1 - 2 / (1 + e^2x) */
            f32x4 scale = splat(2 * LOG2E), two = splat(2);
            KEEP(scale);
            KEEP(two);
            FOR_VECTORS(j, count) {
                f32x4 v = load_some(x + j, count - j);
                store_some(y + j, k.one - two * logistic2(v * scale, &k), count - j);
            }
            break;
        }
        case ACT_SIGMOID: {
            f32x4 scale = splat(-LOG2E);
            KEEP(scale);
            FOR_VECTORS(j, count) {
                store_some(y + j, logistic2(load_some(x + j, count - j) * scale, &k), count - j);
            }
            break;
        }
        default:
            FOR_VECTORS(j, count) store_some(y + j, load_some(x + j, count - j), count - j);
    }
}

void finish(float *y, const float *residual, int rows, int columns, int stride, int activation) {
    for (int r = 0; r < rows; r++, y += stride) {
        if (activation != ACT_NONE) activate(y, y, columns, activation);
        if (!residual) continue;
        for (int j = 0; j < columns; j += 4)
            store_some(y + j, load_some(y + j, columns - j) + load_some(residual + j, columns - j), columns - j);
        residual += stride;
    }
}

int op_activation(const Instruction *i, int part, int parts) {
    int count = INT(ACTIVATION_COUNT), begin = split(count, part, parts), end = split(count, part + 1, parts);
    activate(OUTPUT(ACTIVATION_Y) + begin, INPUT(ACTIVATION_X) + begin, end - begin, INT(ACTIVATION_ACTIVATION));
    return 0;
}

INLINE f32x4 combine(f32x4 a, f32x4 b, const int operation) {
    switch (operation) {
        case BINARY_ADD: return a + b;
        case BINARY_SUBTRACT: return a - b;
        case BINARY_MULTIPLY: return a * b;
        default: return a / b;
    }
}

INLINE void combine_rows(float *y, const float *a, const float *b, int rows, int columns, const int operation) {
    for (int r = 0; r < rows; r++, y += columns, a += columns) {
        FOR_VECTORS(j, columns) {
            f32x4 left = load_some(a + j, columns - j), right = load_some(b + j, columns - j);
            store_some(y + j, combine(left, right, operation), columns - j);
        }
    }
}

/* b of one element goes with every one of a. */
INLINE void combine_scalar(float *y, const float *a, float b, int count, const int operation) {
    f32x4 right = splat(b);
    FOR_VECTORS(j, count) store_some(y + j, combine(load_some(a + j, count - j), right, operation), count - j);
}

INLINE void binary(const Instruction *i, int part, int parts, const int operation) {
    int count = INT(BINARY_COUNT), columns = INT(BINARY_B_COUNT), rows = columns ? count / columns : 0;
    float *y = OUTPUT(BINARY_Y);
    const float *a = INPUT(BINARY_A), *b = INPUT(BINARY_B);
    if (columns == 1) {
        int begin = split(count, part, parts), end = split(count, part + 1, parts);
        combine_scalar(y + begin, a + begin, *b, end - begin, operation);
    } else if (rows == 1) {
        int begin = split(count, part, parts), end = split(count, part + 1, parts);
        combine_rows(y + begin, a + begin, b + begin, 1, end - begin, operation);
    } else {
        int begin = split(rows, part, parts), end = split(rows, part + 1, parts);
        combine_rows(y + begin * columns, a + begin * columns, b, end - begin, columns, operation);
    }
}

int op_binary(const Instruction *i, int part, int parts) {
    switch (INT(BINARY_OPERATION)) {
        case BINARY_ADD: binary(i, part, parts, BINARY_ADD); return 0;
        case BINARY_SUBTRACT: binary(i, part, parts, BINARY_SUBTRACT); return 0;
        case BINARY_MULTIPLY: binary(i, part, parts, BINARY_MULTIPLY); return 0;
        case BINARY_DIVIDE: binary(i, part, parts, BINARY_DIVIDE); return 0;
        default: return 1;
    }
}

int op_fill(const Instruction *i, int part, int parts) {
    int count = INT(FILL_COUNT), begin = split(count, part, parts), end = split(count, part + 1, parts);
    float *y = OUTPUT(FILL_Y) + begin;
    f32x4 value = splat(FLOAT(FILL_VALUE));
    FOR_VECTORS(j, end - begin) store_some(y + j, value, end - begin - j);
    return 0;
}

/* activation(gate) * up. */
int op_gated(const Instruction *i, int part, int parts) {
    int rows = INT(GATED_ROWS), columns = INT(GATED_COLUMNS), first = 0, last = columns, begin = 0, end = rows;
    if (rows == 1) { /* the row itself is cut */
        first = split(columns, part, parts);
        last = split(columns, part + 1, parts);
    } else {
        begin = split(rows, part, parts);
        end = split(rows, part + 1, parts);
    }
    for (int r = begin; r < end; r++) {
        float *y = OUTPUT(GATED_Y) + r * columns;
        const float *gate = INPUT(GATED_GATE) + r * INT(GATED_GATE_STRIDE);
        const float *up = INPUT(GATED_UP) + r * INT(GATED_UP_STRIDE);
        activate(y + first, gate + first, last - first, INT(GATED_ACTIVATION));
        for (int j = first; j < last; j += 4)
            store_some(y + j, load_some(y + j, last - j) * load_some(up + j, last - j), last - j);
    }
    return 0;
}
