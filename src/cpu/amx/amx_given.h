/* Shared by the files of the given ops (jvp_jvp, and jvp that is given o and lse) on AMX: the scratch, and the
 * functions for each step of a block of keys. amx_given.c calls them in order. */
#ifndef AGI_CPU_AMX_GIVEN_H
#define AGI_CPU_AMX_GIVEN_H

#include "cpu/amx/amx_operands.h"
#include "cpu/drivers/given.h"

enum {
    GIVEN_BLOCK = 512,                             /* keys of a block */
    GIVEN_PENDING = GIVEN_BLOCK / GROUP_KEYS,      /* max groups whose weights are not yet multiplied */
    GIVEN_STRIPES = ROW_PANELS * (PANEL / STRIPE), /* max stripes of a block of queries */
    MAX_VALUES = 3,                                /* V, tV, sV */
    WEIGHT_SIZE = GROUP_KEYS * STRIPE              /* elements of the weights of a group */
};

/* The scores, as in agi_given_tiles. */
enum { P_TILE, U_TILE, Y_TILE, Z_TILE, N_TILES };

/* One sum of products of scores: `depth` operands, one after the other, from operand `keys` of the keys and operand
 * `queries` of the queries on. depth is 0 if the tensors are absent. */
typedef struct {
    int64_t keys, queries, depth;
} agi_amx_score_product;

/* What the arguments of a call make of the map.
 *
 *     weights    jvp                 P (tS - r), P      times V, tV
 *                jvp_jvp             P W, sP, tP        times V, tV, sV
 *                ... one direction   P W, tP + sP       times V, tV
 */
typedef struct {
    bool second, one_direction;             /* jvp_jvp; its directions are the same */
    int64_t n_operands;                     /* of a key and of a query: 4, or 2 with one direction */
    agi_amx_score_product product[N_TILES]; /* of each tile of scores */
    int64_t n_weights;                      /* 2 or 3 */
    int64_t n_values;                       /* how many of V, tV, sV there are, of the first n_weights */
    int64_t place[MAX_VALUES];              /* the place of each among these; -1: it is absent */
} agi_amx_given_form;

/* A stripe of queries: its operands and sums. */
typedef struct {
    agi_given_panel lanes;    /* its part of the panel */
    uint16_t *Q;              /* B operands: [tQ | Q | sQ | tQ], or [tQ | Q] */
    real *C;                  /* the transposed rows: tiles in column-major order */
    real *P_sum;              /* [STRIPE], jvp: the sum of P, exact */
    real *excess[MAX_VALUES]; /* [STRIPE]: of each of the weights. The first is the panel's */
    bool few_keys;            /* a query sees FEW_KEYS or fewer: see there */
    bool empty;               /* no sums yet: the first product overwrites the memory */
} agi_amx_given_stripe;

/* One thread's scratch. */
typedef struct {
    agi_amx_given_stripe stripe[GIVEN_STRIPES];
    int64_t n_stripes;
    agi_amx_given_form form;
    uint16_t *K;             /* A operands of a block of keys: [K | tK | sK | K], or [K | tK] */
    uint16_t *V;             /* transposed, [group][n_values]: V, tV, sV of a group are adjacent */
    real *T[N_TILES];        /* scores: two stripes side by side, one is computed while the other is used */
    int next_buffer;         /* which of the two is computed next, 0 or 1 */
    uint16_t *weights;       /* pending, in VNNI: [GIVEN_PENDING][n_values][WEIGHT_SIZE] */
    uint16_t *rest;          /* what rounding took from those of one group */
    uint16_t *unused;        /* [WEIGHT_SIZE]: weights of an absent tensor */
    uint16_t *rows;          /* [PANEL]: copied rows of queries or keys */
    uint16_t *zeroed;        /* V, tV, sV of one group, with masked keys zero */
    uint8_t *visible;        /* [GIVEN_PENDING][GROUP_KEYS]: does some query of the stripe see the key? */
    amx_config saved_config; /* the caller's tile configuration, restored at the end of an item */
} agi_amx_given_scratch;

/* Group g of the block that starts at key j0; its weights go to slot `slot` of the pending ones. The stripe sees its
 * keys from .. to - 1. */
typedef struct {
    int64_t j0, g, slot, from, to;
    float *T[N_TILES];
} agi_amx_given_group;

/* The groups of a block whose weights are pending, in slots 0 .. n - 1: groups first .. first + n - 1 of the block.
 * Bit g of `partial`: the group in slot g has keys that no query of the stripe sees. */
typedef struct {
    int64_t first, n;
    uint32_t partial;
} agi_amx_given_pending;

_Static_assert(GIVEN_PENDING <= 32, "one bit per pending group");

/* Where the weights number n of a slot are. */
static inline uint16_t *agi_amx_weights_at(const agi_amx_given_scratch *s, uint16_t *slots, int64_t slot,
                                           int64_t n)
{
    const agi_amx_given_form *form = &s->form;
    return form->place[n] < 0 ? s->unused : slots + (slot * form->n_values + form->place[n]) * WEIGHT_SIZE;
}

/* amx_given_form.c */
agi_amx_given_form agi_amx_given_form_of(const agi_call *call);

/* amx_given_weights.c: the weights of a group, rounded, and the queued products of the next group. Returns whether it
 * has keys that no query of the stripe sees. The second rounds what the first took from the weights, which are still in
 * group->T, to s->rest. */
bool agi_amx_given_weights(agi_given_scratch *s, const agi_head *x, const agi_amx_given_stripe *stripe,
                           const agi_amx_given_group *group, const amx_queue *next);
void agi_amx_given_rest(const agi_amx_given_scratch *s, const agi_amx_given_stripe *stripe,
                        const agi_amx_given_group *group);

/* amx_given_values.c: adds the pending weights, or the rest of one group's, times V, tV and sV to the sums. */
void agi_amx_given_flush(const agi_amx_given_scratch *s, const agi_head *x, agi_amx_given_stripe *stripe,
                         const agi_amx_given_pending *pending);
void agi_amx_given_add_rest(const agi_amx_given_scratch *s, const agi_head *x, agi_amx_given_stripe *stripe,
                            const agi_amx_given_group *group);

#endif
