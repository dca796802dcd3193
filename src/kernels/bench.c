/* The ceiling that benchmarks compare kernels with. */
#include "common.h"

/* Nothing but multiply-adds in registers: 384 flop an iteration (48 vectors of 4, two operations each). */
EXPORT(peak_f32) float peak_f32(int iterations) {
    f32x4 acc[12], a = splat(0.999f), b = splat(0.001f);
    UNROLL for (int j = 0; j < 12; j++) acc[j] = splat((float)j);
    KEEP(a);
    KEEP(b);
    for (int n = 0; n < iterations; n++) {
        UNROLL for (int repeat = 0; repeat < 4; repeat++) {
            UNROLL for (int j = 0; j < 12; j++) {
                acc[j] = fma(acc[j], a, b);
                KEEP(acc[j]);
            }
        }
    }
    f32x4 sum = acc[0];
    UNROLL for (int j = 1; j < 12; j++) sum += acc[j];
    return sum_lanes(sum);
}
