/* Rows of a table by their ids. */
#include "common.h"

int op_embedding(const Instruction *i, int part, int parts) {
    int count = INT(EMBEDDING_COUNT), dim = INT(EMBEDDING_DIM), vocabulary = INT(EMBEDDING_VOCABULARY);
    int panels = INT(EMBEDDING_LAYOUT) == LAYOUT_PANELS, begin = split(count, part, parts);
    int end = split(count, part + 1, parts);
    const int32_t *ids = ADDRESS(const int32_t, EMBEDDING_IDS);
    const float *table = INPUT(EMBEDDING_TABLE), *residual = INPUT(EMBEDDING_RESIDUAL);
    for (int n = begin; n < end; n++)
        if (ids[n] < 0 || ids[n] >= vocabulary) return 1;
    for (int n = begin; n < end; n++) {
        const float *row = panels ? table + ids[n] / PANEL * PANEL * dim + ids[n] % PANEL : table + ids[n] * dim;
        float *y = OUTPUT(EMBEDDING_Y) + n * dim;
        for (int j = 0; j < dim; j += 4) {
            int left = dim - j;
            f32x4 v = splat(0);
            if (!panels)
                v = load_some(row + j, left);
            else
                for (int lane = 0; lane < minimum(left, 4); lane++) v[lane] = row[PANEL * (j + lane)];
            if (residual) v += load_some(residual + n * dim + j, left);
            store_some(y + j, v, left);
        }
    }
    return 0;
}
