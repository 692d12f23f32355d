/* The function that a fuzz target defines: libFuzzer's entry point, which replay.c calls too. FUZZ_REQUIRE aborts the
 * process if a condition does not hold. */
#ifndef AG_FUZZ_TARGET_H
#define AG_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_REQUIRE(holds)                                                                                  \
    do {                                                                                                     \
        if (!(holds)) {                                                                                      \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #holds);                              \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* The input as a source of small decisions; after its end it gives zeros. */
struct bytes {
    const uint8_t *data;
    size_t left;
};

static inline uint8_t next_byte(struct bytes *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->data++;
}

/* Returns a number from 0 to below - 1. */
static inline int64_t next_below(struct bytes *in, int64_t below)
{
    return next_byte(in) % below;
}

static inline int next_bit(struct bytes *in)
{
    return next_byte(in) & 1;
}

/* Returns any 64 bits. */
static inline uint64_t next_word(struct bytes *in)
{
    uint64_t word = 0;
    for (int n = 0; n < 8; n++)
        word = word << 8 | next_byte(in);
    return word;
}

#endif
