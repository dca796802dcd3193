/* Self-test of the relaxed instructions, whose results the engine chooses within limits. */
#include "common.h"

/* 1 when they give what the kernels count on; one V8 tier once computed the dot product wrongly. */
EXPORT(probe_relaxed) int probe_relaxed(void) {
#ifdef __wasm_relaxed_simd__
    i32x4 low = (i32x4)wasm_i8x16_splat(-128), high = (i32x4)wasm_i8x16_splat(127), sum = {0, 1, -1, 65024};
    /* The last product needs more bits than a float32 has: the multiply-add must round once. */
    f32x4 a = {2, -3, 0.5f, 1 + 0x1p-12f}, b = {3, 4, 8, 1 + 0x1p-12f}, c = {1, 2, -4, -1 - 0x1p-11f};
    KEEP(low);
    KEEP(high);
    KEEP(a);
    KEEP(b);
    i32x4 dot = (i32x4)wasm_i32x4_relaxed_dot_i8x16_i7x16_add((v128_t)low, (v128_t)high, (v128_t)sum);
    f32x4 r = fma(a, b, c);
    int dots = dot[0] == -65024 && dot[1] == -65023 && dot[2] == -65025 && dot[3] == 0;
    return dots && r[0] == 7 && r[1] == -10 && r[2] == 0 && r[3] == 0x1p-24f;
#else
    return 1;
#endif
}
