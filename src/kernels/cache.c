/* Writing and reading key-value caches. */
#include "cache.h"

void head_decode(float *y, const uint32_t *head, int dtype, int dim) {
    const uint16_t *halves = (const uint16_t *)head;
    const int8_t *quants = (const int8_t *)(head + 1);
    if (dtype == CACHE_F32) __builtin_memcpy(y, head, 4 * dim);
    else if (dtype == CACHE_F16)
        for (int d = 0; d < dim; d++) y[d] = float16_to_float(halves[d]);
    else
        for (int d = 0; d < dim; d++) y[d] = head_scale(head) * quants[d];
}

static void encode_q8(uint32_t *head, const float *x, int dim) {
    float highest = 0;
    for (int d = 0; d < dim; d++) highest = __builtin_fabsf(x[d]) > highest ? __builtin_fabsf(x[d]) : highest;
    float scale = highest / 127, inverse = highest > 0 ? 127 / highest : 0;
    int8_t *quants = (int8_t *)(head + 1);
    *(float *)head = scale;
    for (int d = 0; d < dim; d++) quants[d] = (int8_t)__builtin_rintf(x[d] * inverse);
    for (int d = dim; d < round_up(dim, 4); d++) quants[d] = 0;
}

static void encode(uint32_t *head, const float *x, int dtype, int dim) {
    uint16_t *halves = (uint16_t *)head;
    if (dtype == CACHE_F32) __builtin_memcpy(head, x, 4 * dim);
    else if (dtype == CACHE_Q8) encode_q8(head, x, dim);
    else {
        for (int d = 0; d < dim; d++) halves[d] = double_to_float16(x[d]);
        if (dim % 2) halves[dim] = 0;
    }
}

int op_cache_append(const Instruction *i, int part, int parts) {
    int batch = INT(CACHE_APPEND_BATCH), length = INT(CACHE_APPEND_LENGTH), heads = INT(CACHE_APPEND_HEADS);
    int dim = INT(CACHE_APPEND_HEAD_DIM), capacity = INT(CACHE_APPEND_CAPACITY), dtype = INT(CACHE_APPEND_DTYPE);
    int position = INT(CACHE_APPEND_POSITION), words = head_words(dtype, dim), end = split(batch * length, part + 1, parts);
    if (position + length > capacity) return 1;
    for (int row = split(batch * length, part, parts); row < end; row++) {
        const float *x = INPUT(CACHE_APPEND_X) + row * heads * dim;
        int place = row / length * capacity + position + row % length;
        uint32_t *y = ADDRESS(uint32_t, CACHE_APPEND_Y) + (uint32_t)place * heads * words;
        for (int h = 0; h < heads; h++) encode(y + h * words, x + h * dim, dtype, dim);
    }
    return 0;
}

int op_cache_read(const Instruction *i, int part, int parts) {
    int batch = INT(CACHE_READ_BATCH), length = INT(CACHE_READ_LENGTH), heads = INT(CACHE_READ_HEADS);
    int dim = INT(CACHE_READ_HEAD_DIM), capacity = INT(CACHE_READ_CAPACITY), dtype = INT(CACHE_READ_DTYPE);
    int words = head_words(dtype, dim), end = split(batch * length, part + 1, parts);
    for (int row = split(batch * length, part, parts); row < end; row++) {
        int place = row / length * capacity + row % length;
        const uint32_t *x = ADDRESS(const uint32_t, CACHE_READ_X) + (uint32_t)place * heads * words;
        for (int h = 0; h < heads; h++)
            head_decode(OUTPUT(CACHE_READ_Y) + (row * heads + h) * dim, x + h * words, dtype, dim);
    }
    return 0;
}

int op_gather(const Instruction *i, int part, int parts) {
    int count = INT(GATHER_COUNT), words = INT(GATHER_ROWS) * INT(GATHER_WORDS), stride = INT(GATHER_STRIDE);
    int end = split(count, part + 1, parts);
    const int32_t *index = ADDRESS(const int32_t, GATHER_INDEX);
    for (int n = 0; n < count; n++)
        if (index[n] < 0 || index[n] >= count) return 1;
    for (int n = split(count, part, parts); n < end; n++)
        __builtin_memcpy(OUTPUT(GATHER_Y) + (uint32_t)n * stride, INPUT(GATHER_X) + (uint32_t)index[n] * stride,
                         4 * (uint32_t)words);
    return 0;
}
