/* RoBERTa's position ids: tokens count up from padding_id + 1, padding gets padding_id. */
#include "common.h"

int op_position_ids(const Instruction *i, int part, int parts) {
    int rows = INT(POSITION_IDS_ROWS), length = INT(POSITION_IDS_LENGTH), padding = INT(POSITION_IDS_PADDING_ID);
    int end = split(rows, part + 1, parts);
    for (int r = split(rows, part, parts); r < end; r++) {
        const int32_t *ids = ADDRESS(const int32_t, POSITION_IDS_IDS) + r * length;
        int32_t *y = ADDRESS(int32_t, POSITION_IDS_Y) + r * length;
        for (int j = 0, seen = 0; j < length; j++) y[j] = padding + (ids[j] == padding ? 0 : ++seen);
    }
    return 0;
}
