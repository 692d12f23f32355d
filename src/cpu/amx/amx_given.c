/* The given ops (jvp_jvp, and jvp that is given o and lse) on AMX: one block of keys against the stripes of a block of
 * queries. A stripe takes the keys in groups of 32; the weights of all groups of a block are kept, and then multiplied
 * with the values at once. Sums are transposed, as in the row ops. */
#include "cpu/amx/amx_given.h"

#include <string.h>

#include "cpu/amx/amx_ops.h"

/* Max queries of a block. Large, because the operands of the keys are made once per block of queries. */
enum { MAX_QUERIES = PANEL * ROW_PANELS };

/* ---- Workspace ---- */

static void lay_out_stripes(agi_amx_given_scratch *own, agi_arena *arena, const ag_plan *plan,
                            int64_t n_operands)
{
    const int64_t Dk = agi_round_up(plan->p.dim_qk, AMX_DEPTH), Dv = agi_amx_col_stride(plan->p.dim_v);
    for (int64_t n = 0; n < agi_cpu_plan_of(plan)->given.rows / STRIPE; n++) {
        agi_amx_given_stripe *stripe = &own->stripe[n];
        stripe->Q = agi_take16(arena, n_operands * STRIPE * Dk);
        stripe->C = agi_take_reals(arena, STRIPE * Dv);
        stripe->P_sum = agi_take_reals(arena, STRIPE);
        for (int w = 1; w < MAX_VALUES; w++) {
            stripe->excess[w] = agi_take_reals(arena, STRIPE);
        }
    }
}

static void lay_out(agi_given_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const int64_t second = map == AGI_JVP_JVP, n_operands = second ? 4 : 2, n_values = second ? 3 : 2;
    const int64_t Dk = agi_round_up(plan->p.dim_qk, AMX_DEPTH), Dv = agi_round_up(plan->p.dim_v, AMX_DEPTH);
    agi_amx_given_scratch own = {.K = NULL};
    lay_out_stripes(&own, arena, plan, n_operands);
    own.K = agi_take16(arena, n_operands * GIVEN_BLOCK * Dk);
    own.V = agi_take16(arena, n_values * GIVEN_BLOCK * Dv);
    for (int n = 0; n < N_TILES; n++) {
        own.T[n] = agi_take_reals(arena, (n < Y_TILE || second) * GROUP_KEYS * PANEL);
    }
    own.weights = agi_take16(arena, GIVEN_PENDING * n_values * WEIGHT_SIZE);
    own.rest = agi_take16(arena, n_values * WEIGHT_SIZE);
    own.unused = agi_take16(arena, WEIGHT_SIZE);
    own.rows = agi_take16(arena, PANEL * agi_max(Dk, Dv));
    own.zeroed = agi_take16(arena, n_values * GROUP_KEYS * Dv);
    own.visible = agi_take(arena, GIVEN_PENDING * GROUP_KEYS, 1);
    s->own = agi_take_copy(arena, &own, sizeof own);
}

/* ---- Stripes ---- */

static agi_given_panel lanes_of(const agi_head *x, const agi_given_panel *panel, int64_t first)
{
    agi_given_panel lanes = *panel;
    lanes.i0 += first;
    lanes.ni = agi_min(STRIPE, panel->ni - first);
    lanes.W = STRIPE;
    lanes.L_high += first;
    lanes.L_low += first;
    lanes.mu += first;
    lanes.smu += first;
    lanes.sum += first;
    lanes.excess += first;
    lanes.rows += first * x->Dv_pad;
    return lanes;
}

static void load_queries(const agi_amx_given_scratch *own, const agi_head *x,
                         const agi_amx_given_stripe *stripe)
{
    const ag_args *a = &x->call->a;
    const ag_tensor *const operand[] = {&a->tq, &a->q, &a->sq, &a->tq};
    const int64_t size16 = AMX_LANES * agi_round_up(x->Dk, AMX_DEPTH); /* elements of 16 queries */
    for (int64_t n = 0; n < own->form.n_operands; n++) {
        if (operand[n]->data != NULL) {
            agi_amx_query_columns(agi_query_slice(x, operand[n], AG_BF16, x->Dk), stripe->lanes.i0,
                                  stripe->lanes.ni, STRIPE, NULL, stripe->Q + n * size16,
                                  own->form.n_operands * size16, own->rows);
        }
    }
}

static void begin_stripe(const agi_amx_given_scratch *own, const agi_head *x, agi_amx_given_stripe *stripe,
                         const agi_given_panel *panel, int64_t first)
{
    stripe->lanes = lanes_of(x, panel, first);
    stripe->few_keys = REAL(agi_fewest_keys)(x, stripe->lanes.i0, stripe->lanes.ni) <= FEW_KEYS;
    stripe->empty = true;
    stripe->excess[0] = stripe->lanes.excess;
    memset(stripe->P_sum, 0, STRIPE * sizeof *stripe->P_sum);
    for (int w = 1; w < MAX_VALUES; w++) {
        memset(stripe->excess[w], 0, STRIPE * sizeof *stripe->excess[w]);
    }
    load_queries(own, x, stripe);
}

static void begin(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panels, int64_t n_panels)
{
    agi_amx_given_scratch *const own = s->own;
    own->form = agi_amx_given_form_of(x->call);
    own->n_stripes = 0;
    agi_amx_table.begin(&own->saved_config);
    for (int64_t n = 0; n < n_panels; n++) {
        for (int64_t first = 0; first < panels[n].ni; first += STRIPE) {
            begin_stripe(own, x, &own->stripe[own->n_stripes++], &panels[n], first);
        }
    }
}

/* jvp: to is a mean over rounded weights P, but their sum is not that of the exact ones. Rows, and what is subtracted
 * from them, are multiplied by the exact sum over the rounded one: else P tV would be off by one factor for the whole
 * row. */
static void correct_rows(const agi_head *x, const agi_amx_given_stripe *stripe)
{
    const agi_given_panel *const lanes = &stripe->lanes;
    for (int64_t r = 0; r < lanes->ni; r++) {
        const float exact = stripe->P_sum[r], rounded = exact + stripe->excess[1][r];
        const double factor = exact > 0 ? (double)exact / (double)rounded : 1;
        agi_scale_row(x->k, lanes->rows + r * x->Dv_pad, x->Dv, factor);
        lanes->excess[r] =
            (float)(factor * ((double)lanes->sum[r] + (double)lanes->excess[r]) - (double)lanes->sum[r]);
    }
}

static void end(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panels, int64_t n_panels)
{
    const agi_amx_given_scratch *const own = s->own;
    (void)panels, (void)n_panels;
    for (int64_t n = 0; n < own->n_stripes; n++) {
        const agi_amx_given_stripe *const stripe = &own->stripe[n];
        real *const rows = stripe->lanes.rows;
        if (stripe->empty) {
            memset(rows, 0, (size_t)(STRIPE * x->Dv_pad) * sizeof *rows);
            continue;
        }
        agi_amx_table.transpose_sums(rows, x->Dv_pad, stripe->C, agi_amx_col_stride(x->Dv), x->Dv_pad,
                                     STRIPE);
        if (!own->form.second) {
            correct_rows(x, stripe);
        }
    }
    agi_amx_table.end(&own->saved_config);
}

/* ---- A block of keys ---- */

static void load_values(const agi_amx_given_scratch *own, const agi_head *x, int64_t j0, int64_t nj)
{
    const ag_args *a = &x->call->a;
    const ag_tensor *const V[MAX_VALUES] = {&a->v, &a->tv, &a->sv};
    const int64_t size = x->Dv_pad * GROUP_KEYS;
    for (int64_t j = 0; j < nj; j += GROUP_KEYS) {
        uint16_t *const group = own->V + j / GROUP_KEYS * own->form.n_values * size;
        for (int64_t n = 0; n < own->form.n_weights; n++) {
            if (own->form.place[n] >= 0) {
                agi_amx_key_columns(x, V[n], x->Dv, j0 + j, agi_min(GROUP_KEYS, nj - j),
                                    group + own->form.place[n] * size, own->rows);
            }
        }
    }
}

static void load_keys(const agi_amx_given_scratch *own, const agi_head *x, int64_t j0, int64_t nj)
{
    const ag_args *a = &x->call->a;
    const ag_tensor *const operand[] = {&a->k, &a->tk, &a->sk, &a->k};
    const int64_t width = agi_round_up(x->Dk, AMX_DEPTH);
    for (int64_t n = 0; n < own->form.n_operands; n++) {
        if (operand[n]->data != NULL) {
            agi_amx_copy_key_rows(x, operand[n], x->Dk, j0, nj, own->K + n * width,
                                  own->form.n_operands * width);
        }
    }
    load_values(own, x, j0, nj);
}

/* A stripe against the block of keys j0 .. j0 + nj - 1: it sees keys from .. from + n - 1 of them, in groups first ..
 * end - 1. */
typedef struct {
    int64_t stripe;
    int64_t j0, nj, from, n;
    int64_t first, end;
} given_tile;

/* Moves to the first stripe from number `first` on that sees a key of the block; false if there is none. */
static bool next_tile(const agi_amx_given_scratch *own, const agi_head *x, int64_t first, given_tile *t)
{
    for (t->stripe = first; t->stripe < own->n_stripes; t->stripe++) {
        const agi_given_panel *lanes = &own->stripe[t->stripe].lanes;
        if (REAL(agi_clip_keys)(x, lanes->i0, lanes->ni, t->j0, t->nj, &t->from, &t->n)) {
            t->first = t->from / GROUP_KEYS;
            t->end = (t->from + t->n + GROUP_KEYS - 1) / GROUP_KEYS;
            return true;
        }
    }
    return false;
}

/* Queues the products of the scores of group g. */
static void queue_group(amx_queue *to, const agi_amx_given_scratch *own, const agi_head *x, int64_t stripe,
                        int64_t g)
{
    const int64_t width = agi_round_up(x->Dk, AMX_DEPTH), stride = own->form.n_operands * width;
    to->n = 0;
    for (int n = 0; n < N_TILES; n++) {
        const agi_amx_score_product *const p = &own->form.product[n];
        const amx_operand K = {own->K + p->keys * width, AMX_ROWS * stride, AMX_DEPTH, stride},
                          Q = {own->stripe[stripe].Q + p->queries * AMX_LANES * width, AMX_LANES * stride,
                               AMX_AB, 0};
        if (n < Y_TILE || (own->form.second && !(n == Y_TILE && own->form.one_direction))) {
            agi_amx_queue_block(to, &K, g * GROUP_KEYS, &Q, 0, p->depth * width / AMX_DEPTH,
                                own->T[n] + own->next_buffer * STRIPE);
        }
    }
}

static agi_amx_given_group group_of(const agi_amx_given_scratch *own, const given_tile *t, int64_t g,
                                    int64_t slot)
{
    const int64_t from = t->from - g * GROUP_KEYS;
    agi_amx_given_group group = {t->j0, g, slot, agi_max(0, from), agi_min(GROUP_KEYS, from + t->n), {NULL}};
    for (int n = 0; n < N_TILES; n++) {
        group.T[n] = own->T[n] + own->next_buffer * STRIPE;
    }
    return group;
}

/* All groups of a tile. The products of a group are interleaved with the vector work of the group before it; those
 * of the following tile's first group (if that tile is not NULL) with the work of this tile's last group. */
static void run_tile(agi_given_scratch *s, const agi_head *x, const given_tile *t,
                     const given_tile *following)
{
    agi_amx_given_scratch *const own = s->own;
    agi_amx_given_stripe *const stripe = &own->stripe[t->stripe];
    agi_amx_given_pending pending = {.first = t->first};
    for (int64_t g = t->first; g < t->end; g++, pending.n++) {
        const agi_amx_given_group group = group_of(own, t, g, pending.n);
        amx_queue next;
        next.n = 0;
        next.prefetch = next.prefetch_end = NULL;
        own->next_buffer = !own->next_buffer;
        if (g + 1 < t->end) {
            queue_group(&next, own, x, t->stripe, g + 1);
        } else if (following != NULL) {
            queue_group(&next, own, x, following->stripe, following->first);
        }
        pending.partial |= (uint32_t)agi_amx_given_weights(s, x, stripe, &group, &next) << pending.n;
        if (stripe->few_keys) {
            agi_amx_given_rest(own, stripe, &group);
            agi_amx_given_add_rest(own, x, stripe, &group);
        }
    }
    agi_amx_given_flush(own, x, stripe, &pending);
}

static void block(agi_given_scratch *s, const agi_head *x, const agi_given_panel *panels, int64_t n_panels,
                  int64_t j0, int64_t nj)
{
    agi_amx_given_scratch *const own = s->own;
    given_tile tile[2] = {{.j0 = j0, .nj = nj}, {.j0 = j0, .nj = nj}};
    (void)panels, (void)n_panels;
    load_keys(own, x, j0, nj);
    bool found = next_tile(own, x, 0, &tile[0]);
    own->next_buffer = 0;
    if (found) {
        amx_queue first;
        first.prefetch = first.prefetch_end = NULL;
        queue_group(&first, own, x, tile[0].stripe, tile[0].first);
        agi_amx_table.score_blocks(&first);
    }
    for (int current = 0; found; current = !current) {
        found = next_tile(own, x, tile[current].stripe + 1, &tile[!current]);
        run_tile(s, x, &tile[current], found ? &tile[!current] : NULL);
    }
}

const agi_given_ops agi_amx_given_ops = {
    .max_queries = MAX_QUERIES,
    .min_blocks = 12,
    .block_keys = GIVEN_BLOCK,
    .key_step = GROUP_KEYS, /* as in the row ops, so that recomputed scores have the same bits */
    .query_step = PANEL,
    .lay_out = lay_out,
    .begin = begin,
    .block = block,
    .end = end,
};
