/* One vector for a sequence of vectors. */
#include "common.h"

typedef struct {
    const float *x;      /* [length][dim] */
    const int32_t *mask; /* [length], or NULL: all positions count */
    int length, dim;
} Sequence;

static int counts(const Sequence *s, int position) { return !s->mask || s->mask[position]; }

static void mean(float *y, const Sequence *s) {
    int count = 0;
    for (int p = 0; p < s->length; p++) count += counts(s, p);
    f32x4 divisor = splat(count ? (float)count : 1e-9f);
    for (int j = 0; j < s->dim; j += 4) {
        f32x4 sum = splat(0);
        for (int p = 0; p < s->length; p++)
            if (counts(s, p)) sum += load_some(s->x + p * s->dim + j, s->dim - j);
        store_some(y + j, sum / divisor, s->dim - j);
    }
}

static void highest(float *y, const Sequence *s) {
    for (int j = 0; j < s->dim; j += 4) {
        f32x4 v = splat(LOWEST);
        for (int p = 0; p < s->length; p++)
            if (counts(s, p)) v = vec_max(load_some(s->x + p * s->dim + j, s->dim - j), v);
        store_some(y + j, v, s->dim - j);
    }
}

static void take(float *y, const Sequence *s, int position) {
    const float *x = s->x + position * s->dim;
    for (int j = 0; j < s->dim; j += 4) store_some(y + j, load_some(x + j, s->dim - j), s->dim - j);
}

static int last_position(const Sequence *s) {
    int position = s->length - 1;
    while (position > 0 && !counts(s, position)) position--;
    return position;
}

int op_pool(const Instruction *i, int part, int parts) {
    int batch = INT(POOL_BATCH), length = INT(POOL_LENGTH), dim = INT(POOL_DIM), end = split(batch, part + 1, parts);
    const int32_t *mask = ADDRESS(const int32_t, POOL_MASK);
    for (int b = split(batch, part, parts); b < end; b++) {
        Sequence s = {INPUT(POOL_X) + b * length * dim, mask ? mask + b * length : 0, length, dim};
        float *y = OUTPUT(POOL_Y) + b * dim;
        switch (INT(POOL_POOLING)) {
            case POOL_MEAN: mean(y, &s); break;
            case POOL_FIRST: take(y, &s, 0); break;
            case POOL_LAST: take(y, &s, last_position(&s)); break;
            case POOL_MAX: highest(y, &s); break;
            default: return 1;
        }
    }
    return 0;
}
