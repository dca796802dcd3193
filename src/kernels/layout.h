/* How weights lie in kernel memory; see "Layouts" in optable.py. Panels are self-contained and of one size. */
#pragma once

#include "half.h"

enum { MAGIC = 0x4b400000 }; /* bits of 1.5 * 2^23, in float32 */

INLINE int is_grouped(int layout) { return layout >= LAYOUT_Q8G; }

/* The inner dimension as it is stored, with zeros past its end. */
INLINE int padded_inner(int layout, int inner) {
    if (layout == LAYOUT_Q8) return round_up(inner, 16);
    return is_grouped(layout) ? round_up(inner, GROUP_SIZE) : inner;
}

/* Bytes of one group of a panel: scales, offsets, quants. */
INLINE int group_bytes(int layout) {
    if (layout == LAYOUT_Q8G) return 16 + 256;
    return layout == LAYOUT_Q4 ? 16 + 128 : 32 + 128;
}

INLINE int panel_bytes(int layout, int inner) {
    int padded = padded_inner(layout, inner);
    if (layout == LAYOUT_PANELS) return 32 * padded;
    if (layout == LAYOUT_F16) return 16 * padded;
    if (layout == LAYOUT_Q8) return 8 * padded + 64;
    return padded / GROUP_SIZE * group_bytes(layout);
}

/* The group times a quarter of the Hadamard matrix: what one large element would cost the group's precision, all share.
   Twice is 2 times the same. */
INLINE void rotate(f32x4 v[GROUP_SIZE / 4]) {
    UNROLL for (int step = 1; step < 8; step *= 2) {
        UNROLL for (int j = 0; j < 8; j++) {
            if (j & step) continue;
            f32x4 sum = v[j] + v[j + step];
            v[j + step] = v[j] - v[j + step];
            v[j] = sum;
        }
    }
    const f32x4 neighbours = {1, -1, 1, -1}, pairs = {0.25f, 0.25f, -0.25f, -0.25f};
    UNROLL for (int j = 0; j < 8; j++) {
        v[j] = fma(v[j], neighbours, __builtin_shufflevector(v[j], v[j], 1, 0, 3, 2));
        v[j] = fma(v[j], pairs, __builtin_shufflevector(v[j], v[j], 2, 3, 0, 1) * splat(0.25f));
    }
}

/* Whether group `n` is kept rotated: in q8g, those that are whole. */
INLINE int is_rotated(int layout, int n, int inner) {
    return layout == LAYOUT_Q8G && (n + 1) * GROUP_SIZE <= inner;
}

/* Row `row` (0 .. 7) of a panel as float32. */
void decode_row(float *y, const char *panel, int layout, int row, int inner);

/* A row's group in a grouped layout: scale and offset as they are kept, and the quants. */
typedef struct {
    uint16_t scale, offset;
    uint8_t quants[GROUP_SIZE];
} Group;

/* A group of zeros, which is what lies past the last row and column. */
Group empty_group(int layout);

/* Puts a group where it belongs for row `row` (0 .. 7) of a panel. */
void write_group(char *group, const Group *g, int layout, int row);

/* Quants of activations: bytes where the relaxed dot product takes them, and 16-bit otherwise. */
#ifdef __wasm_relaxed_simd__
typedef int8_t Quant;
#else
typedef int16_t Quant;
#endif

/* A group of a row, for the grouped layouts; all of it is within reach of one pointer. Its scale is a power of two, so
   that the unit in the last place of zero = 1.5 * 2^23 * scale is the scale: adding an integer to the bits of zero adds
   that many scales to its value. */
typedef struct {
    Quant quants[GROUP_SIZE];
    float zero;
    union {
        float sum;     /* q4z: of the group in float32 */
        int32_t start; /* q4, q8g: the bits of zero less the zero point of weights times the sum of quants */
    };
} RowGroup;

/* What `quantize_rows` makes. */
typedef struct {
    RowGroup *row_groups; /* grouped layouts: [rows][groups] */
    Quant *quants;        /* q8: [rows][padded inner] */
    float *scale, *low;   /* q8: of each row the step and the lowest value */
    int inner, groups;    /* padded */
} Activations;

INLINE Activations activations(char *blob, int layout, int rows, int inner) {
    int padded = padded_inner(layout, inner);
    if (is_grouped(layout)) return (Activations){(RowGroup *)blob, 0, 0, 0, padded, padded / GROUP_SIZE};
    float *scale = (float *)(blob + round_up(rows * padded * (int)sizeof(Quant), 16));
    return (Activations){0, (Quant *)blob, scale, scale + rows, padded, 1};
}
