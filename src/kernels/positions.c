/* Position ids. */
#include "common.h"

/* start, start + 1, ... in every row. */
int op_positions(const Instruction *i, int part, int parts) {
    int rows = INT(POSITIONS_ROWS), length = INT(POSITIONS_LENGTH), end = split(rows * length, part + 1, parts);
    for (int n = split(rows * length, part, parts); n < end; n++)
        ADDRESS(int32_t, POSITIONS_Y)[n] = INT(POSITIONS_START) + n % length;
    return 0;
}

/* RoBERTa's: tokens count up from padding_id + 1, padding gets padding_id. */
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
