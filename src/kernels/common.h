/* What all kernels share: vector types, loads and stores, operands of an instruction, cutting work into parts. */
#pragma once

#include <stdint.h>
#include <wasm_simd128.h>

#include "optable.h"

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define EXPORT(name) __attribute__((export_name(#name)))
#define UNROLL _Pragma("clang loop unroll(full)")

typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));

/* The lowest float32: what a masked score counts as. */
#define LOWEST (-3.4028234663852886e38f)

/* ---- Operands ---- */

typedef struct {
    const uint32_t *words;
    const int32_t *registers;
} Instruction;

INLINE int operand_int(const Instruction *i, int index) {
    int32_t word = (int32_t)i->words[index];
    return word < 0 ? i->registers[-1 - word] : word;
}

INLINE float operand_float(const Instruction *i, int index) {
    return __builtin_bit_cast(float, i->words[index]);
}

/* In an op function whose instruction is called `i`; names are those of the op table. */
#define ADDRESS(type, index) ((type *)i->words[index])
#define INPUT(index) ADDRESS(const float, index)
#define OUTPUT(index) ADDRESS(float, index)
#define INT(index) operand_int(i, index)
#define LITERAL(index) ((int32_t)i->words[index])
#define FLOAT(index) operand_float(i, index)

/* Every op does part `part` of `parts` and returns 0, or 1 when it refuses its operands. */
#define DECLARE_OP(NAME, name) int op_##name(const Instruction *i, int part, int parts);
FOR_EACH_OP(DECLARE_OP)
#undef DECLARE_OP

/* First of `count` items that belongs to a part; it ends where the next one starts. */
INLINE int split(int count, int part, int parts) {
    return (int)((int64_t)count * part / parts);
}

INLINE int minimum(int a, int b) { return a < b ? a : b; }
INLINE int maximum(int a, int b) { return a > b ? a : b; }
INLINE float larger(float a, float b) { return a > b ? a : b; }
INLINE float smaller(float a, float b) { return a < b ? a : b; }
INLINE int ceil_div(int a, int b) { return (a + b - 1) / b; }
INLINE int round_up(int a, int b) { return ceil_div(a, b) * b; }

/* ---- Vectors ---- */

INLINE f32x4 splat(float x) { return (f32x4){x, x, x, x}; }
INLINE i32x4 splat_int(int x) { return (i32x4){x, x, x, x}; }
INLINE f32x4 load(const void *p) { return (f32x4)wasm_v128_load(p); }
INLINE void store(void *p, f32x4 v) { wasm_v128_store(p, (v128_t)v); }

/* Of `count` elements, the first four or as many as there are; lanes past the end are 0. */
INLINE f32x4 load_some(const float *p, int count) {
    if (count >= 4) return load(p);
    f32x4 v = splat(0);
    v[0] = p[0];
    if (count > 1) v[1] = p[1];
    if (count > 2) v[2] = p[2];
    return v;
}

INLINE void store_some(float *p, f32x4 v, int count) {
    if (count >= 4) {
        store(p, v);
        return;
    }
    p[0] = v[0];
    if (count > 1) p[1] = v[1];
    if (count > 2) p[2] = v[2];
}

/* Single instructions. Where one operand is NaN they give `a`. */
INLINE f32x4 vec_max(f32x4 a, f32x4 b) { return (f32x4)wasm_f32x4_pmax((v128_t)a, (v128_t)b); }
INLINE f32x4 vec_min(f32x4 a, f32x4 b) { return (f32x4)wasm_f32x4_pmin((v128_t)a, (v128_t)b); }
INLINE f32x4 vec_abs(f32x4 a) { return (f32x4)wasm_f32x4_abs((v128_t)a); }

INLINE f32x4 select(i32x4 condition, f32x4 yes, f32x4 no) {
    return (f32x4)wasm_v128_bitselect((v128_t)yes, (v128_t)no, (v128_t)condition);
}

/* a * b + c; rounded once with relaxed SIMD, which the self-test makes sure of. */
INLINE f32x4 fma(f32x4 a, f32x4 b, f32x4 c) {
#ifdef __wasm_relaxed_simd__
    return (f32x4)wasm_f32x4_relaxed_madd((v128_t)a, (v128_t)b, (v128_t)c);
#else
    return a * b + c;
#endif
}

INLINE float sum_lanes(f32x4 v) { return (v[0] + v[1]) + (v[2] + v[3]); }

INLINE float max_lanes(f32x4 v) {
    v = vec_max(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
    return vec_max(v, __builtin_shufflevector(v, v, 1, 0, 3, 2))[0];
}

INLINE void transpose4(f32x4 v[4]) {
    f32x4 a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5), b = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
    f32x4 c = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7), d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
    v[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    v[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    v[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    v[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

/* ---- Control over the generated code ---- */

/* The value stays in a local here: LLVM may neither merge an accumulator chain into one deep expression, after which
   the engine spills, nor rebuild a constant at every use. */
#define KEEP(v) __asm__ volatile("" : "+r"(v))

/* The same for every vector of a struct of them. */
#define KEEP_ALL(constants)                                                                                           \
    UNROLL for (unsigned j_ = 0; j_ < sizeof(constants) / 16; j_++) KEEP(((f32x4 *)&(constants))[j_])

/* Loads that keep program order and carry the constant offset in the instruction. The compiler does not know that they
   read memory, so what they read must have been written before a call into the file that uses them. */
#define ASM_LOAD(opcode, p, offset)                                                                                   \
    ({                                                                                                                \
        f32x4 loaded_;                                                                                                \
        __asm__ volatile("local.get %1\n\t" opcode " %2\n\tlocal.set %0" : "=r"(loaded_) : "r"(p), "i"(offset));      \
        loaded_;                                                                                                      \
    })
INLINE f32x4 load_at(const char *p, const int offset) { return ASM_LOAD("v128.load", p, offset); }
INLINE f32x4 splat_at(const char *p, const int offset) { return ASM_LOAD("v128.load32_splat", p, offset); }
