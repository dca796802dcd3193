/* Rows of a table by their ids. */
#include "layout.h"

int op_embedding(const Instruction *i, int part, int parts) {
    int count = INT(EMBEDDING_COUNT), dim = INT(EMBEDDING_DIM), vocabulary = INT(EMBEDDING_VOCABULARY);
    int layout = INT(EMBEDDING_LAYOUT), begin = split(count, part, parts), end = split(count, part + 1, parts);
    const int32_t *ids = ADDRESS(const int32_t, EMBEDDING_IDS);
    const char *table = ADDRESS(const char, EMBEDDING_TABLE);
    const float *residual = INPUT(EMBEDDING_RESIDUAL);
    uint32_t size = layout == LAYOUT_ROWS ? 4 * dim : panel_bytes(layout, dim);
    for (int n = begin; n < end; n++)
        if (ids[n] < 0 || ids[n] >= vocabulary) return 1;
    for (int n = begin; n < end; n++) {
        float *y = OUTPUT(EMBEDDING_Y) + n * dim;
        if (layout == LAYOUT_ROWS) __builtin_memcpy(y, table + ids[n] * size, size);
        else decode_row(y, table + ids[n] / PANEL * size, layout, ids[n] % PANEL, dim);
        for (int j = 0; residual && j < dim; j += 4)
            store_some(y + j, load_some(y + j, dim - j) + load_some(residual + n * dim + j, dim - j), dim - j);
    }
    return 0;
}
