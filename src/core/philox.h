/* Philox 4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw (2011): four random
 * words from a counter and a key, with no state, so that any entry of a dropout mask can be computed at
 * any time, by any thread, on any shard. */
#ifndef AGI_PHILOX_H
#define AGI_PHILOX_H

#include <stdint.h>

static inline void agi_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t word[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)c0 * 0xD2511F53u;
        const uint64_t b = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

#endif
