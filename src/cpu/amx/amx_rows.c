/* The row ops (forward and jvp) on AMX: one block of keys against the panels of a block of queries. Sums are
 * transposed, O^T = V^T P^T, so that P^T, transposed like the scores, is an operand as it is. A panel takes the keys in
 * groups of 32; the weights of all groups of a block are kept, and then multiplied with V at once, because a longer sum
 * costs less per key. */
#include "cpu/amx/amx_rows.h"

#include <math.h>
#include <string.h>

#include "cpu/amx/amx_ops.h"

/* Max queries of a block. Large, because the operands of the keys are made once per block of queries. */
enum { MAX_QUERIES = PANEL * ROW_PANELS };

/* ---- Workspace ---- */

static void lay_out(agi_row_scratch *s, agi_arena *arena, const ag_plan *plan, agi_map map)
{
    const int64_t tangents = map == AGI_JVP, panels = agi_cpu_plan_of(plan)->rows.rows / PANEL;
    const int64_t Dk = agi_round_up(plan->p.dim_qk, AMX_DEPTH), Dv = agi_round_up(plan->p.dim_v, AMX_DEPTH);
    agi_amx_row_scratch own = {.K = NULL};
    for (int64_t q = 0; q < panels; q++) {
        agi_amx_panel *panel = &own.panel[q];
        panel->Q = agi_take16(arena, (1 + tangents) * PANEL * Dk);
        panel->O = agi_take_reals(arena, PANEL * Dv);
        panel->tO = agi_take_reals(arena, tangents * PANEL * Dv);
        panel->excess = agi_take_reals(arena, PANEL);
        panel->t_excess = agi_take_reals(arena, tangents * PANEL);
    }
    own.K = agi_take16(arena, (1 + tangents) * BLOCK_KEYS * Dk);
    own.V = agi_take16(arena, BLOCK_KEYS * Dv);
    own.tV = agi_take16(arena, tangents * BLOCK_KEYS * Dv);
    for (int n = 0; n < 2; n++) {
        own.T[n] = agi_take_reals(arena, GROUP_KEYS * PANEL);
        own.U[n] = agi_take_reals(arena, tangents * GROUP_KEYS * PANEL);
    }
    own.P = agi_take16(arena, MAX_PENDING * GROUP_KEYS * PANEL);
    own.tP = agi_take16(arena, tangents * MAX_PENDING * GROUP_KEYS * PANEL);
    own.P_rest = agi_take16(arena, GROUP_KEYS * PANEL);
    own.tP_rest = agi_take16(arena, tangents * GROUP_KEYS * PANEL);
    own.rows = agi_take16(arena, PANEL * agi_max(Dk, Dv));
    own.zeroed = agi_take16(arena, GROUP_KEYS * Dv);
    own.visible = agi_take(arena, MAX_PENDING * GROUP_KEYS, 1);
    s->own = agi_take_copy(arena, &own, sizeof own);
}

/* ---- A block of keys ---- */

static agi_amx_row_keys load_keys(agi_amx_row_scratch *s, const agi_head *x, int64_t j0, int64_t nj)
{
    const ag_args *a = &x->call->a;
    const bool tangents = x->call->map == AGI_JVP;
    agi_amx_row_keys keys = {.j0 = j0, .nj = nj};
    const ag_tensor none = {NULL, {0}};
    keys.K = agi_amx_key_rows_and_tangents(x, &a->k, tangents ? &a->tk : &none, x->Dk, j0, nj, s->K);
    keys.V = agi_amx_key_columns(x, &a->v, x->Dv, j0, nj, s->V, s->rows);
    if (tangents && a->tv.data != NULL) {
        keys.tV = agi_amx_key_columns(x, &a->tv, x->Dv, j0, nj, s->tV, s->rows);
    }
    return keys;
}

/* Queues the 2 x 2 blocks of T = K Q^T, or of U, for group g. */
static void queue_blocks(amx_queue *to, const amx_operand *keys, int64_t g, const amx_operand *queries,
                         int64_t depth, int64_t lanes, float *T)
{
    for (int64_t i = 0; i < lanes; i += 2 * AMX_LANES) {
        agi_amx_queue_block(to, keys, g * GROUP_KEYS, queries, i, depth, T + i);
    }
}

/* Queues the products of group g: T = S^T = K Q^T, and in jvp U = (tQ K^T + Q tK^T)^T. Absent tangents are
 * zero. */
static void queue_group(amx_queue *to, const agi_amx_row_scratch *s, const agi_head *x,
                        const agi_amx_panel *panel, const agi_amx_row_keys *keys, int64_t g, int64_t lanes)
{
    const ag_args *a = &x->call->a;
    to->n = 0;
    queue_blocks(to, &keys->K, g, &panel->queries, agi_round_up(x->Dk, AMX_DEPTH) / AMX_DEPTH, lanes,
                 s->T[s->next_buffer]);
    if (x->call->map == AGI_JVP) {
        const agi_amx_tangent_product product = agi_amx_make_tangent_product(
            keys->K, a->tk.data != NULL, panel->t_queries, a->tq.data != NULL, x->Dk);
        queue_blocks(to, &product.rows, g, &product.columns, product.depth, lanes, s->U[s->next_buffer]);
    }
}

/* ---- A tile ---- */

/* After the groups in the slots before it were multiplied, the newest group moves from its slot to slot 0. */
static void move_to_front(const agi_amx_row_scratch *s, int64_t slot, bool tangents)
{
    const int64_t size = GROUP_KEYS * PANEL;
    if (slot > 0) {
        memcpy(s->P, s->P + slot * size, (size_t)size * sizeof *s->P);
        memcpy(s->visible, s->visible + slot * GROUP_KEYS, GROUP_KEYS);
        if (tangents) {
            memcpy(s->tP, s->tP + slot * size, (size_t)size * sizeof *s->tP);
        }
    }
}

/* A panel against a block of keys: it sees keys from .. from + n - 1 of the block, in groups first .. end - 1.
 * Groups whole .. whole_end - 1 are whole: all queries see all keys, and there are no features. */
typedef struct {
    int64_t index; /* of the panel */
    int64_t from, n;
    int64_t first, end;
    int64_t whole, whole_end;
} row_tile;

static bool all_pairs_visible(const agi_head *x, const agi_row_panel *panel, const agi_amx_row_keys *keys,
                              int64_t g)
{
    return agi_inside(REAL(agi_band_at)(x, panel->i0, keys->j0 + g * GROUP_KEYS), panel->ni, GROUP_KEYS);
}

static void find_whole_groups(const agi_head *x, const agi_row_panel *panel, const agi_amx_row_keys *keys,
                              row_tile *t)
{
    t->whole = (t->from + GROUP_KEYS - 1) / GROUP_KEYS;
    t->whole_end = (t->from + t->n) / GROUP_KEYS;
    if (!x->has.plain || x->has.dropout || agi_amx_lanes(panel) < PANEL) {
        t->whole_end = t->whole;
    }
    while (t->whole < t->whole_end && !all_pairs_visible(x, panel, keys, t->whole)) {
        t->whole++;
    }
    while (t->whole < t->whole_end && !all_pairs_visible(x, panel, keys, t->whole_end - 1)) {
        t->whole_end--;
    }
}

/* The tile of the first panel from number first on that sees a key of the block; false if there is none. */
static bool next_tile(const agi_head *x, const agi_row_panel *panels, int64_t n_panels,
                      const agi_amx_row_keys *keys, int64_t first, row_tile *t)
{
    for (t->index = first; t->index < n_panels; t->index++) {
        if (REAL(agi_clip_keys)(x, panels[t->index].i0, panels[t->index].ni, keys->j0, keys->nj, &t->from,
                                &t->n)) {
            t->first = t->from / GROUP_KEYS;
            t->end = (t->from + t->n + GROUP_KEYS - 1) / GROUP_KEYS;
            find_whole_groups(x, &panels[t->index], keys, t);
            return true;
        }
    }
    return false;
}

static agi_amx_key_group group_of(const row_tile *t, int64_t g, int64_t slot, float *T, float *U)
{
    const int64_t from = t->from - g * GROUP_KEYS;
    return (agi_amx_key_group){g, slot, agi_max(0, from), agi_min(GROUP_KEYS, from + t->n), T, U};
}

/* Weights of a group of the tile. Returns whether the sums so far must be rescaled. */
static bool run_group(agi_row_scratch *s, const agi_head *x, agi_row_panel *panel,
                      const agi_amx_panel *amx_panel, const agi_amx_row_keys *keys, const row_tile *t,
                      const agi_amx_key_group *group, agi_amx_pending_groups *pending, const amx_queue *next)
{
    agi_amx_row_scratch *const own = s->own;
    if (group->g >= t->whole && group->g < t->whole_end && !amx_panel->few_keys) {
        return agi_amx_whole_group_weights(s, x, panel, amx_panel, keys, group, next);
    }
    const bool rescaled = agi_amx_group_weights(s, x, panel, amx_panel, keys, group, next);
    const bool partial = memchr(own->visible + group->slot * GROUP_KEYS, 0, GROUP_KEYS) != NULL;
    pending->partial |= (uint32_t)partial << group->slot;
    return rescaled;
}

/* All groups of a tile. The products of a group are interleaved with the vector work of the group before it; those
 * of the following tile's first group (if that tile is not NULL) with the work of this tile's last group. */
static void run_tile(agi_row_scratch *s, const agi_head *x, agi_row_panel *panels,
                     const agi_amx_row_keys *keys, const row_tile *t, const row_tile *following)
{
    agi_amx_row_scratch *const own = s->own;
    agi_row_panel *const panel = &panels[t->index];
    agi_amx_panel *const amx_panel = &own->panel[t->index];
    const int64_t lanes = agi_amx_lanes(panel);
    agi_amx_pending_groups pending = {.first = t->first};
    amx_queue next;
    for (int64_t g = t->first; g < t->end; g++) {
        float *const T = own->T[own->next_buffer], *const U = own->U[own->next_buffer];
        own->next_buffer = !own->next_buffer;
        next.n = 0;
        if (g + 1 < t->end) {
            queue_group(&next, own, x, amx_panel, keys, g + 1, lanes);
        } else if (following != NULL) {
            queue_group(&next, own, x, &own->panel[following->index], keys, following->first,
                        agi_amx_lanes(&panels[following->index]));
        }
        agi_amx_prefetch_step(&own->prefetch, &next);
        agi_amx_key_group group = group_of(t, g, pending.n, T, U);
        if (run_group(s, x, panel, amx_panel, keys, t, &group, &pending, &next)) {
            agi_amx_flush_pending(own, x, amx_panel, keys, lanes, &pending);
            agi_amx_rescale_panel(x, amx_panel, lanes, s->alpha, s->delta);
            move_to_front(own, pending.n, x->call->map == AGI_JVP);
            pending = (agi_amx_pending_groups){g, 0, pending.partial >> pending.n};
            group.slot = 0;
        }
        if (amx_panel->few_keys) {
            agi_amx_add_rest(own, x, amx_panel, keys, lanes, &group);
        }
        pending.n++;
    }
    agi_amx_flush_pending(own, x, amx_panel, keys, lanes, &pending);
}

static void block(agi_row_scratch *s, const agi_head *x, agi_row_panel *panels, int64_t n_panels, int64_t j0,
                  int64_t nj, int64_t end)
{
    agi_amx_row_scratch *const own = s->own;
    const agi_amx_row_keys keys = load_keys(own, x, j0, nj);
    const int64_t next = j0 + nj, groups = (nj + GROUP_KEYS - 1) / GROUP_KEYS;
    row_tile tile[2];
    bool found = next_tile(x, panels, n_panels, &keys, 0, &tile[0]);
    agi_amx_begin_row_prefetch(own, x, next, agi_min(BLOCK_KEYS, end - next), n_panels * groups);
    if (found) {
        amx_queue first = {.n = 0};
        own->next_buffer = 0;
        queue_group(&first, own, x, &own->panel[tile[0].index], &keys, tile[0].first,
                    agi_amx_lanes(&panels[tile[0].index]));
        agi_amx_table.score_blocks(&first);
    }
    for (int current = 0; found; current = !current) {
        found = next_tile(x, panels, n_panels, &keys, tile[current].index + 1, &tile[!current]);
        run_tile(s, x, panels, &keys, &tile[current], found ? &tile[!current] : NULL);
    }
}

/* ---- An item ---- */

static void begin(const agi_row_job *w, agi_row_scratch *s, const agi_head *x, const agi_row_panel *panels,
                  int64_t n_panels, int64_t item)
{
    agi_amx_row_scratch *const own = s->own;
    agi_amx_prefetch_next_item(w, own, x, item);
    agi_amx_table.begin(&own->saved_config);
    for (int64_t q = 0; q < n_panels; q++) {
        agi_amx_begin_panel(own, x, &panels[q]);
    }
}

/* Is O stored from AMX's sums directly in the caller's array, in bfloat16? */
static bool stores_sums(const agi_row_job *w, const agi_head *x)
{
    return x->call->map == AGI_FORWARD && REAL(agi_key_splits_of)(x, &w->cpu->rows).n == 1 &&
           x->call->plan->p.out_dtype == AG_BF16 && (x->call->a.accumulate & AG_ACC_O) == 0;
}

static void end(const agi_row_job *w, agi_row_scratch *s, const agi_head *x, agi_row_panel *panels,
                int64_t n_panels)
{
    agi_amx_row_scratch *const own = s->own;
    for (int64_t q = 0; q < n_panels; q++) {
        agi_amx_end_panel(own, x, &panels[q]);
        if (!stores_sums(w, x)) {
            agi_amx_transpose_panel(own, x, &panels[q]);
        }
    }
    agi_amx_table.end(&own->saved_config);
}

static void store(const agi_row_job *w, const agi_row_scratch *s, const agi_head *x,
                  const agi_row_panel *panel, const double *factor)
{
    const agi_amx_row_scratch *const own = s->own;
    const ag_args *a = &x->call->a;
    const real *const O = own->panel[panel->index].O;
    if (stores_sums(w, x)) {
        agi_amx_store_transposed(agi_query_slice(x, &a->o, AG_BF16, x->Dv), panel->i0, panel->ni, O, factor,
                                 1, own->rows);
        if (a->o_low.data != NULL) {
            agi_amx_store_transposed_low(agi_query_slice(x, &a->o_low, AG_BF16, x->Dv), panel->i0, panel->ni,
                                         O, factor, 1, own->rows);
        }
    } else {
        REAL(agi_row_store_panel)(w, s, x, panel, factor);
    }
}

const agi_row_ops agi_amx_row_ops = {
    .max_queries = MAX_QUERIES,
    .min_blocks = 12,
    .block_keys = BLOCK_KEYS,
    .key_step = GROUP_KEYS, /* as in the backward ops, so that recomputed scores have the same bits */
    .query_step = PANEL,
    .lay_out = lay_out,
    .begin = begin,
    .block = block,
    .end = end,
    .store = store,
};
