/* Rotary position embeddings. */
#include "math.h"

/* y [count][2][half]: cosines and sines of position * frequency, times scale. The angle is rounded to float32, as the
   models were trained with. */
int op_rotary_tables(const Instruction *i, int part, int parts) {
    int half = INT(ROTARY_TABLES_HALF), count = INT(ROTARY_TABLES_COUNT), end = split(count, part + 1, parts);
    const float *frequencies = INPUT(ROTARY_TABLES_FREQUENCIES);
    double scale = FLOAT(ROTARY_TABLES_SCALE), cosine, sine;
    for (int n = split(count, part, parts); n < end; n++) {
        float *y = OUTPUT(ROTARY_TABLES_Y) + 2 * half * n;
        float position = (float)ADDRESS(const int32_t, ROTARY_TABLES_POSITIONS)[n];
        for (int j = 0; j < half; j++) {
            float angle = position * frequencies[j];
            double turns = angle * 0.15915494309189535;
            circle(turns - __builtin_floor(turns), &cosine, &sine);
            y[j] = (float)(cosine * scale);
            y[half + j] = (float)(sine * scale);
        }
    }
    return 0;
}

/* Element j goes with element half + j. */
static void rotate_halves(float *y, const float *x, const float *cosines, const float *sines, int half) {
    for (int j = 0; j < half; j += 4) {
        int left = half - j;
        f32x4 c = load_some(cosines + j, left), s = load_some(sines + j, left);
        f32x4 a = load_some(x + j, left), b = load_some(x + half + j, left);
        store_some(y + j, a * c - b * s, left);
        store_some(y + half + j, b * c + a * s, left);
    }
}

/* Element 2 j goes with element 2 j + 1. */
static void rotate_pairs(float *y, const float *x, const float *cosines, const float *sines, int half) {
    for (int j = 0; j < half; j++) {
        float a = x[2 * j], b = x[2 * j + 1];
        y[2 * j] = a * cosines[j] - b * sines[j];
        y[2 * j + 1] = b * cosines[j] + a * sines[j];
    }
}

int op_rope(const Instruction *i, int part, int parts) {
    int rows = INT(ROPE_ROWS), heads = INT(ROPE_HEADS), dim = INT(ROPE_HEAD_DIM), half = INT(ROPE_HALF);
    int end = split(rows, part + 1, parts), pairs = INT(ROPE_INTERLEAVED);
    if (2 * half > dim) return 1;
    for (int r = split(rows, part, parts); r < end; r++) {
        const float *cosines = INPUT(ROPE_TABLES) + 2 * half * r, *sines = cosines + half;
        for (int h = 0; h < heads; h++) {
            const float *x = INPUT(ROPE_X) + (r * heads + h) * dim;
            float *y = OUTPUT(ROPE_Y) + (r * heads + h) * dim;
            if (pairs) rotate_pairs(y, x, cosines, sines, half);
            else rotate_halves(y, x, cosines, sines, half);
            for (int j = 2 * half; j < dim; j += 4) store_some(y + j, load_some(x + j, dim - j), dim - j);
        }
    }
    return 0;
}
