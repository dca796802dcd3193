/* What the two ways of attention share: with keys and values packed for many queries, and read where they lie. */
#pragma once

#include "cache.h"
#include "math.h"

enum { MAX_KEYS = 128 }; /* of a block, and the distance of the scores of two queries */

/* Some queries of one head, and the keys and values they attend to. */
typedef struct {
    const float *q, *bias; /* bias: row of the first query, or NULL */
    const uint32_t *k, *v; /* head vectors of a cache dtype */
    const int32_t *mask;   /* or NULL */
    float *y;
    int queries, kv_len, dim, dtype, q_stride, k_stride, v_stride, y_stride;
    int first, last, step; /* query i sees keys first + i * step .. last + i * step */
    int part, parts;       /* of the keys; with several, results stay open: see `shares` in optable.py */
    int direct;            /* whether keys and values are read where they lie */
    float scale;           /* of scores, log2(e) included */
    float softcap;         /* of scores without it; 0: none */
} Head;

/* The keys of a block; `padded` is `count` rounded up to whole panels. */
typedef struct {
    int start, count, padded;
} Keys;

/* scores [queries][MAX_KEYS] of the queries at q, those past `count` 0. */
void direct_scores(const Head *h, const Keys *keys, const float *q, float *scores, int queries);

/* y += weights [queries][MAX_KEYS] * values, or without the sum at first. May change the weights. */
void direct_values(const Head *h, const Keys *keys, float *weights, float *y, int queries, int first);
