/* The maps whose softmax is known before they begin: jvp_jvp, and jvp that is given o and lse (AG_GIVEN_O). Blocks of
 * query rows walk over the keys they see, as in forward, but weights come from lse, nothing is ever rescaled, and the
 * sums of two parts of the keys just add up. Compiled twice, with real = float and real = double. given_ in a name:
 * belongs to these maps.
 *
 *     jvp        sum = sum P (tS - r)     rows = sum (P (tS - r) o M) V + (P o M) tV         r: a shift, see below
 *                mu = r + sum             to = rows - sum O
 *     jvp_jvp    sum = sum P W            rows = sum (P W o M) V + (tP o M) sV + (sP o M) tV
 *                nu = sum                 sto = rows - sum O
 *
 * with W = (tS - mu) (sS - smu) + stS, tP = P (tS - mu), sP = P (sS - smu), and the sink's term in `sum`.
 *
 * Ops that round the weights of V for a product add up the exact ones in `sum`, from which mu and nu come, and what the
 * rounded ones add up to more than these in `excess`: O is subtracted sum + excess times. Else rows would be off by a
 * multiple of O, which does not average out. */
#ifndef AGI_CPU_GIVEN_H
#define AGI_CPU_GIVEN_H

#include "cpu/drivers/rows.h"

enum {
    GIVEN_KEYS = 64, /* max keys of a tile */
    GIVEN_ROWS = 64  /* rows of O that are loaded at once */
};

/* A panel of queries: what is given, and the sums. */
typedef struct {
    int64_t index;        /* of the panel in its block */
    int64_t i0, ni;       /* its queries */
    int64_t W;            /* lanes: ni, rounded up to whole vectors */
    real *L_high, *L_low; /* [PANEL]: log2(e) L in two parts; +infinity for a query that sees no key */
    real *mu, *smu;       /* [PANEL]: what is subtracted from tS, sS. jvp: mu is the shift r */
    real *sum;            /* [PANEL] */
    real *
        excess; /* [PANEL]: what `rows` have too much of O: see below. The ops add to it; 0 if they round nothing */
    real *rows; /* [PANEL][Dv_pad] */
} agi_given_panel;

/* One thread's scratch. */
typedef struct {
    agi_given_panel panel[ROW_PANELS];
    real *X, *tX, *sX, *F, *G, *M; /* features of a tile: see agi_given_stages */
    uint8_t *masked_keys;          /* [GIVEN_KEYS] */
    real *Q, *tQ;                  /* [PANEL][Dk_pad]: rows of queries, for the shift */
    real *K, *tK;                  /* [Dk_pad]: a key, likewise */
    real *O, *O_low;               /* [GIVEN_ROWS][Dv_pad] */
    void *own;                     /* scratch of the ops */
} agi_given_scratch;

/* Score tiles T[key][query]. The ops fill them with products; agi_given_stages makes weights of them:
 *
 *          product                 jvp                   jvp_jvp
 *     P    Q K^T                   P o M                 P
 *     U    tQ K^T + Q tK^T         P (tS - r) o M        tP o M
 *     Y    sQ K^T + Q sK^T                               sP o M
 *     Z    tQ sK^T + sQ tK^T                             P W o M
 */
typedef struct {
    real *P, *U, *Y, *Z;
} agi_given_tiles;

/* One call: what every work item is given. */
typedef struct {
    const agi_call *call;
    const agi_cpu_plan *cpu;
    agi_given_scratch *scratch; /* one per thread */
    real *states;               /* the sums of all panels and splits, if the keys are split */
} agi_given_job;

/* The operations that these maps are made of. For each block of queries the driver calls begin, block for each block of
 * keys that the queries see, and end. */
typedef struct agi_given_ops {
    int64_t max_queries, min_blocks, block_keys, key_step, query_step; /* as in agi_row_ops */

    /* Lays out the scratch of one thread, s->own. In a dry run that is NULL. */
    void (*lay_out)(agi_given_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map);

    /* Loads the queries of the panels and zeroes their rows. */
    void (*begin)(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panels, int64_t n_panels);

    /* Runs all panels against keys j0 .. j0 + nj - 1. */
    void (*block)(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panels, int64_t n_panels,
                  int64_t j0, int64_t nj);

    /* After the last block of keys: the sums must be in panel->rows. May be NULL. */
    void (*end)(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panels, int64_t n_panels);
} agi_given_ops;

/* Is it one of these maps? */
static inline bool agi_is_given(const agi_call *call)
{
    return call->map == AGI_JVP_JVP || agi_given_o(call);
}

/* ---- given.c ---- */

void REAL(agi_given_lay_out)(agi_given_job *w, agi_arena *arena, const ag_plan *plan, agi_map map);
ag_status REAL(agi_given_run)(const agi_call *call, void *memory);

/* ---- given_stages.c: what all ops do to the scores of a tile ---- */

/* jvp_jvp: are sq, sk, sv the very arrays tq, tk, tv? Then U is Y, and Z is 2 tQ tK^T. Never with AG_INVARIANT: bits
 * then depend on the numbers, not on whether a caller has copied them. */
bool REAL(agi_same_direction)(const agi_call *call);

/* From products to weights, for keys j0 .. j0 + nj - 1; adds to panel->sum. z_factor: what the products in Z are
 * multiplied by. Returns whether s->masked_keys has a key that no query of the panel sees. */
bool REAL(agi_given_stages)(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panel,
                            const agi_given_tiles *t, int64_t ld, int64_t j0, int64_t nj, real z_factor);

/* ---- given_shift.c ---- */

/* jvp: sets panel->mu to a value of tS of each query, so that P (tS - r) has no common part that would cancel in the
 * end. Any value is right; this one keeps digits. */
void REAL(agi_given_shift)(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panel);

#endif
