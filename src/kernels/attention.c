/* Attention without a score matrix: keys come in blocks, and the softmax over what has been seen so far is kept up to
   date (its running maximum and sum) while the weighted values add up in the output. Scores are in units of log 2. */
#include "gemm.h"
#include "math.h"
#include "pack.h"
#include "scores.h"

enum {
    BUFFER = 4096,   /* floats of a packed block of keys, and of values */
    MAX_KEYS = 128,  /* of a block */
    QUERIES = 256,   /* that share a packed block */
    TILE = 6,        /* queries whose scores are at hand at once */
    MAX_DIM = BUFFER / PANEL,
};

/* Some queries of one head, and the keys and values they attend to. */
typedef struct {
    const float *q, *k, *v, *bias; /* bias: row of the first query, or NULL */
    const int32_t *mask;           /* or NULL */
    float *y;
    int queries, kv_len, dim, q_stride, k_stride, v_stride, y_stride;
    int last;    /* the last key that the first query sees; query i sees i more if causal */
    int causal;
    float scale; /* of scores, log2(e) included */
} Head;

typedef struct {
    float keys[BUFFER];   /* panels [keys / 8][dim][8] */
    float values[BUFFER]; /* panels [dim / 8][count][8] */
    int start, count, first;
    int masked; /* how many of the keys the mask hides */
} Block;

typedef struct {
    float highest[QUERIES], sum[QUERIES];
} Running;

static void pack_block(const Head *h, Block *b) {
    const float *k = h->k + b->start * h->k_stride, *v = h->v + b->start * h->v_stride;
    for (int key = 0; key < b->count; key += PANEL)
        pack_panel(b->keys + key * h->dim, k + key * h->k_stride, minimum(b->count - key, PANEL), h->dim, h->k_stride,
                   1, h->scale);
    for (int d = 0; d < h->dim; d += PANEL)
        pack_panel(b->values + d * b->count, v + d, minimum(h->dim - d, PANEL), b->count, 1, h->v_stride, 1);
}

static float highest_of(const float *s, int count, float highest) {
    f32x4 a = splat(highest), b = a;
    for (int j = 0; j < count; j += 8) {
        a = vec_max(a, load(s + j));
        b = vec_max(b, load(s + j + 4));
    }
    return max_lanes(vec_max(a, b));
}

/* Sum of s [count] = 2^(s - shift). */
INLINE float raise(float *s, int count, float shift, const Exp2 *k) {
    f32x4 shifts = splat(shift), a = splat(0), b = a;
    for (int j = 0; j < count; j += 8) {
        f32x4 low = vec_exp2(load(s + j) - shifts, k), high = vec_exp2(load(s + j + 4) - shifts, k);
        store(s + j, low);
        store(s + j + 4, high);
        a += low;
        b += high;
    }
    return sum_lanes(a + b);
}

/* Scores of a tile become weights relative to the highest score so far of each query; what a query has added up is
   rescaled where that rose. One step for all queries at a time, so that none waits for another's result. */
static void update(const Head *h, const Block *b, Running *running, float *scores, int query, int queries) {
    const Exp2 k = exp2_constants();
    int padded = round_up(b->count, PANEL);
    float *highest = running->highest + query, *sum = running->sum + query, before[TILE];
    for (int r = 0; r < queries; r++) {
        before[r] = highest[r];
        highest[r] = highest_of(scores + r * MAX_KEYS, padded, before[r]);
    }
    for (int r = 0; r < queries; r++) {
        float total = raise(scores + r * MAX_KEYS, padded, highest[r], &k);
        if (b->first) {
            sum[r] = total;
        } else if (highest[r] > before[r]) {
            f32x4 factor = vec_exp2(splat(before[r] - highest[r]), &k);
            float *y = h->y + (query + r) * h->y_stride;
            for (int d = 0; d < h->dim; d += 4) store_some(y + d, load_some(y + d, h->dim - d) * factor, h->dim - d);
            sum[r] = sum[r] * factor[0] + total;
        } else {
            sum[r] += total;
        }
    }
}

/* y += weights * values for a tile of queries. */
static void add_values(const Head *h, const Block *b, const float *weights, float *y, int queries) {
    int whole = h->dim / PANEL, rest = h->dim % PANEL;
    Gemm g = {
        .x = weights, .x_stride = MAX_KEYS, .w = b->values, .panel_stride = PANEL * b->count,
        .init = b->first ? 0 : y, .init_stride = h->y_stride, .y = y, .y_stride = h->y_stride,
        .rows = queries, .panels = whole, .inner = b->count,
    };
    gemm(&g);
    if (!rest) return;
    float aside[TILE * PANEL];
    y += whole * PANEL;
    for (int r = 0; !b->first && r < queries; r++)
        for (int d = 0; d < rest; d++) aside[r * PANEL + d] = y[r * h->y_stride + d];
    g.w += whole * g.panel_stride;
    g.init = b->first ? 0 : aside;
    g.y = aside;
    g.init_stride = g.y_stride = PANEL;
    g.panels = 1;
    gemm(&g);
    for (int r = 0; r < queries; r++)
        for (int d = 0; d < rest; d++) y[r * h->y_stride + d] = aside[r * PANEL + d];
}

static void attend_tile(const Head *h, const Block *b, Running *running, int query, int queries) {
    float scores[TILE * MAX_KEYS];
    int padded = round_up(b->count, PANEL);
    Gemm g = {
        .x = h->q + query * h->q_stride, .x_stride = h->q_stride, .w = b->keys, .panel_stride = PANEL * h->dim,
        .y = scores, .y_stride = MAX_KEYS, .rows = queries, .panels = padded / PANEL, .inner = h->dim,
    };
    gemm(&g);
    for (int r = 0; r < queries; r++) {
        float *s = scores + r * MAX_KEYS;
        int last = h->causal ? h->last + query + r - b->start : b->count;
        if (h->bias || b->masked || last < b->count - 1)
            adjust_scores(s, h->bias ? h->bias + (query + r) * h->kv_len + b->start : 0, LOG2E,
                          b->masked ? h->mask + b->start : 0, last, b->count);
        for (int j = b->count; j < padded; j++) s[j] = -__builtin_inff();
    }
    update(h, b, running, scores, query, queries);
    add_values(h, b, scores, h->y + query * h->y_stride, queries);
}

static int count_masked(const int32_t *mask, int count) {
    int masked = 0;
    for (int j = 0; j < count; j++) masked += mask[j] == 0;
    return masked;
}

static int first_unmasked(const Head *h) {
    int key = 0;
    while (h->mask && key < h->kv_len && !h->mask[key]) key++;
    return key;
}

/* Queries of which each sees some key need not look at blocks they do not see. One that sees none gets the mean of all
   values, as all of its scores are the same. */
static void attend(const Head *h) {
    Block b;
    Running running;
    int last = h->causal ? h->last : h->kv_len - 1;
    int skip = last >= first_unmasked(h), limit = h->kv_len;
    if (skip && h->causal) limit = minimum(limit, h->last + h->queries);
    int most = minimum(BUFFER / round_up(h->dim, PANEL) & -PANEL, MAX_KEYS);
    int size = round_up(ceil_div(limit, ceil_div(limit, most)), PANEL);
    for (int j = 0; j < h->queries; j++) running.highest[j] = LOWEST;
    b.first = 1;
    for (b.start = 0; b.start < limit; b.start += size) {
        b.count = minimum(size, limit - b.start);
        b.masked = h->mask ? count_masked(h->mask + b.start, b.count) : 0;
        if (skip && b.masked == b.count) continue;
        pack_block(h, &b);
        for (int query = 0; query < h->queries;) {
            int left = h->queries - query, queries = ceil_div(left, ceil_div(left, TILE));
            if (!(skip && h->causal && h->last + query + queries <= b.start))
                attend_tile(h, &b, &running, query, queries);
            query += queries;
        }
        b.first = 0;
    }
    for (int r = 0; r < h->queries; r++) {
        float *y = h->y + r * h->y_stride;
        f32x4 factor = splat(1 / running.sum[r]);
        for (int d = 0; d < h->dim; d += 4) store_some(y + d, load_some(y + d, h->dim - d) * factor, h->dim - d);
    }
}

int op_attention(const Instruction *i, int part, int parts) {
    int batch = INT(ATTENTION_BATCH), heads = INT(ATTENTION_HEADS), kv_heads = INT(ATTENTION_KV_HEADS);
    int q_len = INT(ATTENTION_Q_LEN), kv_len = INT(ATTENTION_KV_LEN), dim = INT(ATTENTION_HEAD_DIM);
    int q_stride = INT(ATTENTION_Q_STRIDE), k_stride = INT(ATTENTION_K_STRIDE), v_stride = INT(ATTENTION_V_STRIDE);
    int causal = INT(ATTENTION_CAUSAL), bias_stride = INT(ATTENTION_BIAS_BATCH_STRIDE);
    const float *bias = INPUT(ATTENTION_BIAS);
    const int32_t *mask = ADDRESS(const int32_t, ATTENTION_MASK);
    if (dim > MAX_DIM || kv_heads < 1 || heads % kv_heads || kv_len < 1) return 1;
    int chunks = ceil_div(q_len, QUERIES), items = batch * heads * chunks, end = split(items, part + 1, parts);
    for (int item = split(items, part, parts); item < end; item++) {
        int chunk = item % chunks, head = item / chunks % heads, b = item / chunks / heads;
        int query = split(q_len, chunk, chunks), kv_head = head / (heads / kv_heads);
        Head h = {
            .q = INPUT(ATTENTION_Q) + (b * q_len + query) * q_stride + head * dim,
            .k = INPUT(ATTENTION_K) + b * kv_len * k_stride + kv_head * dim,
            .v = INPUT(ATTENTION_V) + b * kv_len * v_stride + kv_head * dim,
            .bias = bias ? bias + b * bias_stride + (head * q_len + query) * kv_len : 0,
            .mask = mask ? mask + b * kv_len : 0,
            .y = OUTPUT(ATTENTION_Y) + ((b * q_len + query) * heads + head) * dim,
            .queries = split(q_len, chunk + 1, chunks) - query, .kv_len = kv_len, .dim = dim,
            .q_stride = q_stride, .k_stride = k_stride, .v_stride = v_stride, .y_stride = heads * dim,
            .last = query + kv_len - q_len, .causal = causal, .scale = FLOAT(ATTENTION_SCALE) * LOG2E,
        };
        attend(&h);
    }
    return 0;
}
