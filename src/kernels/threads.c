/* Several threads on one program. Every entry of its table, an instruction or several, is cut into chunks, whose
   tickets count through the whole program. A thread claims the next ticket once all chunks are done that it needs, so
   nobody waits for a helper that holds no chunk, and a helper that never comes costs nothing. */
#include "run.h"

#ifdef __wasm_atomics__

enum { SPINS = 20000, PAUSE_NS = 2000000, PATIENCE = 2500 }; /* a stalled run is given up after PATIENCE pauses: 5 s */

/* Entry n begins at word `at` and with ticket `first`, for which all before ticket `after` must be done; one more entry
   ends the table. The instructions of an entry have as many chunks each, of which the nth need no others than nths. */
typedef struct {
    uint32_t at, first, after;
} Entry;

typedef struct {
    uint32_t count;
    Entry entries[];
} Table;

/* Shared with helpers; each line has what is written together. Zero at the start. */
typedef struct {
    _Alignas(64) uint32_t generation;
    uint32_t quit, sleepers, failed;
    const uint32_t *words;
    const int32_t *registers;
    const Table *table;
    uint32_t count, total;      /* entries of the table, and the ticket at which the run ends */
    _Alignas(64) uint64_t next; /* generation << 32 | ticket; 0 while the program is exchanged */
    _Alignas(64) uint32_t done;
    uint32_t waiters;
} Control;

#define READ(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define WRITE(p, v) __atomic_store_n(p, v, __ATOMIC_SEQ_CST)
#define ADD(p, v) __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST)

static void sleep_while(uint32_t *place, uint32_t value, uint32_t *sleepers, int64_t ns) {
    ADD(sleepers, 1);
    __builtin_wasm_memory_atomic_wait32((int *)place, (int)value, ns);
    ADD(sleepers, (uint32_t)-1);
}

static void wake(uint32_t *place) { __builtin_wasm_memory_atomic_notify((int *)place, (uint32_t)-1); }

/* Until `done` reaches `goal`. False when the generation is over, or nothing was done for PATIENCE pauses. */
static int wait_for(Control *c, uint32_t generation, uint32_t goal) {
    uint32_t seen = READ(&c->done);
    for (int spins = 0, pauses = 0; seen < goal;) {
        if (READ(&c->generation) != generation) return 0;
        if (++spins > SPINS) {
            sleep_while(&c->done, seen, &c->waiters, PAUSE_NS);
            if (++pauses > PATIENCE) return 0;
        }
        uint32_t now = READ(&c->done);
        if (now != seen) spins = pauses = 0;
        seen = now;
    }
    return 1;
}

/* Claims and does chunks until none is left.

   A helper may come, or go on, when the program is done and its memory has other contents. `next` tells: where it has
   the generation, table, count and total are of one program, and inside memory; where a ticket could be claimed, the
   program was there when the table was read. */
static void work(Control *c, uint32_t generation) {
    const Table *table = READ(&c->table);
    uint32_t count = READ(&c->count), total = READ(&c->total), n = 0;
    for (;;) {
        uint64_t next = READ(&c->next);
        uint32_t ticket = (uint32_t)next;
        if ((uint32_t)(next >> 32) != generation || ticket >= total) return;
        while (n + 1 < count && table->entries[n + 1].first <= ticket) n++;
        uint32_t at = table->entries[n].at, first = table->entries[n].first, after = table->entries[n].after;
        uint32_t end = table->entries[n + 1].at;
        if (READ(&c->done) < after) {
            if (!wait_for(c, generation, after)) return;
            continue;
        }
        if (!__atomic_compare_exchange_n(&c->next, &next, next + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) continue;
        /* After a failure the remaining chunks are only counted. */
        for (; at < end && !READ(&c->failed); at += c->words[at] >> 16) {
            Instruction i = {c->words + at, c->registers};
            uint32_t none = 0, here = 1 + at;
            if (run_chunk(&i, (int)(ticket - first)))
                __atomic_compare_exchange_n(&c->failed, &none, here, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
            if ((uint32_t)(READ(&c->next) >> 32) != generation) return; /* given up: the words are another program's */
        }
        ADD(&c->done, 1);
        if (READ(&c->waiters)) wake(&c->done);
    }
}

/* What a helper thread calls once; returns after `stop`. */
EXPORT(help) int help(Control *c) {
    uint32_t last = 0;
    for (;;) {
        uint32_t generation;
        for (int spins = 0; (generation = READ(&c->generation)) == last;) {
            if (READ(&c->quit)) return 0;
            if (++spins > SPINS) sleep_while(&c->generation, last, &c->sleepers, -1);
        }
        if (READ(&c->quit)) return 0;
        last = generation;
        work(c, generation);
    }
}

EXPORT(stop) int stop(Control *c) {
    WRITE(&c->quit, 1);
    ADD(&c->generation, 1);
    wake(&c->generation);
    return 0;
}

/* The ticket of the first entry that begins at a word or behind it. */
static uint32_t ticket_at(const Table *table, uint32_t at) {
    uint32_t n = 0;
    while (table->entries[n].at < at) n++;
    return table->entries[n].first;
}

/* As `run` of the words from `begin` to `end`, with the helpers of `c`; the table follows the `count` words of the
   program. Entries belong to where they begin. Where a helper went away with a chunk, returns the complement of the
   word from which on to start over. */
EXPORT(run_threads) uint32_t run_threads(Control *c, const uint32_t *words, uint32_t count, const int32_t *registers,
                                         uint32_t begin, uint32_t end) {
    const Table *table = (const Table *)(words + count);
    uint32_t generation = c->generation + 1, first = ticket_at(table, begin), total = ticket_at(table, end), n = 0;
    WRITE(&c->next, 0);
    WRITE(&c->words, words);
    WRITE(&c->registers, registers);
    WRITE(&c->table, table);
    WRITE(&c->count, table->count);
    WRITE(&c->total, total);
    WRITE(&c->failed, 0);
    WRITE(&c->done, first);
    WRITE(&c->next, (uint64_t)generation << 32 | first);
    WRITE(&c->generation, generation);
    if (READ(&c->sleepers)) wake(&c->generation);
    work(c, generation);
    if (wait_for(c, generation, total)) return READ(&c->failed);
    WRITE(&c->next, 0); /* whoever comes back is to leave it */
    while (table->entries[n + 1].first <= READ(&c->done)) n++;
    while (table->entries[n].first > table->entries[n].after && table->entries[n].first > first) n--;
    return ~table->entries[n].at;
}

#endif
