/* Part of amx_kernels.c: runs the tile products of the next group of keys interleaved with a stage's vector work on
 * this one, instruction by instruction, so that AMX and the vector units work at the same time.
 *
 * Stores commit in program order: one that waits for its product holds up all later ones, the stage's too. So blocks
 * are stored late (amx_block2x2.h). Keys are loaded with a hint to bypass the L1 cache, which has to keep what the
 * stage writes. */
#include "core/prefetch.h"
#include "cpu/amx/kernels/amx_block2x2.h"
#include "cpu/amx/kernels/amx_kernels.h"
#include "cpu/vec/kernels/kernels.h"

/* A stage takes two keys per step. */
enum { STEPS = GROUP_KEYS / 2 };

/* A tile of scores: bytes from row to row, and elements to the tile below. */
enum { SCORE_ROW = PANEL * (int)sizeof(float), BELOW = AMX_ROWS * PANEL };

/* The progress of a stage: its STEPS steps are evenly spread over `total` tile products. A product adds STEPS to `due`,
 * a step takes `total` from it. Each step prefetches one cache line: more at once would delay the loads that follow. */
typedef struct {
    int64_t total, due;
    const char *prefetch, *prefetch_end;
} stage_pace;

INLINE void prefetch_step(stage_pace *pace)
{
    if (pace->prefetch < pace->prefetch_end) {
        agi_prefetch_l2((uintptr_t)pace->prefetch);
        pace->prefetch += AGI_CACHE_LINE;
    }
}

/* Runs the steps that are due after a tile product. */
INLINE void run_due_steps(void (*two_keys)(void *), void *stage, stage_pace *pace)
{
    for (pace->due += STEPS; pace->due >= pace->total; pace->due -= pace->total) {
        two_keys(stage);
        prefetch_step(pace);
    }
}

/* A sum of no products: both tangents are absent. */
INLINE void zero_block2x2(float *T)
{
    for (int j = 0; j < GROUP_KEYS; j++) {
        v_store(T + j * PANEL, v_set1(0));
        v_store(T + j * PANEL + LANES, v_set1(0));
    }
}

/* Computes one block of scores, with the stage's steps among the products, and leaves it in tile registers 0 to 3. The
 * block before it, at prev (NULL if none), is still in these registers: each is stored just before it is reused. */
INLINE void interleave_block(const amx_block2x2 *block, float *prev, void (*two_keys)(void *), void *stage,
                             stage_pace *pace)
{
    const uint16_t *a_tile = block->keys, *b_tile = block->queries;
    float *const c_tile = block->T;
    const int64_t row_bytes = block->ld * (int64_t)sizeof *a_tile, a_below = block->ld * AMX_ROWS,
                  b_right = block->query_stride, depth = block->depth;
    for (int64_t k = 0; k < depth; k++) {
        const bool first = k == 0;
        AMX_LOAD_T1(4, a_tile, row_bytes);
        AMX_LOAD(6, b_tile, 64);
        if (first) {
            AMX_STORE_PREV_AND_BEGIN(0, prev, c_tile, 0, SCORE_ROW, false);
        }
        AMX_ADD_PRODUCT(0, 4, 6);
        run_due_steps(two_keys, stage, pace);
        AMX_LOAD(7, b_tile + b_right, 64);
        if (first) {
            AMX_STORE_PREV_AND_BEGIN(1, prev, c_tile, AMX_LANES, SCORE_ROW, false);
        }
        AMX_ADD_PRODUCT(1, 4, 7);
        run_due_steps(two_keys, stage, pace);
        AMX_LOAD_T1(5, a_tile + a_below, row_bytes);
        if (first) {
            AMX_STORE_PREV_AND_BEGIN(2, prev, c_tile, BELOW, SCORE_ROW, false);
        }
        AMX_ADD_PRODUCT(2, 5, 6);
        run_due_steps(two_keys, stage, pace);
        if (first) {
            AMX_STORE_PREV_AND_BEGIN(3, prev, c_tile, BELOW + AMX_LANES, SCORE_ROW, false);
        }
        AMX_ADD_PRODUCT(3, 5, 7);
        run_due_steps(two_keys, stage, pace);
        a_tile += AMX_DEPTH;
        b_tile += AMX_AB;
    }
}

/* The queued blocks, and all steps of a stage with the prefetches among their products. */
INLINE void interleave(const amx_queue *next, void (*two_keys)(void *), void *stage)
{
    stage_pace pace = {.prefetch = next->prefetch, .prefetch_end = next->prefetch_end};
    float *prev = NULL;
    for (int64_t n = 0; n < next->n; n++) {
        pace.total += 4 * next->blocks[n].depth;
    }
    for (int64_t n = 0; n < next->n; n++) {
        const amx_block2x2 *const block = &next->blocks[n];
        if (block->depth == 0) {
            zero_block2x2(block->T);
            continue;
        }
        interleave_block(block, prev, two_keys, stage, &pace);
        prev = block->T;
    }
    if (prev == NULL) { /* no products: the steps alone */
        for (int step = 0; step < STEPS; step++) {
            two_keys(stage);
            prefetch_step(&pace);
        }
        return;
    }
    store_block2x2(prev, AMX_LANES, BELOW, SCORE_ROW);
}

INLINE void no_stage(void *stage)
{
    (void)stage;
}

static void score_blocks(const amx_queue *next)
{
    interleave(next, no_stage, NULL);
}
