/* One pair of chunks of a ring: the arguments of the map on them, and where its results go. */
#include <string.h>

#include "mpi/ring.h"

/* Of the chunks of a pair, the queries and the keys. */
typedef struct {
    agi_mpi_chunk home, guest;
    const agi_mpi_chunk *q, *k;
} chunks;

static void chunks_of(chunks *x, const agi_mpi_ring *ring, const agi_mpi_pair *pair)
{
    const bool keys_travel = ring->guests == AGI_MPI_KEYS;
    x->home = agi_mpi_chunk_of(ring->cut, keys_travel ? AGI_MPI_QUERIES : AGI_MPI_KEYS,
                               ring->call->comm->t.rank, pair->i);
    x->guest = agi_mpi_chunk_of(ring->cut, ring->guests, pair->owner, pair->n);
    x->q = keys_travel ? &x->home : &x->guest;
    x->k = keys_travel ? &x->guest : &x->home;
}

/* ---- Positions and lengths ---- */

/* Does the pair need lists? If not, two numbers say where its rows are. */
static bool needs_lists(const agi_mpi_ring *ring)
{
    const ag_args *a = &ring->call->a;
    return agi_has(ring->cut->p, AG_PACKED) || a->q_lengths != NULL || a->kv_lengths != NULL ||
           a->q_offsets != NULL || a->k_offsets != NULL;
}

/* Fills in lengths, or packed offsets, and positions of the sequences of one chunk. */
static void fill_lists(const agi_mpi_ring *ring, agi_mpi_side side, const agi_mpi_chunk *chunk,
                       int64_t *lengths, int64_t *offsets)
{
    const int64_t B = ring->cut->p->batch;
    const bool packed = agi_has(ring->cut->p, AG_PACKED);
    int64_t end = 0;
    for (int64_t b = 0; b < B; b++) {
        const agi_mpi_part part = agi_mpi_part_of(ring->cut, &ring->call->a, side, chunk, b);
        lengths[b] = packed ? end : part.rows;
        offsets[b] = part.position;
        end += part.rows;
    }
    lengths[B] = end;
}

static void set_positions(const agi_mpi_ring *ring, const chunks *x, ag_args *args)
{
    const agi_mpi_lists *lists = &ring->lists;
    const ag_args *a = &ring->call->a;
    args->seed = a->seed;
    args->batch_offset = a->batch_offset;
    if (!needs_lists(ring)) {
        args->q_offset = agi_mpi_part_of(ring->cut, a, AGI_MPI_QUERIES, x->q, 0).position;
        args->k_offset = agi_mpi_part_of(ring->cut, a, AGI_MPI_KEYS, x->k, 0).position;
        return;
    }
    fill_lists(ring, AGI_MPI_QUERIES, x->q, lists->q_lengths, lists->q_offsets);
    fill_lists(ring, AGI_MPI_KEYS, x->k, lists->k_lengths, lists->k_offsets);
    args->q_offsets = lists->q_offsets;
    args->k_offsets = lists->k_offsets;
    if (agi_has(ring->cut->p, AG_PACKED)) {
        args->q_packed = lists->q_lengths;
        args->k_packed = lists->k_lengths;
    } else {
        args->q_lengths = lists->q_lengths;
        args->kv_lengths = lists->k_lengths;
    }
}

/* ---- Tensors ---- */

/* The inputs that stay with the rows at home, as views of the caller's tensors. */
static void set_home(const agi_mpi_ring *ring, const chunks *x, ag_args *args)
{
    const agi_mpi_side home = ring->guests == AGI_MPI_KEYS ? AGI_MPI_QUERIES : AGI_MPI_KEYS;
    for (int n = 0; n < AGI_N_TENSORS; n++) {
        const agi_tensor_info *f = &agi_tensors[n];
        if (agi_mpi_is_input(f->role[ring->call->map]) && agi_mpi_is_cut(f->shape, home)) {
            *agi_mpi_tensor(args, f) =
                agi_mpi_shift(agi_mpi_tensor_of(&ring->call->a, f),
                              agi_mpi_dtype_of(ring->cut->p, f->element), 2, x->home.local);
        }
    }
}

/* jvp_jvp reads the wide o; guests that are queries have no o, and d_lse stands for it. */
static void set_o(const agi_mpi_ring *ring, const agi_mpi_pair *pair, const chunks *x, ag_args *args)
{
    static double zero;
    if (ring->call->map == AGI_JVP_JVP) {
        args->o = agi_mpi_block_array(&ring->o_item, 0, ring->wide_o + (size_t)pair->i * ring->wide_o_bytes,
                                      x->home.length)
                      .t;
        args->o_low.data = NULL;
    }
    if (ring->guests == AGI_MPI_QUERIES) {
        args->o = (ag_tensor){.data = &zero};
        if (ring->call->map == AGI_VJP_JVP) {
            args->to = args->o;
        }
    }
}

/* Sets outputs; those that have a sum already are added to it. */
static void set_sums(ag_args *args, const agi_mpi_items *items, void *block, int64_t rows, bool begun)
{
    agi_mpi_set_tensors(args, items, block, rows);
    for (int n = 0; n < items->count && begun; n++) {
        args->accumulate |= items->item[n].f->accumulate;
    }
}

/* ---- Running ---- */

static void merge(agi_mpi_ring *ring, const ag_plan *plan, const ag_args *total, const ag_args *part)
{
    ag_merge_args m;
    memset(&m, 0, sizeof m);
    m.struct_size = sizeof m;
    m.o1 = m.o = total->o;
    m.lse1 = m.lse = total->lse;
    m.o2 = part->o;
    m.lse2 = part->lse;
    if (ring->call->map == AGI_JVP) {
        m.to1 = m.to = total->to;
        m.mu1 = m.mu = total->mu;
        m.to2 = part->to;
        m.mu2 = part->mu;
    }
    agi_mpi_merge_inside(ring->call, plan, &m);
}

/* forward, jvp: the first pair of the rows at home writes their results, the others are merged into them. */
static void run_merged(agi_mpi_ring *ring, const agi_mpi_pair *pair, const chunks *x, const ag_plan *plan,
                       ag_args *args)
{
    char *total = ring->home_total + (size_t)pair->i * ring->home_sum_bytes;
    const bool first = !ring->home_begun[pair->i];
    agi_mpi_set_tensors(args, &ring->home_sums, first ? total : ring->part, x->home.length);
    agi_mpi_run_inside(ring->call, plan, args, ring->workspace, ring->workspace_bytes);
    if (!first && agi_mpi_computes(ring->call)) {
        ag_args sum = *args;
        agi_mpi_set_tensors(&sum, &ring->home_sums, total, x->home.length);
        merge(ring, plan, &sum, args);
    }
}

/* The other maps add to sums. */
static void run_added(agi_mpi_ring *ring, const agi_mpi_pair *pair, const chunks *x,
                      const agi_mpi_feature_pair *features, ag_args *args)
{
    set_sums(args, &ring->home_sums, ring->home_total + (size_t)pair->i * ring->home_sum_bytes,
             x->home.length, ring->home_begun[pair->i]);
    set_sums(args, &ring->guest_sums, pair->sums, x->guest.length, ring->guest_begun[pair->n]);
    agi_mpi_run_inside(ring->call, features->plan, args, ring->workspace, ring->workspace_bytes);
    if (agi_mpi_computes(ring->call)) {
        agi_mpi_features_collect(&ring->features, ring->call, features);
    }
}

/* A pair with the sink takes part even if its queries see none of its keys; one whose gradients nobody wants does
 * not. */
static bool takes_part(const agi_mpi_ring *ring, const chunks *x, bool sink)
{
    const bool visible = sink ? ring->cut->p->batch > 0 && x->q->length > 0
                              : agi_mpi_sees(ring->cut, &ring->call->a, x->q, x->k);
    return visible && (ring->home_sums.count > 0 || ring->guest_sums.count > 0 ||
                       agi_mpi_features_has_sums(&ring->features, sink));
}

void agi_mpi_run_pair(agi_mpi_ring *ring, const agi_mpi_pair *pair)
{
    agi_mpi_call *call = ring->call;
    chunks x;
    ag_args args;
    chunks_of(&x, ring, pair);
    const bool sink =
        agi_has(ring->cut->p, AG_SINK) && pair->owner == call->comm->t.rank && pair->i == pair->n;
    if (!agi_mpi_computes(call) || !takes_part(ring, &x, sink)) {
        return;
    }
    const agi_mpi_feature_pair features = {
        x.q, x.k, sink,
        agi_mpi_pair_plan_of(call->plan, x.q->length, x.k->length, sink, agi_mpi_kind_of(call->map))};
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    set_positions(ring, &x, &args);
    set_home(ring, &x, &args);
    agi_mpi_set_tensors(&args, &ring->guest_in, pair->guests, x.guest.length);
    set_o(ring, pair, &x, &args);
    agi_mpi_features_set(&ring->features, call, &features, &args);
    if (call->map == AGI_FORWARD || call->map == AGI_JVP) {
        run_merged(ring, pair, &x, features.plan, &args);
    } else {
        run_added(ring, pair, &x, &features, &args);
    }
    ring->home_begun[pair->i] = true;
    ring->guest_begun[pair->n] = true;
}
