/* To panels [ceil(rows / 8)][inner][8] and back. */
#include "pack.h"

#include "convert.h"
#include "half.h"

/* Rows stay in place: 8 contiguous elements become one line of the panel. One set of functions per element type. */
#define DEFINE_PACK(name, type, prepare, load4, load1)                                                                \
    static void name##_lines(float *y, const type *x, int inner, int column_stride, f32x4 scale) {                    \
        prepare                                                                                                       \
        for (int c = 0; c < inner; c++, x += column_stride, y += 8) {                                                 \
            store(y, load4(x) * scale);                                                                               \
            store(y + 4, load4(x + 4) * scale);                                                                       \
        }                                                                                                             \
    }                                                                                                                 \
                                                                                                                      \
    static void name##_transpose(float *y, const type *x, int inner, int row_stride, f32x4 scale) {                   \
        prepare                                                                                                       \
        int c = 0;                                                                                                    \
        for (; c + 4 <= inner; c += 4) {                                                                              \
            f32x4 low[4], high[4];                                                                                    \
            UNROLL for (int r = 0; r < 4; r++) {                                                                      \
                low[r] = load4(x + r * row_stride + c) * scale;                                                       \
                high[r] = load4(x + (4 + r) * row_stride + c) * scale;                                                \
            }                                                                                                         \
            transpose4(low);                                                                                          \
            transpose4(high);                                                                                         \
            UNROLL for (int j = 0; j < 4; j++) {                                                                      \
                store(y + 8 * (c + j), low[j]);                                                                       \
                store(y + 8 * (c + j) + 4, high[j]);                                                                  \
            }                                                                                                         \
        }                                                                                                             \
        for (; c < inner; c++)                                                                                        \
            for (int r = 0; r < 8; r++) y[8 * c + r] = load1(x[r * row_stride + c]) * scale[0];                       \
    }                                                                                                                 \
                                                                                                                      \
    static void name(float *y, const type *x, int rows, int inner, int row_stride, int column_stride, float scale) {  \
        if (rows == 8 && column_stride == 1) {                                                                        \
            name##_transpose(y, x, inner, row_stride, splat(scale));                                                  \
        } else if (rows == 8 && row_stride == 1) {                                                                    \
            name##_lines(y, x, inner, column_stride, splat(scale));                                                   \
        } else {                                                                                                      \
            for (int c = 0; c < inner; c++)                                                                           \
                for (int r = 0; r < 8; r++)                                                                           \
                    y[8 * c + r] = r < rows ? load1(x[r * row_stride + c * column_stride]) * scale : 0;               \
        }                                                                                                             \
    }

#define NOTHING
#define FLOAT32(x) (x)
DEFINE_PACK(pack_float32, float, NOTHING, load, FLOAT32)
#define FLOAT16_CONSTANTS const Float16 k = float16_constants();
#define FLOAT16_LOAD(p) float16_load(p, &k)
DEFINE_PACK(pack_float16, uint16_t, FLOAT16_CONSTANTS, FLOAT16_LOAD, float16_to_float)
DEFINE_PACK(pack_bfloat16, uint16_t, NOTHING, bfloat16_load, bfloat16_to_float)

void pack_panel(float *y, const float *x, int rows, int inner, int row_stride, int column_stride, float scale) {
    pack_float32(y, x, rows, inner, row_stride, column_stride, scale);
}

static void pack_any(float *y, const char *x, int dtype, int rows, int inner, int row_stride, int column_stride) {
    for (int c = 0; c < inner; c++)
        for (int r = 0; r < 8; r++)
            y[8 * c + r] = r < rows ? convert_to_float(x, dtype, r * row_stride + c * column_stride) : 0;
}

int op_pack(const Instruction *i, int part, int parts) {
    int rows = INT(PACK_ROWS), inner = INT(PACK_INNER), source = INT(PACK_SOURCE), size = dtype_size(source);
    int row_stride = INT(PACK_ROW_STRIDE), column_stride = INT(PACK_COLUMN_STRIDE);
    if (!size) return 1;
    int panels = ceil_div(rows, PANEL), end = split(panels, part + 1, parts);
    for (int panel = split(panels, part, parts); panel < end; panel++) {
        float *y = OUTPUT(PACK_Y) + panel * PANEL * inner;
        const char *x = ADDRESS(const char, PACK_X) + panel * PANEL * row_stride * size;
        int count = minimum(rows - panel * PANEL, PANEL);
        switch (source) {
            case DTYPE_FLOAT32: pack_float32(y, (const float *)x, count, inner, row_stride, column_stride, 1); break;
            case DTYPE_FLOAT16: pack_float16(y, (const uint16_t *)x, count, inner, row_stride, column_stride, 1); break;
            case DTYPE_BFLOAT16:
                pack_bfloat16(y, (const uint16_t *)x, count, inner, row_stride, column_stride, 1);
                break;
            default: pack_any(y, x, source, count, inner, row_stride, column_stride);
        }
    }
    return 0;
}

