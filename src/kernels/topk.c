/* The k largest of each row, in the output arrays themselves: a heap whose root is the least of those kept. */
#include "topk.h"

/* Whether what is at a comes after what is at b in the result. */
static int after(const Heap *h, int a, int b) {
    return h->values[a] < h->values[b] || (h->values[a] == h->values[b] && h->indices[a] > h->indices[b]);
}

static void swap(Heap *h, int a, int b) {
    float value = h->values[a];
    int32_t index = h->indices[a];
    h->values[a] = h->values[b], h->indices[a] = h->indices[b];
    h->values[b] = value, h->indices[b] = index;
}

static void sift_down(Heap *h, int at, int size) {
    for (int child; (child = 2 * at + 1) < size; at = child) {
        if (child + 1 < size && after(h, child + 1, child)) child++;
        if (!after(h, child, at)) return;
        swap(h, child, at);
    }
}

void select_largest(Heap *h, const float *x, int columns, int k) {
    for (int j = 0; j < k; j++) h->values[j] = x[j], h->indices[j] = j;
    for (int j = k / 2 - 1; j >= 0; j--) sift_down(h, j, k);
    for (int j = k; j < columns; j++) {
        if (!(x[j] > h->values[0])) continue;
        h->values[0] = x[j], h->indices[0] = j;
        sift_down(h, 0, k);
    }
    for (int size = k - 1; size > 0; size--) {
        swap(h, 0, size);
        sift_down(h, 0, size);
    }
}

int op_topk(const Instruction *i, int part, int parts) {
    int rows = INT(TOPK_ROWS), columns = INT(TOPK_COLUMNS), k = INT(TOPK_K), end = split(rows, part + 1, parts);
    if (k < 1 || k > columns) return 1;
    for (int r = split(rows, part, parts); r < end; r++) {
        Heap h = {OUTPUT(TOPK_VALUES) + r * k, ADDRESS(int32_t, TOPK_INDICES) + r * k};
        select_largest(&h, INPUT(TOPK_X) + r * columns, columns, k);
    }
    return 0;
}
