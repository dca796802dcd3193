/* Weights of any layout back to float32. */
#include "convert.h"
#include "layout.h"

static void decode_q8(float *y, const char *panel, int row, int inner) {
    const int8_t *q = (const int8_t *)panel + 4 * row;
    float scale = ((const float *)(panel + 8 * padded_inner(LAYOUT_Q8, inner)))[row];
    for (int k = 0; k < inner; k++) y[k] = scale * q[k / 4 * 32 + k % 4];
}

static void rotate_floats(float y[GROUP_SIZE]) {
    f32x4 v[8];
    UNROLL for (int j = 0; j < 8; j++) v[j] = load(y + 4 * j);
    rotate(v);
    UNROLL for (int j = 0; j < 8; j++) store(y + 4 * j, v[j]);
}

static void decode_grouped(float *y, const char *group, int layout, int row, int inner) {
    const int quants = layout == LAYOUT_Q4Z ? 32 : 16, zero = layout == LAYOUT_Q8G ? 64 : 8;
    for (int first = 0; first < inner; first += GROUP_SIZE, group += group_bytes(layout)) {
        float scale = float16_to_float(((const uint16_t *)group)[row]);
        float offset = layout == LAYOUT_Q4Z ? float16_to_float(((const uint16_t *)group)[8 + row]) : -zero * scale;
        const uint8_t *q = (const uint8_t *)group + quants + 4 * row;
        for (int k = 0; k < minimum(GROUP_SIZE, inner - first); k++) {
            int value = layout == LAYOUT_Q8G ? q[k / 4 * 32 + k % 4] : q[k / 8 * 32 + k % 4] >> k % 8 / 4 * 4 & 15;
            y[first + k] = scale * value + offset;
        }
        if (is_rotated(layout, first / GROUP_SIZE, inner)) rotate_floats(y + first);
    }
}

void decode_row(float *y, const char *panel, int layout, int row, int inner) {
    switch (layout) {
        case LAYOUT_PANELS:
            for (int k = 0; k < inner; k++) y[k] = ((const float *)panel)[8 * k + row];
            break;
        case LAYOUT_F16:
            for (int k = 0; k < inner; k++) y[k] = float16_to_float(((const uint16_t *)panel)[8 * k + row]);
            break;
        case LAYOUT_Q8: decode_q8(y, panel, row, inner); break;
        default: decode_grouped(y, panel, layout, row, inner);
    }
}

int op_unpack(const Instruction *i, int part, int parts) {
    int rows = INT(UNPACK_ROWS), inner = INT(UNPACK_INNER), layout = INT(UNPACK_LAYOUT);
    int end = split(rows, part + 1, parts), size = panel_bytes(layout, inner);
    for (int r = split(rows, part, parts); r < end; r++)
        decode_row(OUTPUT(UNPACK_Y) + r * inner, ADDRESS(const char, UNPACK_X) + r / PANEL * size, layout, r % PANEL, inner);
    return 0;
}
