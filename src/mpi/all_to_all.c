/* The all-to-all way: see all_to_all.h. */
#include "mpi/all_to_all.h"

#include <string.h>

/* ---- Heads and sizes ---- */

/* The heads of a tensor that belong to a rank. */
static void heads_of(const agi_mpi_exchange *x, const agi_mpi_exchanged *e, int32_t rank, int64_t *first,
                     int64_t *count)
{
    const ag_problem *p = x->plan->cut.p;
    agi_mpi_kv_heads(&x->plan->cut, rank, first, count);
    if (e->shared) {
        *first = 0;
        *count = *count > 0;
    } else if (e->side == AGI_MPI_QUERIES) {
        *first *= p->heads / p->kv_heads;
        *count *= p->heads / p->kv_heads;
    }
}

static int64_t all_rows(const agi_mpi_exchange *x, agi_mpi_side side)
{
    int64_t rows = 0;
    for (int32_t rank = 0; rank < x->plan->cut.ranks; rank++) {
        rows += agi_mpi_rows(&x->plan->cut, side, rank);
    }
    return rows;
}

/* The block that goes between the rank that has `rows` rows and the one that has `heads` heads. */
static void block_size(const agi_mpi_exchanged *e, int64_t heads, int64_t rows, int64_t size[4])
{
    size[0] = e->item.sequences;
    size[1] = heads;
    size[2] = rows;
    size[3] = e->item.channels;
}

static size_t block_bytes(const agi_mpi_exchanged *e, int64_t heads, int64_t rows)
{
    int64_t size[4];
    block_size(e, heads, rows, size);
    return (size_t)agi_count(size) * agi_mpi_element_bytes(e->item.dtype);
}

static agi_mpi_array block_array(const agi_mpi_exchanged *e, void *block, int64_t heads, int64_t rows)
{
    return (agi_mpi_array){ag_bhnd(block, heads, rows, e->item.channels), e->item.dtype};
}

/* ---- Layout ---- */

static bool is_given(const ag_args *a, const agi_tensor_info *f)
{
    return a == NULL || agi_mpi_tensor_of(a, f).data != NULL;
}

static void add_items(agi_mpi_exchange *x, agi_mpi_side side, const agi_mpi_items *items, const ag_args *a,
                      bool out)
{
    for (int n = 0; n < items->count; n++) {
        const agi_mpi_item *item = &items->item[n];
        const bool adds = out && (a == NULL || (a->accumulate & item->f->accumulate) != 0);
        x->exchanged[x->n_exchanged++] =
            (agi_mpi_exchanged){.item = *item, .side = side, .in = !out || adds, .out = out};
    }
}

/* A bias, mask, table or sink, or a tangent or gradient of one. */
static void add_feature(agi_mpi_exchange *x, const agi_tensor_info *f, bool out)
{
    const ag_problem *p = x->plan->cut.p;
    const ag_dtype dtype = f->element == AGI_AUX_DTYPE ? agi_mpi_wide(p) : agi_mpi_dtype_of(p, f->element);
    int64_t size[4];
    agi_shape_of(p, f->shape, size);
    if (agi_mpi_is_matrix(f) && agi_mpi_has_rows(&x->plan->cut, size)) {
        x->exchanged[x->n_exchanged++] = (agi_mpi_exchanged){.item = {f, dtype, size[0], size[1], size[3]},
                                                             .side = AGI_MPI_QUERIES,
                                                             .shared = size[1] == 1,
                                                             .in = !out,
                                                             .out = out};
        return;
    }
    agi_mpi_replicated *r = &x->replicated[x->n_replicated++];
    *r = (agi_mpi_replicated){.f = f, .x.dtype = dtype, .out = out};
    memcpy(r->size, size, sizeof size);
}

static void choose_tensors(agi_mpi_exchange *x, agi_map map, const ag_args *a)
{
    const ag_problem *p = x->plan->cut.p;
    for (agi_mpi_side side = AGI_MPI_QUERIES; side <= AGI_MPI_KEYS; side++) {
        const agi_mpi_items in = agi_mpi_items_of(p, map, side, AGI_MPI_INPUTS, a);
        const agi_mpi_items out = agi_mpi_items_of(p, map, side, AGI_MPI_OUTPUTS, a);
        add_items(x, side, &in, a, false);
        add_items(x, side, &out, a, true);
    }
    for (int n = 0; n < AGI_N_TENSORS; n++) {
        const agi_tensor_info *f = &agi_tensors[n];
        if (agi_mpi_is_feature(f) && agi_has(p, f->feature) && f->role[map] != AGI_NONE && is_given(a, f)) {
            add_feature(x, f, agi_is_output(f->role[map]));
        }
    }
}

/* Room for the blocks of all ranks: all heads of this rank's rows, or all rows of its heads. */
static size_t staging_bytes(const agi_mpi_exchange *x)
{
    size_t largest = 0;
    const int32_t self = x->plan->comm.t.rank, ranks = x->plan->cut.ranks;
    for (int n = 0; n < x->n_exchanged; n++) {
        const agi_mpi_exchanged *e = &x->exchanged[n];
        int64_t first, count;
        heads_of(x, e, self, &first, &count);
        const size_t rows = block_bytes(e, count, all_rows(x, e->side));
        const size_t heads =
            block_bytes(e, e->shared ? ranks : e->item.heads, agi_mpi_rows(&x->plan->cut, e->side, self));
        largest = rows > largest ? rows : largest;
        largest = heads > largest ? heads : largest;
    }
    return largest;
}

static void take_memory(agi_mpi_exchange *x, agi_arena *arena)
{
    int64_t largest = 0;
    for (int n = 0; n < x->n_exchanged; n++) {
        agi_mpi_exchanged *e = &x->exchanged[n];
        int64_t first, count;
        heads_of(x, e, x->plan->comm.t.rank, &first, &count);
        const int64_t rows = all_rows(x, e->side);
        e->whole = block_array(e, agi_take(arena, 1, block_bytes(e, count, rows)), count, rows);
    }
    for (int n = 0; n < x->n_replicated; n++) {
        agi_mpi_replicated *r = &x->replicated[n];
        const int64_t count = agi_count(r->size);
        r->x.t = ag_bhnd(agi_take(arena, count, agi_mpi_element_bytes(r->x.dtype)), r->size[1], r->size[2],
                         r->size[3]);
        largest = r->out && count > largest ? count : largest;
    }
    x->room = agi_take(arena, largest, ag_dtype_size(agi_mpi_wide(x->plan->cut.p)));
}

void agi_mpi_all_to_all_lay_out(agi_mpi_exchange *x, agi_arena *arena, const ag_mpi_plan *plan, agi_map map,
                                const ag_args *a)
{
    memset(x, 0, sizeof *x);
    x->plan = plan;
    choose_tensors(x, map, a);
    take_memory(x, arena);
    const size_t staging = staging_bytes(x);
    x->sending = agi_take(arena, 1, staging);
    x->receiving = agi_take(arena, 1, staging);
    if (plan->heads != NULL) {
        ag_plan_workspace(plan->heads, UINT32_C(1) << map, &x->workspace_bytes);
    }
    x->workspace = agi_take(arena, 1, x->workspace_bytes);
}

/* ---- Exchanges ---- */

/* The rows of a rank, between all rows and a block of its own, one chunk after another. */
typedef enum { ROWS_TO_BLOCK, BLOCK_TO_ROWS } direction;

static void move_rows(const agi_mpi_exchange *x, const agi_mpi_exchanged *e, agi_mpi_array whole,
                      agi_mpi_array block, int32_t rank, int64_t heads, direction way)
{
    const agi_mpi_cut *cut = &x->plan->cut;
    for (int n = 0; n < agi_mpi_chunks(cut); n++) {
        const agi_mpi_chunk chunk = agi_mpi_chunk_of(cut, e->side, rank, n);
        const agi_mpi_array a = {agi_mpi_shift(whole.t, whole.dtype, 2, chunk.start), whole.dtype};
        const agi_mpi_array b = {agi_mpi_shift(block.t, block.dtype, 2, chunk.local), block.dtype};
        int64_t size[4];
        block_size(e, heads, chunk.length, size);
        if (way == ROWS_TO_BLOCK) {
            agi_mpi_copy(b, a, size, AGI_MPI_SET);
        } else {
            agi_mpi_copy(a, b, size, AGI_MPI_SET);
        }
    }
}

static agi_mpi_array callers(const agi_mpi_exchange *x, const agi_mpi_exchanged *e, const agi_mpi_call *call,
                             int64_t first_head)
{
    const ag_dtype dtype = agi_mpi_dtype_of(x->plan->cut.p, e->item.f->element);
    return (agi_mpi_array){agi_mpi_shift(agi_mpi_tensor_of(&call->a, e->item.f), dtype, 1, first_head),
                           dtype};
}

/* The block of one other rank in sending or receiving, and its size. */
typedef struct {
    int32_t rank;
    int64_t first, heads, rows; /* heads of the one, rows of the other */
    size_t at, bytes;
} block;

/* Goes through the ranks, beginning after this one so that not all send to the same; *at: bytes used so far.
 * has_rows: this rank is the one with the rows. */
static block block_of(const agi_mpi_exchange *x, const agi_mpi_exchanged *e, int32_t distance, bool has_rows,
                      size_t *at)
{
    const int32_t self = x->plan->comm.t.rank, rank = (self + distance) % x->plan->cut.ranks;
    block b = {.rank = rank, .at = *at};
    heads_of(x, e, has_rows ? rank : self, &b.first, &b.heads);
    b.rows = agi_mpi_rows(&x->plan->cut, e->side, has_rows ? self : rank);
    b.bytes = block_bytes(e, b.heads, b.rows);
    *at += b.bytes;
    return b;
}

/* Sends the blocks in `sending` and receives those in `receiving`. */
static ag_status exchange_blocks(const agi_mpi_exchange *x, const agi_mpi_exchanged *e, agi_mpi_comm *c,
                                 bool has_rows)
{
    size_t out = 0, in = 0;
    for (int32_t d = 1; d < x->plan->cut.ranks; d++) {
        const block b = block_of(x, e, d, !has_rows, &in);
        agi_mpi_receive(c, b.rank, AGI_MPI_TAG_EXCHANGE, x->receiving + b.at, b.bytes);
    }
    for (int32_t d = 1; d < x->plan->cut.ranks; d++) {
        const block b = block_of(x, e, d, has_rows, &out);
        agi_mpi_send(c, b.rank, AGI_MPI_TAG_EXCHANGE, x->sending + b.at, b.bytes);
    }
    return agi_mpi_wait_all(c);
}

static ag_status to_heads(const agi_mpi_exchange *x, const agi_mpi_exchanged *e, agi_mpi_call *call)
{
    const int32_t ranks = x->plan->cut.ranks, self = call->comm->t.rank;
    size_t at = 0;
    int64_t size[4], first, heads;
    for (int32_t d = 1; d < ranks; d++) { /* pack: rows of this rank, heads of the other */
        const block b = block_of(x, e, d, true, &at);
        block_size(e, b.heads, b.rows, size);
        agi_mpi_copy(block_array(e, x->sending + b.at, b.heads, b.rows), callers(x, e, call, b.first), size,
                     AGI_MPI_SET);
    }
    const ag_status status = exchange_blocks(x, e, call->comm, true);
    if (status != AG_OK) {
        return status;
    }
    at = 0;
    for (int32_t d = 1; d < ranks; d++) {
        const block b = block_of(x, e, d, false, &at);
        move_rows(x, e, e->whole, block_array(e, x->receiving + b.at, b.heads, b.rows), b.rank, b.heads,
                  BLOCK_TO_ROWS);
    }
    heads_of(x, e, self, &first, &heads);
    move_rows(x, e, e->whole, callers(x, e, call, first), self, heads, BLOCK_TO_ROWS);
    return AG_OK;
}

/* A shared gradient: the sum of the blocks of all ranks that have heads, in the order of the ranks, into the first. */
static agi_mpi_array sum_blocks(const agi_mpi_exchange *x, const agi_mpi_exchanged *e, agi_mpi_array own)
{
    const int32_t ranks = x->plan->cut.ranks, self = x->plan->comm.t.rank;
    const int64_t rows = agi_mpi_rows(&x->plan->cut, e->side, self);
    agi_mpi_array total = {{.data = NULL}, 0};
    int64_t size[4];
    block_size(e, 1, rows, size);
    for (int32_t rank = 0; rank < ranks; rank++) {
        size_t at = 0;
        block b = {.heads = 0};
        for (int32_t d = 1; d <= (rank - self + ranks) % ranks; d++) {
            b = block_of(x, e, d, true, &at);
        }
        int64_t first, heads;
        heads_of(x, e, rank, &first, &heads);
        const agi_mpi_array part = rank == self ? own : block_array(e, x->receiving + b.at, 1, rows);
        if (heads > 0 && total.t.data == NULL) {
            total = part;
        } else if (heads > 0) {
            agi_mpi_copy(total, part, size, AGI_MPI_ADD);
        }
    }
    return total;
}

/* The map has already added the old values of what has rows and heads, which were exchanged. */
static agi_mpi_mode store_mode(const agi_mpi_exchanged *e, const agi_mpi_call *call)
{
    return !e->in && (call->a.accumulate & e->item.f->accumulate) != 0 ? AGI_MPI_ADD : AGI_MPI_SET;
}

/* The blocks with this rank's rows have arrived; its own heads are in e->whole. */
static void store_rows(const agi_mpi_exchange *x, const agi_mpi_exchanged *e, const agi_mpi_call *call)
{
    const int32_t ranks = x->plan->cut.ranks, self = call->comm->t.rank;
    const int64_t rows = agi_mpi_rows(&x->plan->cut, e->side, self);
    const agi_mpi_mode mode = store_mode(e, call);
    int64_t size[4], first, heads;
    size_t at = 0;
    heads_of(x, e, self, &first, &heads);
    const agi_mpi_array own = block_array(e, x->sending, heads, rows); /* all is sent: its room is free */
    move_rows(x, e, e->whole, own, self, heads, ROWS_TO_BLOCK);
    if (e->shared) {
        block_size(e, 1, rows, size);
        agi_mpi_copy(callers(x, e, call, 0), sum_blocks(x, e, own), size, mode);
        return;
    }
    for (int32_t d = 1; d < ranks; d++) {
        const block b = block_of(x, e, d, true, &at);
        block_size(e, b.heads, b.rows, size);
        agi_mpi_copy(callers(x, e, call, b.first), block_array(e, x->receiving + b.at, b.heads, b.rows), size,
                     mode);
    }
    block_size(e, heads, rows, size);
    agi_mpi_copy(callers(x, e, call, first), own, size, mode);
}

static ag_status to_rows(const agi_mpi_exchange *x, const agi_mpi_exchanged *e, agi_mpi_call *call)
{
    size_t at = 0;
    for (int32_t d = 1; d < x->plan->cut.ranks; d++) { /* pack: heads of this rank, rows of the other */
        const block b = block_of(x, e, d, false, &at);
        move_rows(x, e, e->whole, block_array(e, x->sending + b.at, b.heads, b.rows), b.rank, b.heads,
                  ROWS_TO_BLOCK);
    }
    const ag_status status = exchange_blocks(x, e, call->comm, false);
    if (status == AG_OK) {
        store_rows(x, e, call);
    }
    return status;
}

/* ---- The map ---- */

/* The part of a tensor with all heads that belongs to this rank's. */
static ag_tensor own_heads(const agi_mpi_exchange *x, const agi_mpi_replicated *r)
{
    int64_t first, count;
    agi_mpi_kv_heads(&x->plan->cut, x->plan->comm.t.rank, &first, &count);
    const int64_t group = x->plan->cut.p->heads / x->plan->cut.p->kv_heads;
    return r->size[1] != 1 ? agi_mpi_shift(r->x.t, r->x.dtype, 1, first * group) : r->x.t;
}

static void begin_replicated(const agi_mpi_exchange *x, const agi_mpi_call *call)
{
    for (int n = 0; n < x->n_replicated; n++) {
        const agi_mpi_replicated *r = &x->replicated[n];
        const ag_dtype dtype = agi_mpi_dtype_of(x->plan->cut.p, r->f->element);
        if (r->out) {
            agi_mpi_fill(r->x, r->size, 0);
        } else {
            agi_mpi_copy(r->x, (agi_mpi_array){agi_mpi_tensor_of(&call->a, r->f), dtype}, r->size,
                         AGI_MPI_SET);
        }
    }
}

/* Lists, offsets, seed and flags are the caller's: the map has all rows. */
static void run_map(const agi_mpi_exchange *x, agi_mpi_call *call)
{
    ag_args args = call->a;
    for (int n = 0; n < AGI_N_TENSORS; n++) {
        agi_mpi_tensor(&args, &agi_tensors[n])->data = NULL;
    }
    args.accumulate = 0;
    for (int n = 0; n < x->n_exchanged; n++) {
        const agi_mpi_exchanged *e = &x->exchanged[n];
        *agi_mpi_tensor(&args, e->item.f) = e->whole.t;
        args.accumulate |= e->in && e->out ? e->item.f->accumulate : 0;
    }
    for (int n = 0; n < x->n_replicated; n++) {
        *agi_mpi_tensor(&args, x->replicated[n].f) = own_heads(x, &x->replicated[n]);
    }
    if (x->plan->heads != NULL && agi_mpi_computes(call)) {
        agi_mpi_run_inside(call, x->plan->heads, &args, x->workspace, x->workspace_bytes);
    }
}

static ag_status sum_replicated(const agi_mpi_exchange *x, agi_mpi_call *call)
{
    ag_status status = AG_OK;
    for (int n = 0; n < x->n_replicated && status == AG_OK; n++) {
        const agi_mpi_replicated *r = &x->replicated[n];
        if (r->out) {
            status = agi_mpi_sum(call->comm, r->x.t.data, x->room, agi_count(r->size), r->x.dtype);
        }
    }
    return status;
}

static void store_replicated(const agi_mpi_exchange *x, const agi_mpi_call *call)
{
    for (int n = 0; n < x->n_replicated; n++) {
        const agi_mpi_replicated *r = &x->replicated[n];
        const ag_dtype dtype = agi_mpi_dtype_of(x->plan->cut.p, r->f->element);
        const bool add = (call->a.accumulate & r->f->accumulate) != 0;
        if (r->out) {
            agi_mpi_copy((agi_mpi_array){agi_mpi_tensor_of(&call->a, r->f), dtype}, r->x, r->size,
                         add ? AGI_MPI_ADD : AGI_MPI_SET);
        }
    }
}

ag_status agi_mpi_all_to_all_map(agi_mpi_call *call, void *workspace)
{
    agi_mpi_exchange x;
    agi_arena arena = agi_arena_begin(workspace);
    ag_status status = AG_OK;
    agi_mpi_all_to_all_lay_out(&x, &arena, call->plan, call->map, &call->a);
    begin_replicated(&x, call);
    for (int n = 0; n < x.n_exchanged && status == AG_OK; n++) {
        status = x.exchanged[n].in ? to_heads(&x, &x.exchanged[n], call) : AG_OK;
    }
    if (status == AG_OK) {
        run_map(&x, call);
        status = sum_replicated(&x, call);
    }
    status = agi_mpi_conclude(call, status);
    for (int n = 0; n < x.n_exchanged && status == AG_OK; n++) {
        status = x.exchanged[n].out ? to_rows(&x, &x.exchanged[n], call) : AG_OK;
    }
    if (status == AG_OK) {
        store_replicated(&x, call);
    }
    return status;
}
