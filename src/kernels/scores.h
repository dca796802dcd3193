/* Attention scores on their way into a softmax: what a query may see, and the bias on top. */
#pragma once

#include "common.h"

/* s [count] += bias_scale * bias (NULL: none); scores whose mask is 0 (NULL: none) or whose index is not in
   `first` .. `last` become the lowest float32, and none is below it. */
INLINE void adjust_scores(float *s, const float *bias, float bias_scale, const int32_t *mask, int first, int last,
                          int count) {
    f32x4 lowest = splat(LOWEST), scale = splat(bias_scale);
    i32x4 index = {0, 1, 2, 3};
#define ADJUST(left)                                                                                                  \
    do {                                                                                                              \
        f32x4 v = load_some(s + j, left);                                                                             \
        if (bias) v = vec_max(fma(load_some(bias + j, left), scale, v), lowest);                                      \
        i32x4 seen = (index + j <= last) & (index + j >= first);                                                                               \
        if (mask) seen &= (i32x4)load_some((const float *)mask + j, left) != 0;                                       \
        store_some(s + j, select(seen, v, lowest), left);                                                             \
    } while (0)
    int j = 0;
    for (; j + 4 <= count; j += 4) ADJUST(4);
    if (j < count) ADJUST(count - j);
#undef ADJUST
}
