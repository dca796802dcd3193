/* Attention without a score matrix: keys come in blocks, and the softmax over what has been seen so far is kept up to
   date (its running maximum and sum) while the weighted values add up in the output. Scores are in units of log 2. */
#include "attention.h"

#include "gemm.h"
#include "pack.h"
#include "scores.h"

enum {
    BUFFER = 4096,   /* floats of a packed block of keys, and of values */
    QUERIES = 256,   /* at most, that share a packed block */
    MANY_QUERIES = 32, /* at least, that are worth packing one for themselves */
    TILE = 6,        /* queries whose scores are at hand at once */
    MAX_DIM = BUFFER / PANEL,
};

typedef struct {
    float keys[BUFFER];       /* panels [keys / 8][dim][8] */
    float values[BUFFER];     /* panels [dim / 8][count][8] */
    float ceiling[MAX_KEYS];  /* of scores: infinity, the lowest float32 where hidden, -infinity past the end */
    Keys k;
    int hidden, capped;       /* how many keys the mask hides; whether some ceiling is not infinity */
} Block;

typedef struct {
    float highest[QUERIES], sum[QUERIES]; /* a sum of -1: nothing has been added up yet */
} Running;

static void open_block(const Head *h, Block *b, int start, int count) {
    const float infinity = __builtin_inff();
    b->k = (Keys){start, count, round_up(count, PANEL)};
    b->hidden = 0;
    for (int j = 0; j < b->k.padded; j++) {
        int hidden = j < count && h->mask && !h->mask[start + j];
        b->ceiling[j] = hidden ? LOWEST : j < count ? infinity : -infinity;
        b->hidden += hidden;
    }
    b->capped = b->hidden || b->k.padded > count;
}

/* Keys and values of another dtype than float32 are converted row by row on their way into panels. */
static void pack_converted(const Head *h, Block *b) {
    float rows[PANEL * MAX_DIM];
    for (int key = 0; key < b->k.count; key += PANEL) {
        int count = minimum(b->k.count - key, PANEL);
        for (int r = 0; r < count; r++) {
            int place = b->k.start + key + r;
            head_decode(rows + r * h->dim, h->k + place * h->k_stride, h->dtype, h->dim);
        }
        pack_panel(b->keys + key * h->dim, rows, count, h->dim, h->dim, 1, h->scale);
    }
    for (int key = 0; key < b->k.count; key++) {
        head_decode(rows, h->v + (b->k.start + key) * h->v_stride, h->dtype, h->dim);
        for (int d = h->dim; d < round_up(h->dim, PANEL); d++) rows[d] = 0;
        for (int d = 0; d < h->dim; d += PANEL)
            __builtin_memcpy(b->values + d * b->k.count + PANEL * key, rows + d, 4 * PANEL);
    }
}

static void pack_block(const Head *h, Block *b) {
    if (h->dtype != CACHE_F32) {
        pack_converted(h, b);
        return;
    }
    const float *k = (const float *)h->k + b->k.start * h->k_stride;
    const float *v = (const float *)h->v + b->k.start * h->v_stride;
    for (int key = 0; key < b->k.count; key += PANEL)
        pack_panel(b->keys + key * h->dim, k + key * h->k_stride, minimum(b->k.count - key, PANEL), h->dim,
                   h->k_stride, 1, h->scale);
    for (int d = 0; d < h->dim; d += PANEL)
        pack_panel(b->values + d * b->k.count, v + d, minimum(h->dim - d, PANEL), b->k.count, 1, h->v_stride, 1);
}

/* The highest of the `count` scores of one query and of `highest`. */
static float highest_of(float *s, int count, const Block *block, float highest) {
    f32x4 a = splat(highest), b = a;
    if (block->capped)
        for (int j = 0; j < count; j += 4) store(s + j, vec_min(load(s + j), load(block->ceiling + j)));
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
static void update(const Head *h, const Block *b, const Keys *keys, Running *running, float *scores, int query,
                   int queries, int first) {
    const Exp2 k = exp2_constants();
    float *highest = running->highest + query, *sum = running->sum + query, before[TILE];
    for (int r = 0; r < queries; r++) {
        before[r] = highest[r];
        highest[r] = highest_of(scores + r * MAX_KEYS, keys->padded, b, before[r]);
    }
    for (int r = 0; r < queries; r++) {
        float total = raise(scores + r * MAX_KEYS, keys->padded, highest[r], &k);
        if (first) {
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
static void add_values(const Head *h, const Block *b, const Keys *keys, const float *weights, float *y, int queries,
                       int first) {
    int whole = h->dim / PANEL, rest = h->dim % PANEL;
    Gemm g = {
        .x = weights, .x_stride = MAX_KEYS, .w = b->values, .panel_stride = PANEL * b->k.count,
        .init = first ? 0 : y, .init_stride = h->y_stride, .y = y, .y_stride = h->y_stride,
        .rows = queries, .panels = whole, .inner = keys->count,
    };
    gemm(&g);
    if (!rest) return;
    float aside[TILE * PANEL];
    y += whole * PANEL;
    for (int r = 0; !first && r < queries; r++)
        for (int d = 0; d < rest; d++) aside[r * PANEL + d] = y[r * h->y_stride + d];
    g.w += whole * g.panel_stride;
    g.init = first ? 0 : aside;
    g.y = aside;
    g.init_stride = g.y_stride = PANEL;
    g.panels = 1;
    gemm(&g);
    for (int r = 0; r < queries; r++)
        for (int d = 0; d < rest; d++) y[r * h->y_stride + d] = aside[r * PANEL + d];
}

/* s = cap * tanh(s / cap). */
static void cap_scores(float *s, int count, float cap) {
    const Exp2 k = exp2_constants();
    f32x4 scale = splat(2 / cap), height = splat(cap * LOG2E), twice = splat(2 * cap * LOG2E);
    for (int j = 0; j < count; j += 4) store(s + j, height - twice * logistic2(load(s + j) * scale, &k));
}

/* Of the keys of a block those up to the last that a tile of queries sees, in whole panels. */
static Keys seen_keys(const Head *h, const Keys *all, int query, int queries) {
    int seen = round_up(h->last + (query + queries - 1) * h->step - all->start + 1, PANEL);
    return (Keys){all->start, minimum(all->count, seen), minimum(all->padded, seen)};
}

/* With `skip`, keys that no query of the tile sees are left out. */
static void attend_tile(const Head *h, const Block *b, Running *running, int query, int queries, int skip) {
    float scores[TILE * MAX_KEYS], *y = h->y + query * h->y_stride;
    const float *q = h->q + query * h->q_stride;
    int first = running->sum[query] < 0;
    Keys k = skip ? seen_keys(h, &b->k, query, queries) : b->k;
    if (h->direct) {
        direct_scores(h, &k, q, scores, queries);
    } else {
        Gemm g = {
            .x = q, .x_stride = h->q_stride, .w = b->keys, .panel_stride = PANEL * h->dim,
            .y = scores, .y_stride = MAX_KEYS, .rows = queries, .panels = k.padded / PANEL, .inner = h->dim,
        };
        gemm(&g);
    }
    for (int r = 0; r < queries; r++) {
        float *s = scores + r * MAX_KEYS;
        int lowest = h->first + (query + r) * h->step - b->k.start, last = h->last + (query + r) * h->step - b->k.start;
        const float *bias = h->bias ? h->bias + (query + r) * h->kv_len + b->k.start : 0;
        if (h->softcap > 0) cap_scores(s, k.padded, h->softcap);
        if (bias || last < k.count - 1 || lowest > 0) adjust_scores(s, bias, LOG2E, 0, lowest, last, k.count);
    }
    update(h, b, &k, running, scores, query, queries, first);
    if (h->direct) direct_values(h, &k, scores, y, queries, first);
    else add_values(h, b, &k, scores, y, queries, first);
}

/* Whether every query sees some key. */
static int all_see(const Head *h) {
    int seen = -1, next = 0; /* the last key that is not masked, of those up to a query's last */
    for (int i = 0; i < (h->step ? h->queries : 1); i++) {
        int last = minimum(h->last + i, h->kv_len - 1);
        if (!h->mask) seen = last;
        else
            for (; next <= last; next++)
                if (h->mask[next]) seen = next;
        if (seen < maximum(h->first + i * h->step, 0)) return 0;
    }
    return 1;
}

/* A share of keys none of which was looked at adds nothing. */
static void leave_open(const Head *h, float *y, float highest, float sum) {
    for (int d = 0; sum < 0 && d < h->dim; d++) y[d] = 0;
    y[h->dim] = highest;
    y[h->dim + 1] = sum < 0 ? 0 : sum;
}

/* Goes through the keys; with `skip`, queries do not look at blocks they do not see. */
static void look(const Head *h, Running *running, int skip) {
    Block b;
    int begin = split(h->kv_len, h->part, h->parts), limit = split(h->kv_len, h->part + 1, h->parts);
    if (skip && h->parts == 1) {
        begin = maximum(h->first, 0);
        limit = minimum(limit, h->last + (h->queries - 1) * h->step + 1);
    }
    int most = h->direct ? MAX_KEYS : minimum(BUFFER / round_up(h->dim, PANEL) & -PANEL, MAX_KEYS);
    int size = round_up(ceil_div(limit - begin, maximum(ceil_div(limit - begin, most), 1)), PANEL);
    for (int j = 0; j < h->queries; j++) running->highest[j] = LOWEST, running->sum[j] = -1;
    for (int start = begin; start < limit; start += size) {
        open_block(h, &b, start, minimum(size, limit - start));
        if (skip && b.hidden == b.k.count) continue;
        if (!h->direct) pack_block(h, &b);
        for (int query = 0; query < h->queries;) {
            int left = h->queries - query, queries = ceil_div(left, ceil_div(left, TILE));
            int later = h->last + (query + queries - 1) * h->step < start;
            int earlier = h->first + query * h->step >= start + b.k.count;
            if (!(skip && (later || earlier))) attend_tile(h, &b, running, query, queries, skip);
            query += queries;
        }
    }
}

/* Queries may skip what they do not see if each sees some key. One that sees none, or whose bias hides all that it sees,
   gets the mean of all values, as all of its scores are the same. */
static void attend(const Head *h) {
    Running running;
    int skip = all_see(h);
    look(h, &running, skip);
    for (int r = 0; skip && h->bias && r < h->queries; r++) {
        if (running.highest[r] > LOWEST) continue;
        skip = 0;
        look(h, &running, skip);
    }
    for (int r = 0; r < h->queries; r++) {
        float *y = h->y + r * h->y_stride;
        if (h->parts > 1) {
            leave_open(h, y, running.highest[r], running.sum[r]);
            continue;
        }
        f32x4 factor = splat(1 / running.sum[r]);
        for (int d = 0; d < h->dim; d += 4) store_some(y + d, load_some(y + d, h->dim - d) * factor, h->dim - d);
    }
}

int op_attention(const Instruction *i, int part, int parts) {
    int batch = INT(ATTENTION_BATCH), heads = INT(ATTENTION_HEADS), kv_heads = INT(ATTENTION_KV_HEADS);
    int q_len = INT(ATTENTION_Q_LEN), kv_len = INT(ATTENTION_KV_LEN), dim = INT(ATTENTION_HEAD_DIM);
    int q_stride = INT(ATTENTION_Q_STRIDE), k_stride = INT(ATTENTION_K_STRIDE), v_stride = INT(ATTENTION_V_STRIDE);
    int bias_stride = INT(ATTENTION_BIAS_BATCH_STRIDE), capacity = INT(ATTENTION_CAPACITY);
    int causal = INT(ATTENTION_CAUSAL), window = INT(ATTENTION_WINDOW), dtype = INT(ATTENTION_CACHE_DTYPE);
    const float *bias = INPUT(ATTENTION_BIAS);
    const int32_t *mask = ADDRESS(const int32_t, ATTENTION_MASK);
    int shares = maximum(INT(ATTENTION_SHARES), 1);
    if (dim > MAX_DIM || kv_heads < 1 || heads % kv_heads || kv_len < 1 || kv_len > capacity) return 1;
    if (shares > 1 && (q_len > 1 || window)) return 1;

    int group = heads / kv_heads, single = q_len == 1; /* then heads of a group are taken as queries of one head */
    int queries = single ? group : q_len, items = single ? kv_heads : heads;
    /* Where there are fewer heads than parts, their queries are divided. */
    int chunks = maximum(ceil_div(queries, QUERIES), minimum(ceil_div(parts, batch * items), queries / MANY_QUERIES));
    int all = batch * items * chunks * shares, end = split(all, part + 1, parts);
    for (int n = split(all, part, parts); n < end; n++) {
        int share = n % shares, item = n / shares;
        int chunk = item % chunks, b = item / chunks / items, head = item / chunks % items * (single ? group : 1);
        int query = split(queries, chunk, chunks), width = shares > 1 ? dim + 2 : dim;
        int q_step = single ? dim : q_stride, y_step = single ? shares * width : heads * dim;
        int words = head / group * head_words(dtype, dim), last = causal && !single ? query + kv_len - q_len : kv_len - 1;
        Head h = {
            .q = INPUT(ATTENTION_Q) + b * q_len * q_stride + head * dim + query * q_step,
            .k = ADDRESS(const uint32_t, ATTENTION_K) + b * capacity * k_stride + words,
            .v = ADDRESS(const uint32_t, ATTENTION_V) + b * capacity * v_stride + words,
            .bias = bias ? bias + b * bias_stride + (head * q_len + query) * kv_len : 0,
            .mask = mask ? mask + b * INT(ATTENTION_MASK_STRIDE) : 0,
            .y = OUTPUT(ATTENTION_Y) + ((b * q_len * heads + head) * shares + share) * width + query * y_step,
            .queries = split(queries, chunk + 1, chunks) - query, .kv_len = kv_len, .dim = dim, .dtype = dtype,
            .q_stride = q_step, .k_stride = k_stride, .v_stride = v_stride, .y_stride = y_step,
            .first = window ? last - window + 1 : INT32_MIN / 2, .last = last, .step = causal && !single,
            .part = share, .parts = shares, .direct = single && dim % 4 == 0,
            .scale = FLOAT(ATTENTION_SCALE) * LOG2E, .softcap = FLOAT(ATTENTION_SOFTCAP),
        };
        attend(&h);
    }
    return 0;
}

int op_join_attention(const Instruction *i, int part, int parts) {
    int rows = INT(JOIN_ATTENTION_ROWS), shares = INT(JOIN_ATTENTION_SHARES), dim = INT(JOIN_ATTENTION_HEAD_DIM);
    const Exp2 k = exp2_constants();
    for (int row = split(rows, part, parts), end = split(rows, part + 1, parts); row < end; row++) {
        const float *x = INPUT(JOIN_ATTENTION_X) + row * shares * (dim + 2), *share = x;
        float *y = OUTPUT(JOIN_ATTENTION_Y) + row * dim, highest = LOWEST, total = 0;
        for (int s = 0; s < shares; s++, share += dim + 2) highest = share[dim] > highest ? share[dim] : highest;
        share = x;
        for (int s = 0; s < shares; s++, share += dim + 2) {
            f32x4 factor = vec_exp2(splat(share[dim] - highest), &k);
            total += factor[0] * share[dim + 1];
            for (int d = 0; d < dim; d += 4) {
                f32x4 sum = load_some(share + d, dim - d) * factor;
                store_some(y + d, s ? load_some(y + d, dim - d) + sum : sum, dim - d);
            }
        }
        for (int d = 0; d < dim; d += 4) store_some(y + d, load_some(y + d, dim - d) * splat(1 / total), dim - d);
    }
    return 0;
}
