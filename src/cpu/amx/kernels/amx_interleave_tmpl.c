/* Scores of one group of keys, computed while a stage works on those of the group before: a part of amx_kernels.c.
 *
 * The unit and the vectors work side by side where their instructions are mixed finely. Stores leave in the order of the
 * program: one that waits holds up all behind it, and in the end everything. So a tile is stored when the next one takes
 * its place, four products after its own last one, and rows of keys pass by the first cache, which has to keep what is
 * written. */
#ifndef AGI_CPU_AMX_BESIDE_H
#define AGI_CPU_AMX_BESIDE_H

#include <immintrin.h>

#include "cpu/amx/kernels/amx_product_tmpl.c"
#include "cpu/vec/kernels/kernels.h"

/* A stage takes two keys at a time. */
enum { STEPS = GROUP_KEYS / 2, SCORE_ROW = PANEL * (int)sizeof(float) };

/* One line after each step: requests that wait take the place of the loads behind them. */
#define ASK()                                                                                                \
    do {                                                                                                     \
        if (ask < end) {                                                                                     \
            _mm_prefetch(ask, _MM_HINT_T1);                                                                  \
            ask += 64;                                                                                       \
        }                                                                                                    \
    } while (0)

/* The stage's share after one product of `total`. */
#define CATCH_UP()                                                                                           \
    for (due += STEPS; due >= total; due -= total) {                                                         \
        two_keys(stage);                                                                                     \
        ASK();                                                                                               \
    }

/* From a tile of scores to the one below. */
enum { BELOW = AMX_ROWS * PANEL };

/* A sum of nothing: both tangents are absent. */
INLINE void clear_square(float *T)
{
    for (int j = 0; j < GROUP_KEYS; j++) {
        v_store(T + j * PANEL, v_set1(0));
        v_store(T + j * PANEL + LANES, v_set1(0));
    }
}

/* The next group's squares, and all steps of a stage, with the lines to ask for, among their products. */
INLINE void beside(const amx_next *next, void (*two_keys)(void *), void *stage)
{
    const char *ask = next->ask, *const end = next->end;
    float *before = NULL;
    int64_t total = 0, due = 0;
    for (int64_t n = 0; n < next->n; n++) {
        total += 4 * next->squares[n].depth;
    }
    for (int64_t n = 0; n < next->n; n++) {
        const amx_square *const q = &next->squares[n];
        const uint16_t *a = q->rows, *b = q->columns;
        float *const C = q->T;
        const int64_t row = q->ld * (int64_t)sizeof *a, lower = q->ld * AMX_ROWS, line = q->line,
                      depth = q->depth;
        if (depth == 0) {
            clear_square(C);
            continue;
        }
        for (int64_t k = 0; k < depth; k++) {
            AMX_PASS(4, a, row);
            AMX_LOAD(6, b, 64);
            AMX_FOLLOW(0, 0, SCORE_ROW, false);
            AMX_ADD_PRODUCT(0, 4, 6);
            CATCH_UP();
            AMX_LOAD(7, b + line, 64);
            AMX_FOLLOW(1, AMX_LANES, SCORE_ROW, false);
            AMX_ADD_PRODUCT(1, 4, 7);
            CATCH_UP();
            AMX_PASS(5, a + lower, row);
            AMX_FOLLOW(2, BELOW, SCORE_ROW, false);
            AMX_ADD_PRODUCT(2, 5, 6);
            CATCH_UP();
            AMX_FOLLOW(3, BELOW + AMX_LANES, SCORE_ROW, false);
            AMX_ADD_PRODUCT(3, 5, 7);
            CATCH_UP();
            a += AMX_DEPTH;
            b += AMX_AB;
        }
        before = C;
    }
    if (before == NULL) {
        for (int step = 0; step < STEPS; step++) {
            two_keys(stage);
            ASK();
        }
        return;
    }
    store_square(before, AMX_LANES, BELOW, SCORE_ROW);
}

INLINE void nothing(void *stage)
{
    (void)stage;
}

static void scores(const amx_next *next)
{
    beside(next, nothing, NULL);
}

#endif
