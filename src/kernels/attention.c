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
    float keys[BUFFER];       /* panels [keys / 8][dim][8] */
    float values[BUFFER];     /* panels [dim / 8][count][8] */
    float ceiling[MAX_KEYS];  /* of scores: infinity, the lowest float32 where hidden, -infinity past the end */
    int start, count, padded; /* keys; count rounded up to whole panels */
    int first;                /* nothing has been added up yet */
    int hidden, capped;       /* how many keys the mask hides; whether some ceiling is not infinity */
} Block;

typedef struct {
    float highest[QUERIES], sum[QUERIES];
} Running;

static void open_block(const Head *h, Block *b, int start, int count) {
    const float infinity = __builtin_inff();
    b->start = start;
    b->count = count;
    b->padded = round_up(count, PANEL);
    b->hidden = 0;
    for (int j = 0; j < b->padded; j++) {
        int hidden = j < count && h->mask && !h->mask[start + j];
        b->ceiling[j] = hidden ? LOWEST : j < count ? infinity : -infinity;
        b->hidden += hidden;
    }
    b->capped = b->hidden || b->padded > count;
}

static void pack_block(const Head *h, Block *b) {
    const float *k = h->k + b->start * h->k_stride, *v = h->v + b->start * h->v_stride;
    for (int key = 0; key < b->count; key += PANEL)
        pack_panel(b->keys + key * h->dim, k + key * h->k_stride, minimum(b->count - key, PANEL), h->dim, h->k_stride,
                   1, h->scale);
    for (int d = 0; d < h->dim; d += PANEL)
        pack_panel(b->values + d * b->count, v + d, minimum(h->dim - d, PANEL), b->count, 1, h->v_stride, 1);
}

/* The highest of the scores of one query and of `highest`. */
static float highest_of(float *s, const Block *block, float highest) {
    f32x4 a = splat(highest), b = a;
    if (block->capped)
        for (int j = 0; j < block->padded; j += 4) store(s + j, vec_min(load(s + j), load(block->ceiling + j)));
    for (int j = 0; j < block->padded; j += 8) {
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
    float *highest = running->highest + query, *sum = running->sum + query, before[TILE];
    for (int r = 0; r < queries; r++) {
        before[r] = highest[r];
        highest[r] = highest_of(scores + r * MAX_KEYS, b, before[r]);
    }
    for (int r = 0; r < queries; r++) {
        float total = raise(scores + r * MAX_KEYS, b->padded, highest[r], &k);
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
    Gemm g = {
        .x = h->q + query * h->q_stride, .x_stride = h->q_stride, .w = b->keys, .panel_stride = PANEL * h->dim,
        .y = scores, .y_stride = MAX_KEYS, .rows = queries, .panels = b->padded / PANEL, .inner = h->dim,
    };
    gemm(&g);
    for (int r = 0; r < queries; r++) {
        int last = h->causal ? h->last + query + r - b->start : b->count;
        const float *bias = h->bias ? h->bias + (query + r) * h->kv_len + b->start : 0;
        if (bias || last < b->count - 1) adjust_scores(scores + r * MAX_KEYS, bias, LOG2E, 0, last, b->count);
    }
    update(h, b, running, scores, query, queries);
    add_values(h, b, scores, h->y + query * h->y_stride, queries);
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
    for (int start = 0; start < limit; start += size) {
        open_block(h, &b, start, minimum(size, limit - start));
        if (skip && b.hidden == b.count) continue;
        pack_block(h, &b);
        for (int query = 0; query < h->queries;) {
            int left = h->queries - query, queries = ceil_div(left, ceil_div(left, TILE));
            if (!(skip && h->causal && h->last + query + queries <= start))
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
    int bias_stride = INT(ATTENTION_BIAS_BATCH_STRIDE);
    const float *bias = INPUT(ATTENTION_BIAS);
    const int32_t *mask = ADDRESS(const int32_t, ATTENTION_MASK);
    if (dim > MAX_DIM || kv_heads < 1 || heads % kv_heads || kv_len < 1) return 1;

    int group = heads / kv_heads, single = q_len == 1; /* then heads of a group are taken as queries of one head */
    int queries = single ? group : q_len, chunks = ceil_div(queries, QUERIES), items = single ? kv_heads : heads;
    int begin = split(batch * items * chunks, part, parts), end = split(batch * items * chunks, part + 1, parts);
    for (int item = begin; item < end; item++) {
        int chunk = item % chunks, b = item / chunks / items, head = item / chunks % items * (single ? group : 1);
        int query = split(queries, chunk, chunks);
        int q_step = single ? dim : q_stride, y_step = single ? dim : heads * dim;
        Head h = {
            .q = INPUT(ATTENTION_Q) + b * q_len * q_stride + head * dim + query * q_step,
            .k = INPUT(ATTENTION_K) + b * kv_len * k_stride + head / group * dim,
            .v = INPUT(ATTENTION_V) + b * kv_len * v_stride + head / group * dim,
            .bias = bias ? bias + b * bias_stride + (head * q_len + query) * kv_len : 0,
            .mask = mask ? mask + b * kv_len : 0,
            .y = OUTPUT(ATTENTION_Y) + (b * q_len * heads + head) * dim + query * y_step,
            .queries = split(queries, chunk + 1, chunks) - query, .kv_len = kv_len, .dim = dim,
            .q_stride = q_step, .k_stride = k_stride, .v_stride = v_stride, .y_stride = y_step,
            .last = query + kv_len - q_len, .causal = INT(ATTENTION_CAUSAL) && !single,
            .scale = FLOAT(ATTENTION_SCALE) * LOG2E,
        };
        attend(&h);
    }
    return 0;
}
