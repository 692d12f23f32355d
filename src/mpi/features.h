/* Bias, mask, table and sink in a ring: their part for a pair of chunks, and their gradients, which are sums over pairs
 * and, unless they are cut by query rows, over ranks. */
#ifndef AGI_MPI_FEATURES_H
#define AGI_MPI_FEATURES_H

#include "mpi/call.h"
#include "mpi/items.h"

enum { AGI_MPI_MAX_FEATURES = 12, AGI_MPI_MAX_FEATURE_SUMS = 3 };

/* A tensor of a feature. */
typedef struct {
    const agi_tensor_info *f;
    int64_t size[4];    /* on this rank */
    agi_mpi_array x;    /* an input, the caller's or a wide copy; or the wide sum of a gradient */
    bool is_callers;    /* x is the caller's tensor */
    bool in_rectangles; /* of packed sequences: pairs work on a copy, one rectangle per sequence */
    void *rectangles;
} agi_mpi_feature;

typedef struct {
    agi_mpi_feature in[AGI_MPI_MAX_FEATURES];
    agi_mpi_feature sums[AGI_MPI_MAX_FEATURE_SUMS];
    int n_in, n_sums;
    void *room; /* for the sums over ranks */
} agi_mpi_features;

/* a NULL: room for all tensors. */
void agi_mpi_features_lay_out(agi_mpi_features *x, agi_arena *arena, const ag_mpi_plan *plan, agi_map map,
                              const ag_args *a);

/* Makes the copies, and clears the sums. */
void agi_mpi_features_begin(agi_mpi_features *x, const agi_mpi_call *call);

/* The chunks of one pair, and the plan that runs it. */
typedef struct {
    const agi_mpi_chunk *q, *k;
    bool sink; /* does the pair have the sink? */
    const ag_plan *plan;
} agi_mpi_feature_pair;

/* Sets the features in the arguments of a pair; after the map has run, adds what it left in rectangles. */
void agi_mpi_features_set(agi_mpi_features *x, const agi_mpi_call *call, const agi_mpi_feature_pair *pair,
                          ag_args *args);
void agi_mpi_features_collect(agi_mpi_features *x, const agi_mpi_call *call,
                              const agi_mpi_feature_pair *pair);

/* Does a pair with or without the sink have a part of any gradient? */
bool agi_mpi_features_has_sums(const agi_mpi_features *x, bool sink);

/* After the last pair: sums over the ranks; and into the caller's tensors. */
ag_status agi_mpi_features_sum(agi_mpi_features *x, agi_mpi_call *call);
void agi_mpi_features_store(agi_mpi_features *x, const agi_mpi_call *call);

/* The size that a tensor of a feature has on this rank. */
void agi_mpi_feature_size(const ag_mpi_plan *plan, const agi_tensor_info *f, int64_t size[4]);

bool agi_mpi_is_feature(const agi_tensor_info *f); /* bias, mask, table, sink, their tangents and gradients */
bool agi_mpi_is_matrix(const agi_tensor_info *f);  /* those of bias and mask */

#endif
