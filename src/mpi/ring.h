/* The rings. One side, keys or queries, is the guest: its rows go through all ranks, the partial sums of its gradients
 * come back to their owner. The other side is at home: its rows and sums stay.
 *
 * In step s rank r computes with the guests of rank r - s, which their owner sent to it directly. So each rank receives
 * exactly the chunks that its own rows see, in whatever order the layout gives: nothing is passed on, and a step
 * that sees nothing costs nothing. Guests for step s + 1 and sums of step s - 1 are under way while step s computes. */
#ifndef AGI_MPI_RING_H
#define AGI_MPI_RING_H

#include "mpi/features.h"
#include "mpi/call.h"
#include "mpi/items.h"

/* Is chunk n of the guests of `owner` seen by, or does it see, any row of `home`? args as in shard.h. */
bool agi_mpi_is_needed(const agi_mpi_cut *cut, const ag_args *args, agi_mpi_side guests, int32_t home,
                       int32_t owner, int n);

/* The lists of a pair of chunks: see pair.c. */
typedef struct {
    int64_t *q_lengths, *k_lengths; /* [B], or packed offsets [B + 1] */
    int64_t *q_offsets, *k_offsets; /* [B] */
} agi_mpi_lists;

typedef struct {
    agi_mpi_call *call;
    const agi_mpi_cut *cut;
    agi_mpi_side guests;
    int chunks;
    agi_mpi_items guest_in;   /* what travels */
    agi_mpi_items guest_sums; /* gradients of the guests; none in forward, jvp, jvp_jvp */
    agi_mpi_items home_sums;  /* gradients of the rows at home; or o, lse, to, mu; or sto, nu */
    size_t guest_bytes, guest_sum_bytes, home_sum_bytes; /* of a block: room for the longest chunk */

    char *own;         /* [chunks] this rank's rows of the guests */
    char *arriving[2]; /* [chunks] each; step s uses number s % 2, as those below */
    char *leaving[2];  /* sums of guests of another rank */
    char *returned[2]; /* sums of this rank's guests from another rank */
    char *guest_total; /* [chunks] sums of this rank's guests */
    char *home_total;  /* [chunks] */
    char *part;        /* forward, jvp: the results of one pair, to be merged */
    char *wide_o;      /* [chunks] jvp_jvp: o with its low half, wide */
    agi_mpi_items o_item;
    size_t wide_o_bytes;

    agi_mpi_features features; /* bias, mask, table, sink and their gradients */
    agi_mpi_lists lists;
    void *workspace; /* of the maps inside */
    size_t workspace_bytes;
    bool home_begun[AGI_MPI_MAX_CHUNKS];  /* has a pair written to the sum? */
    bool guest_begun[AGI_MPI_MAX_CHUNKS]; /* in this step */
} agi_mpi_ring;

/* Lays the ring out in a workspace; arena of NULL: a dry run. a NULL: room for all tensors. */
void agi_mpi_ring_lay_out(agi_mpi_ring *ring, agi_arena *arena, const ag_mpi_plan *plan, agi_map map,
                          const ag_args *a);

/* Runs the map on chunk i at home and chunk n of the guests of `owner`, adding to the sums. guests, sums: blocks. */
typedef struct {
    int32_t owner;
    int i, n;
    char *guests, *sums;
} agi_mpi_pair;
void agi_mpi_run_pair(agi_mpi_ring *ring, const agi_mpi_pair *pair);

/* What is at home before the first pair, and what no pair has written. */
void agi_mpi_ring_begin(agi_mpi_ring *ring);
void agi_mpi_ring_complete(agi_mpi_ring *ring);

/* Writes the results to the caller's tensors. */
void agi_mpi_ring_store(agi_mpi_ring *ring);

/* The whole map. All ranks return the same status. */
ag_status agi_mpi_ring_map(agi_mpi_call *call, void *workspace);

#endif
