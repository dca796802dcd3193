#pragma once

#include "common.h"

/* One of the chunks into which an instruction is cut. Returns 1 when it refuses its operands. */
int run_chunk(const Instruction *i, int chunk);
