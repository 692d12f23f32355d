/* The AMX instructions as functions, for tests of AMX itself: amx_instructions.c is compiled once for the
 * processor's AMX and once for the emulated one. */
#ifndef AG_TESTS_AMX_INSTRUCTIONS_H
#define AG_TESTS_AMX_INSTRUCTIONS_H

#include <stdint.h>

/* 16 rows are enough for any tile. */
enum { AMX_TEST_TILES = 8, AMX_TEST_ROWS = 16 };

typedef struct {
    const char *name;
    void (*load_config)(const void *config);
    void (*store_config)(void *config);
    void (*release)(void);
    /* Stores t0 to t7, 16 * stride bytes each. */
    void (*store_tiles)(void *to, int64_t stride);
    /* Loads t0 to t7, by both kinds of load, zeroes t3 and t6, and stores all tiles. */
    void (*copy_tiles)(const void *from, void *to, int64_t stride);
    /* t0 += t1 t2, stores t0 to c; rows of 64 bytes. */
    void (*add_product)(float *c, const uint16_t *a, const uint16_t *b);
    /* The vector instructions: c, high and low have 16 elements; rounded, a and b have 32; the others have 64 bytes. */
    void (*dot)(float *c, const uint16_t *a, const uint16_t *b);
    void (*round_two)(uint16_t *rounded, const float *high, const float *low);
    void (*permute)(uint8_t *to, uint64_t keep, const uint8_t *index, const uint8_t *x);
    void (*multishift)(uint8_t *to, const uint8_t *control, const uint8_t *x);
} amx_instructions;

extern const amx_instructions amx_processor, amx_emulated;

/* The AMX, real or emulated, of the library that this program is linked with. */
extern const amx_instructions *const amx_here;

/* May the library use it on this machine? If not, ag_last_message() has the reason. */
int amx_usable(void);

#endif
