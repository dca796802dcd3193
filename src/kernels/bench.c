/* The ceilings that benchmarks compare kernels with. */
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

/* The same with dot products of bytes, or of 16-bit numbers without relaxed SIMD: 48 vectors of 4 sums an iteration, of 4
   products or 2. */
EXPORT(peak_i8) int peak_i8(int iterations) {
    i32x4 acc[12], a = splat_int(0x01020304), b = splat_int(0x04030201);
    UNROLL for (int j = 0; j < 12; j++) acc[j] = splat_int(j);
    KEEP(a);
    KEEP(b);
    for (int n = 0; n < iterations; n++) {
        UNROLL for (int repeat = 0; repeat < 4; repeat++) {
            UNROLL for (int j = 0; j < 12; j++) {
#ifdef __wasm_relaxed_simd__
                acc[j] = (i32x4)wasm_i32x4_relaxed_dot_i8x16_i7x16_add((v128_t)a, (v128_t)b, (v128_t)acc[j]);
#else
                acc[j] = (i32x4)wasm_i32x4_dot_i16x8((v128_t)acc[j], (v128_t)a) + b; /* nothing to compute once */
#endif
                KEEP(acc[j]);
            }
        }
    }
    i32x4 sum = acc[0];
    UNROLL for (int j = 1; j < 12; j++) sum += acc[j];
    return sum[0] + sum[1] + sum[2] + sum[3];
}
