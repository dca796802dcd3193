/* Packing quantised weights as other libraries publish them; see `pack_published` in optable.py. */
#include "convert.h"
#include "layout.h"

typedef struct {
    const uint32_t *q, *zero;
    const void *scale;
    int rows, inner, group, source, format;
} Published;

INLINE int nibble(uint32_t word, int number) { return (int)(word >> 4 * number & 15); }

/* AWQ keeps the even ones of eight columns in the low half of a word, the odd ones in the high half. */
INLINE int awq_place(int row) { return row % 8 / 2 + row % 2 * 4; }

/* Quant of element (row, k), 0 .. 15. */
static int quant(const Published *p, int row, int k) {
    switch (p->format) {
        case PUBLISHED_COMPRESSED: return nibble(p->q[row * ceil_div(p->inner, 8) + k / 8], k % 8);
        case PUBLISHED_AWQ: return nibble(p->q[k * (p->rows / 8) + row / 8], awq_place(row));
        default: return nibble(p->q[k / 8 * p->rows + row], k % 8);
    }
}

/* The quant that means 0. */
static int zero_point(const Published *p, int row, int group) {
    if (!p->zero) return 8;
    switch (p->format) {
        case PUBLISHED_COMPRESSED: return nibble(p->zero[row / 8 * (p->inner / p->group) + group], row % 8);
        case PUBLISHED_AWQ: return nibble(p->zero[group * (p->rows / 8) + row / 8], awq_place(row));
        default:
            return nibble(p->zero[group * (p->rows / 8) + row / 8], row % 8) + (p->format == PUBLISHED_GPTQ);
    }
}

static float scale_of(const Published *p, int row, int group) {
    int by_rows = p->format == PUBLISHED_COMPRESSED;
    return convert_to_float(p->scale, p->source, by_rows ? row * (p->inner / p->group) + group : group * p->rows + row);
}

/* One row of a panel of q4 or q4z. Returns 0 if the layout cannot express it. */
static int pack_row(char *panel, const Published *p, int row, int layout) {
    for (int first = 0; first < p->inner; first += GROUP_SIZE, panel += group_bytes(layout)) {
        Group g = empty_group(layout);
        if (row < p->rows) {
            int group = first / p->group, zero = zero_point(p, row, group);
            float scale = scale_of(p, row, group);
            if (layout == LAYOUT_Q4 && zero != 8) return 0;
            g.scale = double_to_float16(scale);
            g.offset = double_to_float16(-(double)float16_to_float(g.scale) * zero);
            if ((g.scale & 0x7c00) == 0x7c00 || (g.offset & 0x7c00) == 0x7c00) return 0;
            for (int k = 0; k < GROUP_SIZE; k++) g.quants[k] = (uint8_t)quant(p, row, first + k);
        }
        write_group(panel, &g, layout, row % PANEL);
    }
    return 1;
}

int op_pack_published(const Instruction *i, int part, int parts) {
    Published p = {
        ADDRESS(const uint32_t, PACK_PUBLISHED_Q), ADDRESS(const uint32_t, PACK_PUBLISHED_ZERO),
        ADDRESS(const void, PACK_PUBLISHED_SCALE), INT(PACK_PUBLISHED_ROWS), INT(PACK_PUBLISHED_INNER),
        INT(PACK_PUBLISHED_GROUP), INT(PACK_PUBLISHED_SOURCE), INT(PACK_PUBLISHED_FORMAT),
    };
    int layout = INT(PACK_PUBLISHED_LAYOUT), panels = ceil_div(p.rows, PANEL), end = split(panels, part + 1, parts);
    if ((layout != LAYOUT_Q4 && layout != LAYOUT_Q4Z) || !dtype_size(p.source)) return 1;
    if (p.group < GROUP_SIZE || p.group % GROUP_SIZE || p.inner % p.group) return 1;
    for (int row = split(panels, part, parts) * PANEL; row < end * PANEL; row++) {
        char *panel = ADDRESS(char, PACK_PUBLISHED_W) + row / PANEL * panel_bytes(layout, p.inner);
        if (!pack_row(panel, &p, row, layout)) return 1;
    }
    return 0;
}
