/* The steps of a ring: see ring.h. */
#include "mpi/ring.h"

bool agi_mpi_is_needed(const agi_mpi_cut *cut, const ag_args *args, agi_mpi_side guests, int32_t home,
                       int32_t owner, int n)
{
    const agi_mpi_side at_home = guests == AGI_MPI_KEYS ? AGI_MPI_QUERIES : AGI_MPI_KEYS;
    const agi_mpi_chunk guest = agi_mpi_chunk_of(cut, guests, owner, n);
    for (int i = 0; i < agi_mpi_chunks(cut); i++) {
        const agi_mpi_chunk own = agi_mpi_chunk_of(cut, at_home, home, i);
        if (guests == AGI_MPI_KEYS ? agi_mpi_sees(cut, args, &own, &guest)
                                   : agi_mpi_sees(cut, args, &guest, &own)) {
            return true;
        }
    }
    return false;
}

/* ---- Messages ---- */

/* The slots of a step's messages, one per chunk. */
typedef struct {
    int32_t slot[AGI_MPI_MAX_CHUNKS];
} slots;

static const slots no_slots = {{AGI_MPI_NO_SLOT, AGI_MPI_NO_SLOT}};

static ag_status wait_for(agi_mpi_ring *ring, slots *s)
{
    ag_status status = AG_OK;
    for (int n = 0; n < ring->chunks && status == AG_OK; n++) {
        status = agi_mpi_wait(ring->call->comm, s->slot[n]);
        s->slot[n] = AGI_MPI_NO_SLOT;
    }
    return status;
}

static int32_t rank_at(const agi_mpi_ring *ring, int64_t distance)
{
    const agi_mpi_transport *t = &ring->call->comm->t;
    return (int32_t)((t->rank + distance + t->size) % t->size);
}

static int64_t guest_rows(const agi_mpi_ring *ring, int32_t owner, int n)
{
    return agi_mpi_chunk_of(ring->cut, ring->guests, owner, n).length;
}

/* Chunks of the guests of `owner` between the blocks at `blocks` and `other`, as far as `home` needs them. */
typedef struct {
    int32_t home, owner, other;
    int32_t tag;
    const agi_mpi_items *items;
    size_t block_bytes;
    char *blocks;
} transfer;

static int32_t start_chunk(agi_mpi_ring *ring, const transfer *x, int n, bool send)
{
    agi_mpi_comm *c = ring->call->comm;
    char *block = x->blocks + (size_t)n * x->block_bytes;
    const size_t bytes = agi_mpi_block_bytes(x->items, guest_rows(ring, x->owner, n));
    if (!agi_mpi_is_needed(ring->cut, &ring->call->a, ring->guests, x->home, x->owner, n)) {
        return AGI_MPI_NO_SLOT;
    }
    return send ? agi_mpi_send(c, x->other, x->tag, block, bytes)
                : agi_mpi_receive(c, x->other, x->tag, block, bytes);
}

static slots start(agi_mpi_ring *ring, const transfer *x, bool send)
{
    slots s = no_slots;
    for (int n = 0; n < ring->chunks; n++) {
        s.slot[n] = start_chunk(ring, x, n, send);
    }
    return s;
}

/* Guests of step s: this rank's go to rank + s, those of rank - s arrive. */
static slots send_guests(agi_mpi_ring *ring, int32_t step)
{
    const int32_t to = rank_at(ring, step), self = ring->call->comm->t.rank;
    const transfer x = {to, self, to, AGI_MPI_TAG_GUESTS, &ring->guest_in, ring->guest_bytes, ring->own};
    return start(ring, &x, true);
}

static slots receive_guests(agi_mpi_ring *ring, int32_t step)
{
    const int32_t from = rank_at(ring, -(int64_t)step), self = ring->call->comm->t.rank;
    const transfer x = {
        self, from, from, AGI_MPI_TAG_GUESTS, &ring->guest_in, ring->guest_bytes, ring->arriving[step % 2]};
    return start(ring, &x, false);
}

/* Sums of step s go the other way. */
static int32_t send_sums(agi_mpi_ring *ring, int32_t step, int n)
{
    const int32_t to = rank_at(ring, -(int64_t)step), self = ring->call->comm->t.rank;
    const transfer x = {self,
                        to,
                        to,
                        AGI_MPI_TAG_RETURNED,
                        &ring->guest_sums,
                        ring->guest_sum_bytes,
                        ring->leaving[step % 2]};
    return start_chunk(ring, &x, n, true);
}

static slots receive_sums(agi_mpi_ring *ring, int32_t step)
{
    const int32_t from = rank_at(ring, step), self = ring->call->comm->t.rank;
    const transfer x = {from,
                        self,
                        from,
                        AGI_MPI_TAG_RETURNED,
                        &ring->guest_sums,
                        ring->guest_sum_bytes,
                        ring->returned[step % 2]};
    return start(ring, &x, false);
}

/* Adds the sums of step s to those of this rank, in the order of the steps. */
static ag_status add_returned(agi_mpi_ring *ring, slots *arriving, int32_t step)
{
    const ag_status status = wait_for(ring, arriving);
    const int32_t from = rank_at(ring, step), self = ring->call->comm->t.rank;
    for (int n = 0; n < ring->chunks && status == AG_OK; n++) {
        if (agi_mpi_is_needed(ring->cut, &ring->call->a, ring->guests, from, self, n)) {
            const size_t at = (size_t)n * ring->guest_sum_bytes;
            agi_mpi_add_block(&ring->guest_sums, ring->guest_total + at, ring->returned[step % 2] + at,
                              guest_rows(ring, self, n));
        }
    }
    return status;
}

/* ---- Steps ---- */

/* The messages that are under way. */
typedef struct {
    slots guests_out, guests_in; /* guests_in: of the step that computes */
    slots sums_out[2], sums_in[2];
} traffic;

/* The pairs of chunk n of the guests. Those of chunks of the same number, which are in step 0, always run if there is a
 * sink. */
static void compute_chunk(agi_mpi_ring *ring, int32_t step, int n)
{
    char *guests = step == 0 ? ring->own : ring->arriving[step % 2];
    char *sums = step == 0 ? ring->guest_total : ring->leaving[step % 2];
    ring->guest_begun[n] = false;
    for (int i = 0; i < ring->chunks; i++) {
        const agi_mpi_pair pair = {rank_at(ring, -(int64_t)step), i, n,
                                   guests + (size_t)n * ring->guest_bytes,
                                   sums == NULL ? NULL : sums + (size_t)n * ring->guest_sum_bytes};
        agi_mpi_run_pair(ring, &pair);
    }
}

/* Computes with each chunk as soon as it is here, and sends its sums as soon as they are ready. */
static ag_status compute(agi_mpi_ring *ring, traffic *t, int32_t step)
{
    const bool sends = ring->guest_sums.count > 0 && step > 0;
    ag_status status = AG_OK;
    for (int n = 0; n < ring->chunks && status == AG_OK; n++) {
        status = agi_mpi_wait(ring->call->comm, t->guests_in.slot[n]);
        if (status == AG_OK) {
            compute_chunk(ring, step, n);
            t->sums_out[step % 2].slot[n] = sends ? send_sums(ring, step, n) : AGI_MPI_NO_SLOT;
        }
    }
    return status;
}

static ag_status run_step(agi_mpi_ring *ring, traffic *t, int32_t step)
{
    const bool is_last = step == ring->call->comm->t.size - 1, has_sums = ring->guest_sums.count > 0;
    slots next = no_slots;
    ag_status status = wait_for(ring, &t->guests_out);
    if (status == AG_OK && !is_last) {
        next = receive_guests(ring, step + 1);
        t->guests_out = send_guests(ring, step + 1);
    }
    if (status == AG_OK && has_sums && step > 0) {
        t->sums_in[step % 2] = receive_sums(ring, step);
        status = wait_for(ring, &t->sums_out[step % 2]);
    }
    status = status == AG_OK ? compute(ring, t, step) : status;
    if (status == AG_OK && has_sums && step > 1) {
        status = add_returned(ring, &t->sums_in[(step - 1) % 2], step - 1);
    }
    t->guests_in = next;
    return status;
}

static ag_status run_steps(agi_mpi_ring *ring)
{
    const int32_t ranks = ring->call->comm->t.size;
    traffic t = {no_slots, no_slots, {no_slots, no_slots}, {no_slots, no_slots}};
    ag_status status = AG_OK;
    for (int32_t step = 0; step < ranks && status == AG_OK; step++) {
        status = run_step(ring, &t, step);
    }
    if (status == AG_OK && ring->guest_sums.count > 0 && ranks > 1) {
        status = add_returned(ring, &t.sums_in[(ranks - 1) % 2], ranks - 1);
    }
    status = status == AG_OK ? wait_for(ring, &t.guests_out) : status;
    for (int n = 0; n < 2 && status == AG_OK; n++) {
        status = wait_for(ring, &t.sums_out[n]);
    }
    return status;
}

ag_status agi_mpi_ring_map(agi_mpi_call *call, void *workspace)
{
    agi_mpi_ring ring;
    agi_arena arena = agi_arena_begin(workspace);
    agi_mpi_ring_lay_out(&ring, &arena, call->plan, call->map, &call->a);
    ring.call = call;
    agi_mpi_ring_begin(&ring);
    ag_status status = run_steps(&ring);
    if (status == AG_OK) {
        agi_mpi_ring_complete(&ring);
        status = agi_mpi_features_sum(&ring.features, call);
    }
    status = agi_mpi_conclude(call, status);
    if (status == AG_OK) {
        agi_mpi_ring_store(&ring);
    }
    return status;
}
