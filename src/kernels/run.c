/* The entry point: walks the instructions of a program and calls the op functions. */
#include "run.h"

typedef int Op(const Instruction *i, int part, int parts);

static Op *const OPS[] = {
#define ENTRY(NAME, name) [OP_##NAME] = op_##name,
    FOR_EACH_OP(ENTRY)
#undef ENTRY
};

int run_chunk(const Instruction *i, int chunk) {
    unsigned op = i->words[0] & 0xffff;
    return op >= sizeof OPS / sizeof *OPS || !OPS[op] || OPS[op](i, chunk, (int)i->words[1]);
}

static int run_instruction(const Instruction *i) {
    for (int chunk = 0; chunk < (int)i->words[1]; chunk++)
        if (run_chunk(i, chunk)) return 1;
    return 0;
}

/* Run `count` words of instructions. Returns 0, or 1 + the index of the word where the failing instruction starts. */
EXPORT(run) int run(const uint32_t *words, uint32_t count, const int32_t *registers) {
    for (uint32_t at = 0; at < count;) {
        Instruction instruction = {words + at, registers};
        uint32_t length = words[at] >> 16;
        if (!length || run_instruction(&instruction)) return 1 + (int)at;
        at += length;
    }
    return 0;
}
