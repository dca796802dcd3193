/* Copies of 32-bit elements between strided arrays of 4 dimensions. */
#include "common.h"

static void copy_line(uint32_t *y, const uint32_t *x, int count, int y_step, int x_step) {
    int j = 0;
    if (y_step == 1 && x_step == 1)
        for (; j + 4 <= count; j += 4) store(y + j, load(x + j));
    for (; j < count; j++) y[j * y_step] = x[j * x_step];
}

int op_copy(const Instruction *i, int part, int parts) {
    int d1 = INT(COPY_D1), d2 = INT(COPY_D2), d3 = INT(COPY_D3);
    int lines = INT(COPY_D0) * d1 * d2, end = split(lines, part + 1, parts);
    for (int line = split(lines, part, parts); line < end; line++) {
        int i0 = line / d2 / d1, i1 = line / d2 % d1, i2 = line % d2;
        uint32_t *y = ADDRESS(uint32_t, COPY_Y) + i0 * INT(COPY_Y0) + i1 * INT(COPY_Y1) + i2 * INT(COPY_Y2);
        const uint32_t *x = ADDRESS(const uint32_t, COPY_X) + i0 * INT(COPY_X0) + i1 * INT(COPY_X1) + i2 * INT(COPY_X2);
        copy_line(y, x, d3, INT(COPY_Y3), INT(COPY_X3));
    }
    return 0;
}
