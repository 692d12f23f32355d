/* The memory of a ring: its layout in the workspace, what is in it before the first pair, and what is taken out of it
 * after the last. */
#include <math.h>
#include <string.h>

#include "mpi/ring.h"

/* The workspace that the maps on pairs and their merging need. */
static size_t inner_bytes(const ag_mpi_plan *plan, agi_map map)
{
    size_t largest = 0;
    for (int n = 0; n < plan->n_pairs; n++) {
        size_t bytes = 0;
        if (plan->pairs[n].kind == agi_mpi_kind_of(map) &&
            ag_plan_workspace(plan->pairs[n].plan, UINT32_C(1) << map, &bytes) == AG_OK) {
            largest = bytes > largest ? bytes : largest;
        }
    }
    return largest;
}

static agi_mpi_side other_side(agi_mpi_side side)
{
    return side == AGI_MPI_KEYS ? AGI_MPI_QUERIES : AGI_MPI_KEYS;
}

static void choose_items(agi_mpi_ring *ring, const ag_mpi_plan *plan, agi_map map, const ag_args *a)
{
    const ag_problem *p = plan->cut.p;
    const agi_mpi_side home = other_side(ring->guests);
    const bool grads = agi_mpi_kind_of(map) == AGI_MPI_WIDE_GRADS;
    ring->guest_in = agi_mpi_items_of(p, map, ring->guests, AGI_MPI_GUESTS, a);
    ring->home_sums = agi_mpi_items_of(p, map, home, AGI_MPI_SUMS, a);
    ring->guest_sums = agi_mpi_items_of(p, map, ring->guests, AGI_MPI_SUMS, a);
    if (!grads) {
        ring->guest_sums.count = 0;
    }
    ring->guest_bytes = agi_mpi_block_bytes(&ring->guest_in, agi_mpi_max_rows(&plan->cut, ring->guests));
    ring->guest_sum_bytes =
        agi_mpi_block_bytes(&ring->guest_sums, agi_mpi_max_rows(&plan->cut, ring->guests));
    ring->home_sum_bytes = agi_mpi_block_bytes(&ring->home_sums, agi_mpi_max_rows(&plan->cut, home));
}

/* jvp_jvp reads o in the dtype of its results, which are wide. */
static void lay_out_wide_o(agi_mpi_ring *ring, agi_arena *arena, const ag_mpi_plan *plan, agi_map map)
{
    const ag_problem *p = plan->cut.p;
    ring->o_item = agi_mpi_items_of(p, AGI_FORWARD, AGI_MPI_QUERIES, AGI_MPI_SUMS, NULL);
    ring->o_item.count = map == AGI_JVP_JVP ? 1 : 0; /* o alone */
    ring->wide_o_bytes = agi_mpi_block_bytes(&ring->o_item, agi_mpi_max_rows(&plan->cut, AGI_MPI_QUERIES));
    ring->wide_o = agi_take(arena, ring->chunks, ring->wide_o_bytes);
}

static void lay_out_lists(agi_mpi_lists *lists, agi_arena *arena, const ag_problem *p)
{
    int64_t **const all[] = {&lists->q_lengths, &lists->k_lengths, &lists->q_offsets, &lists->k_offsets};
    for (int n = 0; n < 4; n++) {
        *all[n] = agi_take(arena, p->batch + 1, sizeof(int64_t));
    }
}

void agi_mpi_ring_lay_out(agi_mpi_ring *ring, agi_arena *arena, const ag_mpi_plan *plan, agi_map map,
                          const ag_args *a)
{
    const bool merges = map == AGI_FORWARD || map == AGI_JVP;
    memset(ring, 0, sizeof *ring);
    ring->cut = &plan->cut;
    ring->guests = plan->way[map] == AG_MPI_RING_QUERIES ? AGI_MPI_QUERIES : AGI_MPI_KEYS;
    ring->chunks = agi_mpi_chunks(&plan->cut);
    choose_items(ring, plan, map, a);
    ring->own = agi_take(arena, ring->chunks, ring->guest_bytes);
    for (int n = 0; n < 2; n++) {
        ring->arriving[n] = agi_take(arena, ring->chunks, ring->guest_bytes);
        ring->leaving[n] = agi_take(arena, ring->chunks, ring->guest_sum_bytes);
        ring->returned[n] = agi_take(arena, ring->chunks, ring->guest_sum_bytes);
    }
    ring->guest_total = agi_take(arena, ring->chunks, ring->guest_sum_bytes);
    ring->home_total = agi_take(arena, ring->chunks, ring->home_sum_bytes);
    ring->part = agi_take(arena, merges ? 1 : 0, ring->home_sum_bytes);
    lay_out_wide_o(ring, arena, plan, map);
    agi_mpi_features_lay_out(&ring->features, arena, plan, map, a);
    lay_out_lists(&ring->lists, arena, plan->cut.p);
    ring->workspace_bytes = inner_bytes(plan, map);
    ring->workspace = agi_take(arena, 1, ring->workspace_bytes);
}

/* ---- Before the first pair ---- */

static int32_t self(const agi_mpi_ring *ring)
{
    return ring->call->comm->t.rank;
}

/* The caller's tensor, shifted to a chunk of the queries. */
static agi_mpi_array rows_of(ag_tensor t, ag_dtype dtype, const agi_mpi_chunk *q)
{
    return (agi_mpi_array){agi_mpi_shift(t, dtype, 2, q->local), dtype};
}

static void load_wide_o(agi_mpi_ring *ring, int n)
{
    const agi_mpi_chunk q = agi_mpi_chunk_of(ring->cut, AGI_MPI_QUERIES, self(ring), n);
    const ag_args *a = &ring->call->a;
    const ag_dtype dtype = ring->cut->p->out_dtype;
    int64_t size[4];
    agi_mpi_item_size(&ring->o_item, 0, q.length, size);
    agi_mpi_join_low(
        agi_mpi_block_array(&ring->o_item, 0, ring->wide_o + (size_t)n * ring->wide_o_bytes, q.length),
        rows_of(a->o, dtype, &q), rows_of(a->o_low, dtype, &q), size);
}

/* The block's array of a tensor, by its place in ag_args. */
static agi_mpi_array find(const agi_mpi_items *items, void *block, int64_t rows, size_t offset)
{
    agi_mpi_array none = {{.data = NULL}, 0};
    for (int n = 0; n < items->count; n++) {
        if (items->item[n].f->offset == offset) {
            return agi_mpi_block_array(items, n, block, rows);
        }
    }
    return none;
}

/* Travelling queries: vjp given o = 0 and d_lse = -D has the gradients that it has given o and d_lse, likewise
 * vjp_jvp given to = 0 and td_lse = -tD, with
 *     D = sum over channels of dO o - d_lse,  tD = sum of tdO o + dO to - td_lse. */
static void load_row_numbers(agi_mpi_ring *ring, void *block, const agi_mpi_chunk *q)
{
    const ag_args *a = &ring->call->a;
    const ag_problem *p = ring->cut->p;
    const agi_mpi_items *items = &ring->guest_in;
    const int64_t sequences = agi_has(p, AG_PACKED) ? 1 : p->batch;
    const int64_t size[4] = {sequences, p->heads, q->length, p->dim_v};
    const int64_t rows[4] = {sequences, p->heads, q->length, 1};
    const agi_mpi_array minus_D = find(items, block, q->length, offsetof(ag_args, d_lse));
    const agi_mpi_array minus_tD = find(items, block, q->length, offsetof(ag_args, td_lse));
    const agi_mpi_array o = rows_of(a->o, p->out_dtype, q), to = rows_of(a->to, p->out_dtype, q);
    const agi_mpi_array o_low = rows_of(a->o_low, p->out_dtype, q);
    const agi_mpi_array to_low = rows_of(a->to_low, p->out_dtype, q);
    const agi_mpi_array d_o = rows_of(a->d_o, p->out_dtype, q);
    const agi_mpi_array td_o = rows_of(a->td_o, p->out_dtype, q);
    if (a->d_lse.data == NULL) {
        agi_mpi_fill(minus_D, rows, 0);
    }
    agi_mpi_subtract_dots(minus_D.t, d_o, o, o_low, size);
    if (minus_tD.t.data == NULL) {
        return;
    }
    if (a->td_lse.data == NULL) {
        agi_mpi_fill(minus_tD, rows, 0);
    }
    agi_mpi_subtract_dots(minus_tD.t, d_o, to, to_low, size);
    if (td_o.t.data != NULL) {
        agi_mpi_subtract_dots(minus_tD.t, td_o, o, o_low, size);
    }
}

void agi_mpi_ring_begin(agi_mpi_ring *ring)
{
    agi_mpi_call *call = ring->call;
    for (int n = 0; n < ring->chunks; n++) {
        const agi_mpi_chunk guest = agi_mpi_chunk_of(ring->cut, ring->guests, self(ring), n);
        void *block = ring->own + (size_t)n * ring->guest_bytes;
        agi_mpi_load_block(&ring->guest_in, block, ring->cut->p, &call->a, &guest);
        if (ring->guests == AGI_MPI_QUERIES) {
            load_row_numbers(ring, block, &guest);
        }
        if (call->map == AGI_JVP_JVP) {
            load_wide_o(ring, n);
        }
        for (int m = 0; m < ring->guest_sums.count; m++) {
            int64_t size[4];
            agi_mpi_item_size(&ring->guest_sums, m, guest.length, size);
            agi_mpi_fill(agi_mpi_block_array(&ring->guest_sums, m,
                                             ring->guest_total + (size_t)n * ring->guest_sum_bytes,
                                             guest.length),
                         size, 0);
        }
    }
    agi_mpi_features_begin(&ring->features, call);
}

/* ---- After the last pair ---- */

/* Sums that no pair has written: zero, lse minus infinity. */
void agi_mpi_ring_complete(agi_mpi_ring *ring)
{
    const agi_mpi_items *items = &ring->home_sums;
    for (int i = 0; i < ring->chunks; i++) {
        const int64_t rows = agi_mpi_chunk_of(ring->cut, other_side(ring->guests), self(ring), i).length;
        void *block = ring->home_total + (size_t)i * ring->home_sum_bytes;
        for (int n = 0; n < items->count && !ring->home_begun[i]; n++) {
            int64_t size[4];
            const bool is_lse = items->item[n].f->offset == offsetof(ag_args, lse);
            agi_mpi_item_size(items, n, rows, size);
            agi_mpi_fill(agi_mpi_block_array(items, n, block, rows), size, is_lse ? -INFINITY : 0);
        }
    }
}

static void store_low(agi_mpi_ring *ring, void *block, const agi_mpi_chunk *q, ag_tensor low, size_t offset)
{
    const agi_mpi_array x = find(&ring->home_sums, block, q->length, offset);
    const ag_problem *p = ring->cut->p;
    const int64_t size[4] = {agi_has(p, AG_PACKED) ? 1 : p->batch, p->heads, q->length, p->dim_v};
    if (low.data != NULL && x.t.data != NULL) {
        agi_mpi_store_low(rows_of(low, p->out_dtype, q), x, size);
    }
}

static void store_home(agi_mpi_ring *ring, const ag_args *a, int i)
{
    const agi_mpi_chunk home = agi_mpi_chunk_of(ring->cut, other_side(ring->guests), self(ring), i);
    void *block = ring->home_total + (size_t)i * ring->home_sum_bytes;
    agi_mpi_store_block(&ring->home_sums, block, ring->cut->p, a, &home);
    if (ring->call->map == AGI_FORWARD || ring->call->map == AGI_JVP) {
        store_low(ring, block, &home, a->o_low, offsetof(ag_args, o));
        store_low(ring, block, &home, ring->call->map == AGI_JVP ? a->to_low : (ag_tensor){.data = NULL},
                  offsetof(ag_args, to));
    }
}

void agi_mpi_ring_store(agi_mpi_ring *ring)
{
    ag_args a = ring->call->a;
    if (ring->call->map == AGI_JVP && (a.flags & AG_GIVEN_O)) {
        a.o.data = a.lse.data = a.o_low.data = NULL;
    }
    for (int i = 0; i < ring->chunks; i++) {
        const agi_mpi_chunk guest = agi_mpi_chunk_of(ring->cut, ring->guests, self(ring), i);
        store_home(ring, &a, i);
        agi_mpi_store_block(&ring->guest_sums, ring->guest_total + (size_t)i * ring->guest_sum_bytes,
                            ring->cut->p, &a, &guest);
    }
    agi_mpi_features_store(&ring->features, ring->call);
}
