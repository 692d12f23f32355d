/* The plan of one rank: the cut, the way of each map, and the plans of libattngrad that it runs. */
#ifndef AGI_MPI_PLAN_H
#define AGI_MPI_PLAN_H

#include "core/tensors.h"
#include "mpi/comm.h"
#include "mpi/shard.h"

/* The dtypes of the maps on a pair of chunks, whose results are parts of sums: float32 or, for float64, float64. */
typedef enum {
    AGI_MPI_WIDE_OUT,   /* forward, jvp, jvp_jvp: o and to are wide, biases as in the problem */
    AGI_MPI_WIDE_GRADS, /* vjp, vjp_jvp: gradients and biases are wide, o and to as in the problem */
    AGI_MPI_N_KINDS
} agi_mpi_kind;

/* A plan for pairs of chunks of one size. */
typedef struct {
    int64_t q_rows, k_rows;
    bool sink; /* the sink belongs to the pair of chunks of the same number */
    agi_mpi_kind kind;
    ag_plan *plan;
} agi_mpi_pair_plan;

/* Chunks of one problem have at most two sizes: two of queries, two of keys, with and without sink, two kinds. */
enum { AGI_MPI_MAX_PAIR_PLANS = 16 };

struct ag_mpi_plan {
    agi_mpi_comm comm;
    agi_mpi_cut cut;
    ag_plan *whole; /* of the problem of all ranks: never run; owns what cut.p points to */
    ag_plan *shard; /* of this rank's rows: never run, checks the tensors of a call */
    ag_plan *heads; /* all-to-all: of this rank's heads; NULL if it has none */
    agi_mpi_pair_plan pairs[AGI_MPI_MAX_PAIR_PLANS];
    int n_pairs;
    ag_options options; /* of the plans inside */
    ag_mpi_way way[AGI_N_MAPS];
    size_t bytes[AGI_N_MAPS];
    ag_mpi_traffic traffic;
};

#define AGI_MPI_DEFAULT_TIMEOUT_S 300.0

/* Makes a plan on a transport, which then belongs to it; also if it fails. options may be NULL. */
ag_status agi_mpi_plan_create(ag_mpi_plan **plan, const ag_problem *problem, const agi_mpi_transport *t,
                              const ag_mpi_options *options);

/* The plan of a pair of chunks; NULL if no chunks have these sizes. */
const ag_plan *agi_mpi_pair_plan_of(const ag_mpi_plan *plan, int64_t q_rows, int64_t k_rows, bool sink,
                                    agi_mpi_kind kind);
agi_mpi_kind agi_mpi_kind_of(agi_map map);

/* float64 for float64, else float32. */
ag_dtype agi_mpi_wide(const ag_problem *p);

/* The bytes that all ranks together send, if all tensors of the map are given. rows: those that travel if the queries
 * do, and if the keys do. */
double agi_mpi_bytes_of_way(const agi_mpi_cut *cut, agi_map map, ag_mpi_way way, const double rows[2]);
double agi_mpi_travelling_rows(const agi_mpi_cut *cut, agi_mpi_side guests);

/* May the plan go this way? If not, *why says why. */
bool agi_mpi_way_allowed(const agi_mpi_cut *cut, ag_mpi_way way, const char **why);

#endif
