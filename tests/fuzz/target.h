/* What a fuzz target defines: libFuzzer's entry, which replay.c calls too. A target stops the process with
 * FUZZ_REQUIRE if a promise is broken. */
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
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #holds);                              \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* The input as a sequence of small decisions; zero after its end. */
struct bytes {
    const uint8_t *data;
    size_t left;
};

static inline uint8_t next_byte(struct bytes *x)
{
    if (x->left == 0)
        return 0;
    x->left--;
    return *x->data++;
}

/* Returns a number from 0 to below - 1. */
static inline int64_t next_below(struct bytes *x, int64_t below)
{
    return next_byte(x) % below;
}

static inline int next_bit(struct bytes *x)
{
    return next_byte(x) & 1;
}

/* Returns any 64 bits. */
static inline uint64_t next_word(struct bytes *x)
{
    uint64_t word = 0;
    for (int n = 0; n < 8; n++)
        word = word << 8 | next_byte(x);
    return word;
}

#endif
