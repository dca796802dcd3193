/* Quantising weights while they load, and plain quantised weights to panels and back. */
#include "convert.h"
#include "layout.h"

typedef struct {
    const char *x;
    int source, row_stride, column_stride;
} Source;

/* Elements first .. first + 31 of row `row`, zeros from `inner` on. */
static void read_group(float y[GROUP_SIZE], const Source *s, int row, int first, int inner) {
    int count = minimum(GROUP_SIZE, inner - first), at = row * s->row_stride + first * s->column_stride, k = 0;
    if (s->column_stride == 1 && s->source == DTYPE_FLOAT32)
        for (; k + 4 <= count; k += 4) store(y + k, load((const float *)s->x + at + k));
    else if (s->column_stride == 1 && s->source == DTYPE_BFLOAT16)
        for (; k + 4 <= count; k += 4) store(y + k, bfloat16_load((const uint16_t *)s->x + at + k));
    else if (s->column_stride == 1 && s->source == DTYPE_FLOAT16) {
        const Float16 constants = float16_constants();
        for (; k + 4 <= count; k += 4) store(y + k, float16_load((const uint16_t *)s->x + at + k, &constants));
    }
    for (; k < count; k++) y[k] = convert_to_float(s->x, s->source, at + k * s->column_stride);
    for (; k < GROUP_SIZE; k++) y[k] = 0;
}

static float largest(const float x[GROUP_SIZE]) {
    f32x4 most = vec_abs(load(x));
    for (int k = 4; k < GROUP_SIZE; k += 4) most = vec_max(most, vec_abs(load(x + k)));
    return max_lanes(most);
}

/* Quants of 8 rows, 16 of each, to four steps of a panel; `sums` gets more by the sum of each row's. */
INLINE void write_steps(char *steps, const v128_t q[PANEL], i32x4 sums[PANEL]) {
    UNROLL for (int r = 0; r < PANEL; r += 4) {
        f32x4 v[4] = {(f32x4)q[r], (f32x4)q[r + 1], (f32x4)q[r + 2], (f32x4)q[r + 3]};
        transpose4(v);
        UNROLL for (int j = 0; j < 4; j++) store(steps + 32 * j + 4 * r, v[j]);
    }
    UNROLL for (int r = 0; r < PANEL; r++)
        sums[r] += (i32x4)wasm_i32x4_extadd_pairwise_i16x8(wasm_i16x8_extadd_pairwise_i8x16(q[r]));
}

INLINE void write_sums(float *y, const i32x4 sums[PANEL]) {
    for (int r = 0; r < PANEL; r++) y[r] = (float)(sums[r][0] + sums[r][1] + sums[r][2] + sums[r][3]);
}

/* The integers nearest to 16 values x * factor. */
INLINE v128_t nearest16(const float *x, f32x4 factor) {
    v128_t q[4];
    UNROLL for (int j = 0; j < 4; j++)
        q[j] = wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest((v128_t)(load(x + 4 * j) * factor)));
    v128_t narrow = wasm_i8x16_narrow_i16x8(wasm_i16x8_narrow_i32x4(q[0], q[1]), wasm_i16x8_narrow_i32x4(q[2], q[3]));
    return wasm_i8x16_max(narrow, wasm_i8x16_splat(-127));
}

static void quantize_q8(char *panel, const Source *s, int first_row, int rows, int inner) {
    int padded = padded_inner(LAYOUT_Q8, inner);
    float *scales = (float *)(panel + 8 * padded), inverse[PANEL] = {0}, x[GROUP_SIZE];
    i32x4 sums[PANEL] = {0};
    for (int r = 0; r < PANEL; r++) {
        float most = 0;
        for (int first = 0; r < rows && first < inner; first += GROUP_SIZE) {
            read_group(x, s, first_row + r, first, inner);
            most = larger(most, largest(x));
        }
        inverse[r] = most > 0 ? 127 / most : 0;
        scales[r] = most / 127;
    }
    for (int first = 0; first < padded; first += GROUP_SIZE) {
        v128_t low[PANEL] = {0}, high[PANEL] = {0};
        for (int r = 0; r < rows; r++) {
            read_group(x, s, first_row + r, first, inner);
            low[r] = nearest16(x, splat(inverse[r]));
            high[r] = nearest16(x + 16, splat(inverse[r]));
        }
        write_steps(panel + 8 * first, low, sums);
        if (first + 16 < padded) write_steps(panel + 8 * first + 128, high, sums);
    }
    write_sums(scales + 8, sums);
}

typedef struct {
    f32x4 v[GROUP_SIZE / 4];
} Values;

/* (x + shift) * factor */
INLINE Values scaled(const float x[GROUP_SIZE], float shift, float factor) {
    Values y;
    UNROLL for (int j = 0; j < 8; j++) y.v[j] = (load(x + 4 * j) + splat(shift)) * splat(factor);
    return y;
}

INLINE f32x4 rounded(f32x4 x, float low, float high) {
    return vec_min(vec_max((f32x4)wasm_f32x4_nearest((v128_t)x), splat(low)), splat(high));
}

/* The quants nearest to `y`, plus `zero`, as bytes. */
static void write_quants(uint8_t quants[GROUP_SIZE], const Values *y, int low, int high, int zero) {
    for (int j = 0; j < 8; j += 4) {
        v128_t q[4];
        UNROLL for (int n = 0; n < 4; n++)
            q[n] = (v128_t)rounded(y->v[j + n], (float)low, (float)high);
        UNROLL for (int n = 0; n < 4; n++)
            q[n] = wasm_i32x4_add(wasm_i32x4_trunc_sat_f32x4(q[n]), wasm_i32x4_splat(zero));
        v128_t a = wasm_i16x8_narrow_i32x4(q[0], q[1]), b = wasm_i16x8_narrow_i32x4(q[2], q[3]);
        wasm_v128_store(quants + 4 * j, wasm_u8x16_narrow_i16x8(a, b));
    }
}

static float inverse_of(uint16_t half) {
    float scale = float16_to_float(half);
    return scale != 0 ? 1 / scale : 0;
}

/* Tried are the divisions that make the largest magnitude quant 34 .. 63, with the scale of each by least squares. The
   coarse ones are for weights that lie on a grid already. */
static Group symmetric_8bit(float x[GROUP_SIZE], int rotated) {
    if (rotated) {
        Values v = scaled(x, 0, 0.5f);
        rotate(v.v);
        UNROLL for (int j = 0; j < 8; j++) store(x + 4 * j, v.v[j]);
    }
    float magnitude = largest(x), best = 0, scale = 0;
    Values y = scaled(x, 0, magnitude > 1e-30f ? 1 / magnitude : 0);
    for (int n = 34; n <= 63; n++) {
        f32x4 factor = splat((float)n), product = splat(0), square = splat(0);
        UNROLL for (int j = 0; j < 8; j++) {
            f32x4 q = (f32x4)wasm_f32x4_nearest((v128_t)(y.v[j] * factor));
            product += y.v[j] * q;
            square += q * q;
        }
        float yq = sum_lanes(product), qq = sum_lanes(square), score = yq * yq / qq;
        if (score > best) {
            best = score;
            scale = yq / qq;
        }
    }
    Group g = {double_to_float16(scale * magnitude), 0, {0}};
    y = scaled(x, 0, inverse_of(g.scale));
    write_quants(g.quants, &y, -63, 63, 64);
    return g;
}

/* 16 steps from -8 on. Tried are the divisions that put the largest magnitude at 6.5 .. 9 on either side, with the scale
   of each by least squares. */
static Group symmetric_4bit(const float x[GROUP_SIZE]) {
    float magnitude = largest(x), most = 0, best = 0, scale = 0;
    for (int k = GROUP_SIZE - 1; k >= 0; k--)
        if (__builtin_fabsf(x[k]) == magnitude) most = x[k];
    Values y = scaled(x, 0, magnitude > 1e-30f ? 1 / most : 0);
    for (int n = 26; n <= 36; n++) {
        f32x4 zero = splat(0), factor = splat(0.25f * (float)n);
        f32x4 product[2] = {zero, zero}, square[2] = {zero, zero};
        UNROLL for (int j = 0; j < 8; j++) {
            f32x4 steps = (f32x4)wasm_f32x4_nearest((v128_t)(y.v[j] * factor));
            /* -8 .. 7 for a scale of the sign of `most`, and -7 .. 8 for one of the other sign */
            UNROLL for (int side = 0; side < 2; side++) {
                f32x4 q = vec_min(vec_max(steps, splat((float)side - 8)), splat((float)side + 7));
                product[side] += y.v[j] * q;
                square[side] += q * q;
            }
        }
        UNROLL for (int side = 0; side < 2; side++) {
            float yq = sum_lanes(product[side]), qq = sum_lanes(square[side]), score = yq * yq / qq;
            if (score > best) {
                best = score;
                scale = side ? -yq / qq : yq / qq;
            }
        }
    }
    Group g = {double_to_float16(scale * most), 0, {0}};
    y = scaled(x, 0, inverse_of(g.scale));
    write_quants(g.quants, &y, -8, 7, 8);
    return g;
}

/* 16 steps from an offset on. Tried are divisions of the range into 13.5 .. 17 steps, with scale and offset of each by
   least squares over the `count` elements that there are. */
static Group asymmetric_4bit(const float x[GROUP_SIZE], int count) {
    float low = x[0], high = x[0], best = -1, scale = 0, offset = 0;
    for (int k = 1; k < count; k++) {
        low = smaller(low, x[k]);
        high = larger(high, x[k]);
    }
    float range = high - low, kept[GROUP_SIZE];
    for (int k = 0; k < GROUP_SIZE; k++) kept[k] = k < count ? x[k] : low;
    Values y = scaled(kept, -low, range > 1e-30f ? 1 / range : 0);
    f32x4 all = y.v[0];
    UNROLL for (int j = 1; j < 8; j++) all += y.v[j];
    float sum_y = sum_lanes(all), number = (float)count;
    for (int n = 54; n <= 68; n++) {
        f32x4 factor = splat(0.25f * (float)n), product = splat(0), square = splat(0), sum = splat(0);
        UNROLL for (int j = 0; j < 8; j++) {
            f32x4 q = rounded(y.v[j] * factor, 0, 15);
            product += y.v[j] * q;
            square += q * q;
            sum += q;
        }
        float sum_q = sum_lanes(sum), qq = sum_lanes(square), yq = sum_lanes(product);
        float determinant = number * qq - sum_q * sum_q;
        if (!(determinant > 0)) continue;
        float slope = (number * yq - sum_y * sum_q) / determinant, start = (qq * sum_y - sum_q * yq) / determinant;
        float score = slope * yq + start * sum_y;
        if (score > best) {
            best = score;
            scale = slope;
            offset = start;
        }
    }
    Group g = {double_to_float16(scale * range), double_to_float16(offset * range + low), {0}};
    y = scaled(kept, -float16_to_float(g.offset), inverse_of(g.scale));
    write_quants(g.quants, &y, 0, 15, 0);
    return g;
}

Group empty_group(int layout) {
    Group g = {0};
    for (int k = 0; k < GROUP_SIZE; k++) g.quants[k] = layout == LAYOUT_Q8G ? 64 : layout == LAYOUT_Q4 ? 8 : 0;
    return g;
}

void write_group(char *group, const Group *g, int layout, int row) {
    i32x4 a = (i32x4)wasm_v128_load(g->quants), b = (i32x4)wasm_v128_load(g->quants + 16);
    int32_t *step = (int32_t *)(group + (layout == LAYOUT_Q4Z ? 32 : 16)) + row;
    ((uint16_t *)group)[row] = g->scale;
    if (layout == LAYOUT_Q4Z) ((uint16_t *)group)[8 + row] = g->offset;
    if (layout == LAYOUT_Q8G) {
        UNROLL for (int j = 0; j < 4; j++) {
            step[8 * j] = a[j];
            step[8 * (4 + j)] = b[j];
        }
        return;
    }
    i32x4 halves = __builtin_shufflevector(a, b, 0, 2, 4, 6) | __builtin_shufflevector(a, b, 1, 3, 5, 7) << 4;
    UNROLL for (int j = 0; j < 4; j++) step[8 * j] = halves[j];
}

static void quantize_grouped(char *panel, const Source *s, int first_row, int rows, int inner, int layout) {
    float x[GROUP_SIZE];
    for (int first = 0; first < inner; first += GROUP_SIZE, panel += group_bytes(layout)) {
        int count = minimum(GROUP_SIZE, inner - first);
        for (int r = 0; r < 8; r++) {
            Group g = empty_group(layout), past = g;
            if (r < rows) {
                read_group(x, s, first_row + r, first, inner);
                g = layout == LAYOUT_Q4Z ? asymmetric_4bit(x, count)
                  : layout == LAYOUT_Q4  ? symmetric_4bit(x)
                                         : symmetric_8bit(x, is_rotated(layout, first / GROUP_SIZE, inner));
            }
            for (int k = count; k < GROUP_SIZE; k++) g.quants[k] = past.quants[k];
            write_group(panel, &g, layout, r);
        }
    }
}

static void to_float16(char *panel, const Source *s, int first_row, int rows, int inner) {
    for (int k = 0; k < inner; k++)
        for (int r = 0; r < 8; r++) {
            int at = (first_row + r) * s->row_stride + k * s->column_stride;
            uint16_t half = s->source == DTYPE_FLOAT16 && r < rows ? ((const uint16_t *)s->x)[at]
                            : r < rows ? double_to_float16(convert_to_float(s->x, s->source, at)) : 0;
            ((uint16_t *)panel)[8 * k + r] = half;
        }
}

int op_quantize_weight(const Instruction *i, int part, int parts) {
    int rows = INT(QUANTIZE_WEIGHT_ROWS), inner = INT(QUANTIZE_WEIGHT_INNER), layout = INT(QUANTIZE_WEIGHT_LAYOUT);
    Source s = {
        ADDRESS(const char, QUANTIZE_WEIGHT_X), INT(QUANTIZE_WEIGHT_SOURCE), INT(QUANTIZE_WEIGHT_ROW_STRIDE),
        INT(QUANTIZE_WEIGHT_COLUMN_STRIDE),
    };
    int panels = ceil_div(rows, PANEL), end = split(panels, part + 1, parts), size = panel_bytes(layout, inner);
    if (!dtype_size(s.source) || layout < LAYOUT_F16) return 1;
    for (int p = split(panels, part, parts); p < end; p++) {
        char *panel = ADDRESS(char, QUANTIZE_WEIGHT_W) + p * size;
        int count = minimum(rows - p * PANEL, PANEL);
        if (layout == LAYOUT_F16) to_float16(panel, &s, p * PANEL, count, inner);
        else if (layout == LAYOUT_Q8) quantize_q8(panel, &s, p * PANEL, count, inner);
        else quantize_grouped(panel, &s, p * PANEL, count, inner, layout);
    }
    return 0;
}

/* A panel of plain rows of q8. */
static void pack_q8(char *panel, const int8_t *q, const float *scale, int rows, int inner) {
    int padded = padded_inner(LAYOUT_Q8, inner);
    i32x4 sums[PANEL] = {0};
    for (int k = 0; k < padded; k += 16) {
        v128_t v[PANEL] = {0};
        for (int r = 0; r < rows; r++) {
            if (k + 16 <= inner) v[r] = wasm_v128_load(q + r * inner + k);
            else for (int j = 0; k + j < inner; j++) ((int8_t *)&v[r])[j] = q[r * inner + k + j];
        }
        write_steps(panel + 8 * k, v, sums);
    }
    for (int r = 0; r < PANEL; r++) ((float *)(panel + 8 * padded))[r] = r < rows ? scale[r] : 0;
    write_sums((float *)(panel + 8 * padded) + 8, sums);
}

/* Quants at `at` of a row that is plain, `count` of them, as those of a group are. */
static void read_quants(uint8_t quants[GROUP_SIZE], const uint8_t *row, int at, int count, int layout) {
    if (layout == LAYOUT_Q8G) {
        for (int k = 0; k < count; k++) quants[k] = (uint8_t)(row[at + k] + 64);
    } else if (count == GROUP_SIZE) {
        v128_t bytes = wasm_v128_load(row + at / 2);
        v128_t even = wasm_v128_and(bytes, wasm_i8x16_splat(15)), odd = wasm_u8x16_shr(bytes, 4);
        wasm_v128_store(quants, wasm_i8x16_shuffle(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
        wasm_v128_store(quants + 16, wasm_i8x16_shuffle(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30,
                                                        15, 31));
    } else {
        for (int k = 0; k < count; k++) quants[k] = row[(at + k) / 2] >> k % 2 * 4 & 15;
    }
}

int op_pack_quantized(const Instruction *i, int part, int parts) {
    int rows = INT(PACK_QUANTIZED_ROWS), inner = INT(PACK_QUANTIZED_INNER), layout = INT(PACK_QUANTIZED_LAYOUT);
    int panels = ceil_div(rows, PANEL), end = split(panels, part + 1, parts), size = panel_bytes(layout, inner);
    int groups = ceil_div(inner, GROUP_SIZE);
    int row_bytes = layout == LAYOUT_Q4 || layout == LAYOUT_Q4Z ? ceil_div(inner, 2) : inner;
    const uint16_t *scale = ADDRESS(const uint16_t, PACK_QUANTIZED_SCALE);
    const uint16_t *offset = ADDRESS(const uint16_t, PACK_QUANTIZED_OFFSET);
    const uint8_t *q = ADDRESS(const uint8_t, PACK_QUANTIZED_Q);
    if (layout < LAYOUT_Q8) return 1;
    for (int p = split(panels, part, parts); p < end; p++) {
        char *panel = ADDRESS(char, PACK_QUANTIZED_W) + p * size;
        int first = p * PANEL;
        if (layout == LAYOUT_Q8) {
            pack_q8(panel, (const int8_t *)q + first * inner, (const float *)scale + first,
                    minimum(rows - first, PANEL), inner);
            continue;
        }
        for (int row = first; row < first + PANEL; row++) {
            for (int n = 0; n < groups; n++) {
                Group g = empty_group(layout);
                if (row < rows) {
                    g.scale = scale[row * groups + n];
                    g.offset = offset ? offset[row * groups + n] : 0;
                    read_quants(g.quants, q + row * row_bytes, n * GROUP_SIZE,
                                minimum(GROUP_SIZE, inner - n * GROUP_SIZE), layout);
                }
                write_group(panel + n * group_bytes(layout), &g, layout, row % PANEL);
            }
        }
    }
    return 0;
}

int op_unpack_quantized(const Instruction *i, int part, int parts) {
    int rows = INT(UNPACK_QUANTIZED_ROWS), inner = INT(UNPACK_QUANTIZED_INNER), layout = INT(UNPACK_QUANTIZED_LAYOUT);
    int end = split(rows, part + 1, parts), size = panel_bytes(layout, inner), groups = ceil_div(inner, GROUP_SIZE);
    uint16_t *scale = ADDRESS(uint16_t, UNPACK_QUANTIZED_SCALE), *offset = ADDRESS(uint16_t, UNPACK_QUANTIZED_OFFSET);
    uint8_t *q = ADDRESS(uint8_t, UNPACK_QUANTIZED_Q);
    if (layout < LAYOUT_Q8) return 1;
    for (int row = split(rows, part, parts); row < end; row++) {
        int r = row % PANEL;
        const uint8_t *panel = ADDRESS(const uint8_t, UNPACK_QUANTIZED_W) + row / PANEL * size;
        if (layout == LAYOUT_Q8) {
            for (int k = 0; k < inner; k++) q[row * inner + k] = panel[k / 4 * 32 + 4 * r + k % 4];
            ((float *)scale)[row] = ((const float *)(panel + 8 * padded_inner(layout, inner)))[r];
            continue;
        }
        for (int n = 0; n < groups; n++, panel += group_bytes(layout)) {
            scale[row * groups + n] = ((const uint16_t *)panel)[r];
            if (layout == LAYOUT_Q4Z) offset[row * groups + n] = ((const uint16_t *)panel)[8 + r];
            const uint8_t *source = panel + (layout == LAYOUT_Q4Z ? 32 : 16) + 4 * r;
            for (int k = 0; k < minimum(GROUP_SIZE, inner - n * GROUP_SIZE); k++) {
                int at = n * GROUP_SIZE + k;
                if (layout == LAYOUT_Q8G) {
                    q[row * inner + at] = (uint8_t)(source[k / 4 * 32 + k % 4] - 64);
                    continue;
                }
                int value = source[k / 8 * 32 + k % 4] >> k % 8 / 4 * 4 & 15;
                uint8_t *byte = q + row * ceil_div(inner, 2) + at / 2;
                *byte = at % 2 ? (uint8_t)((*byte & 15) | value << 4) : (uint8_t)value;
            }
        }
    }
    return 0;
}
