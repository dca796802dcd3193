/* Normal numbers by counter: value n depends on the seed and n alone, so any part can be made by itself. */
#include "math.h"

/* A bijection of 32-bit words that spreads every input bit over all output bits. */
INLINE uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352d;
    x ^= x >> 15;
    x *= 0x846ca68b;
    return x ^ x >> 16;
}

int op_random_normal(const Instruction *i, int part, int parts) {
    int count = INT(RANDOM_NORMAL_COUNT), pairs = (count + 1) / 2, end = split(pairs, part + 1, parts);
    float *y = OUTPUT(RANDOM_NORMAL_Y);
    uint32_t key = mix((uint32_t)LITERAL(RANDOM_NORMAL_SEED) ^ 0x9e3779b9);
    double mean = FLOAT(RANDOM_NORMAL_MEAN), std = FLOAT(RANDOM_NORMAL_STD), cosine, sine;
    for (int pair = split(pairs, part, parts); pair < end; pair++) {
        uint32_t a = mix(mix(2 * (uint32_t)pair) + key), b = mix(mix(2 * (uint32_t)pair + 1) + key);
        double radius = std * __builtin_sqrt(-2 * log_double((a + 0.5) * 0x1p-32)); /* Box-Muller */
        circle(b * 0x1p-32, &cosine, &sine);
        y[2 * pair] = (float)(mean + radius * cosine);
        if (2 * pair + 1 < count) y[2 * pair + 1] = (float)(mean + radius * sine);
    }
    return 0;
}
