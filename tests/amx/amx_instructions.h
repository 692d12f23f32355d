/* The AMX unit's instructions as functions, for tests that look at the unit itself: amx_instructions.c is compiled once
 * for the processor's unit and once for the emulated one. */
#ifndef AG_TESTS_AMX_INSTRUCTIONS_H
#define AG_TESTS_AMX_INSTRUCTIONS_H

#include <stdint.h>

/* 16 rows are room for any tile. */
enum { AMX_TEST_TILES = 8, AMX_TEST_ROWS = 16 };

typedef struct {
    const char *name;
    void (*load_config)(const void *config);
    void (*store_config)(void *config);
    void (*release)(void);
    /* t0 to t7, as they are, 16 * stride bytes for each. */
    void (*store_tiles)(void *to, int64_t stride);
    /* t0 to t7, by both kinds of load, then t3 and t6 = 0, then all stored again. */
    void (*copy_tiles)(const void *from, void *to, int64_t stride);
    /* t0 += t1 t2, and t0 stored in c again; rows of 64 bytes. */
    void (*add_product)(float *c, const uint16_t *a, const uint16_t *b);
    /* The vectors' instructions: c of 16 numbers, rounded and a, b of 32, the rest of 64 bytes. */
    void (*dot)(float *c, const uint16_t *a, const uint16_t *b);
    void (*round_two)(uint16_t *rounded, const float *high, const float *low);
    void (*permute)(uint8_t *to, uint64_t keep, const uint8_t *index, const uint8_t *x);
    void (*multishift)(uint8_t *to, const uint8_t *control, const uint8_t *x);
} amx_instructions;

extern const amx_instructions amx_processor, amx_emulated;

/* The unit of the library that this program is linked with. */
extern const amx_instructions *const amx_here;

/* May the library use that unit here? Else the reason is in ag_last_message(). */
int amx_usable(void);

#endif
