/* attngrad_mpi: the maps of attngrad.h on sequences that are sharded over the ranks of an MPI communicator.
 *
 *     ag_mpi_plan *plan;
 *     ag_mpi_plan_create(&plan, &problem, MPI_COMM_WORLD, NULL);   the problem of all ranks together
 *     ag_mpi_shard(plan, rank, &shard);                            which rows a rank has
 *     ag_mpi_plan_workspace(plan, AG_MAP_FORWARD | AG_MAP_VJP, &bytes);
 *     ag_mpi_forward(plan, &args, NULL, workspace, bytes);         args: this rank's rows
 *     ag_mpi_vjp(plan, &args, NULL, workspace, bytes);
 *
 * A separate library, libattngrad_mpi, on top of libattngrad. docs/cluster.md explains the ways and their costs.
 * Rules that hold everywhere:
 *   - ag_mpi_plan_create and the maps are collective: all ranks call them in the same order with the same problem,
 *     options, flags, accumulate, lists (lengths, offsets, packed offsets) and seed, and the same tensors absent.
 *   - Every rank returns the same status; ag_mpi_last_message() is the same on every rank and names the rank and the
 *     field that is wrong. A wrong argument is found before the first byte of a tensor is sent. Exceptions: a plan that
 *     is NULL is refused on that rank alone, and AG_TIMEOUT and AG_DEVICE are found by each rank by itself: their
 *     message names the rank that returns it.
 *   - After AG_TIMEOUT or AG_DEVICE messages may still be under way: tensors, workspace and plan must stay until
 *     MPI_Abort or the end of the process, and what is in them is undefined.
 *   - One call of a plan at a time. MPI must provide MPI_THREAD_FUNNELED, and the thread that calls MPI calls the maps.
 *   - Maps allocate nothing.
 *   - For a number of ranks, a layout and a way, the same inputs give the same bits, in every run and for any number
 *     of threads. */
#ifndef ATTNGRAD_MPI_H
#define ATTNGRAD_MPI_H

#include "attngrad.h"

/* AG_MPI_WITHOUT_MPI leaves out the one function that mentions MPI's types. */
#ifndef AG_MPI_WITHOUT_MPI
#include <mpi.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* One line about the last call of this library on this thread that failed, and the name of the argument that it is
 * about, as of ag_last_field(). Never NULL. */
AG_API const char *ag_mpi_last_message(void);
AG_API const char *ag_mpi_last_field(void);

/* ---- Plan -------------------------------------------------------------------------------------- */

/* What moves between the ranks. The rings go through the ranks in P steps; in step s, rank r computes with the rows
 * of rank r - s. */
typedef int32_t ag_mpi_way;
enum {
    /* For each map the one that sends the fewest bytes and leaves no rank idle. */
    AG_MPI_AUTO = 0,

    /* k and v and their tangents go round; the partial sums of their gradients come back. */
    AG_MPI_RING_KEYS = 1,

    /* vjp, vjp_jvp: q, d_o, two numbers per row and their tangents go round, dq comes back; the other maps as
     * AG_MPI_RING_KEYS. Not with a bias or mask that has rows. */
    AG_MPI_RING_QUERIES = 2,

    /* One exchange gives each rank all rows of some kv heads, another takes the results back. If there are more ranks
     * than kv heads, those without a head wait. */
    AG_MPI_ALL_TO_ALL = 3
};

/* Which rows of the sequence, or of the packed array, a rank has. N rows are cut into C chunks, chunk c having rows
 * floor(c N / C) up to, not including, floor((c + 1) N / C). Queries and keys are cut alike, each with its own N. */
typedef int32_t ag_mpi_layout;
enum {
    /* C = 2 P; rank r has the chunks r and 2 P - 1 - r, in this order: equal work if causal. */
    AG_MPI_ZIGZAG = 0,

    /* C = P; rank r has chunk r. */
    AG_MPI_CONTIGUOUS = 1
};

/* Who moves messages on while a map computes: MPI itself usually does so only inside its own functions. */
typedef int32_t ag_mpi_progress;
enum {
    /* A thread if MPI was initialized with MPI_THREAD_MULTIPLE, else polling. */
    AG_MPI_PROGRESS_AUTO = 0,

    /* The thread that called the map, every 10 ms: enough for messages that the network moves by itself. */
    AG_MPI_PROGRESS_POLL = 1,

    /* A thread of the plan, every 0.2 ms. Needs MPI_THREAD_SERIALIZED; no other thread may call MPI during a map,
     * unless there is MPI_THREAD_MULTIPLE. */
    AG_MPI_PROGRESS_THREAD = 2
};

typedef struct ag_mpi_options {
    uint32_t struct_size; /* sizeof(ag_mpi_options) */
    ag_mpi_progress progress;
    ag_mpi_way way;
    ag_mpi_layout layout;

    /* A call that waits this many seconds, in which no message arrives or leaves and no rank computes, fails with
     * AG_TIMEOUT, and so does every later call of the plan; 0 = 300. The same on all ranks. Set it above the time by
     * which one rank may come to a call before another; a rank that computes must get a processor several times within
     * it. A rank that stops is noticed after up to 1.25 times as long. */
    double timeout_s;

    /* Of the maps inside: backend (on the host: not AG_BACKEND_CUDA), threads, allocator, AG_INVARIANT; NULL =
     * defaults. */
    const ag_options *plan;
} ag_mpi_options;

/* clang-format off */
#define AG_MPI_OPTIONS_INIT {sizeof(ag_mpi_options), 0, 0, 0, 0, NULL}
/* clang-format on */

typedef struct ag_mpi_plan ag_mpi_plan;

#ifndef AG_MPI_WITHOUT_MPI
/* problem: that of all ranks together; q_len, kv_len, q_total and kv_total are global. options may be NULL. comm is
 * duplicated. On failure *plan is NULL. */
AG_API ag_status ag_mpi_plan_create(ag_mpi_plan **plan, const ag_problem *problem, MPI_Comm comm,
                                    const ag_mpi_options *options);
#endif

/* Collective, before MPI_Finalize. NULL is allowed. */
AG_API void ag_mpi_plan_destroy(ag_mpi_plan *plan);

/* The problem of all ranks with every default filled in; lives as long as the plan. */
AG_API const ag_problem *ag_mpi_plan_problem(const ag_mpi_plan *plan);

/* The way of one map (one bit of AG_MAP_*): never AG_MPI_AUTO. */
AG_API ag_status ag_mpi_plan_way(const ag_mpi_plan *plan, uint32_t map, ag_mpi_way *way);

/* As ag_plan_workspace: the size for this rank. In the rings it grows with its rows, not with those of all ranks; but
 * with a bias or mask of a packed problem, and in vjp and vjp_jvp with a 16-bit aux_dtype, also with its part of them.
 * In AG_MPI_ALL_TO_ALL it grows with all rows times the share of the heads that the rank has: if there are more ranks
 * than kv heads, a rank that has one needs more than its rows would, and with one kv head the whole problem. */
AG_API ag_status ag_mpi_plan_workspace(const ag_mpi_plan *plan, uint32_t maps, size_t *bytes);

/* The rows and the heads of one rank. */
typedef struct ag_mpi_shard_info {
    uint32_t struct_size; /* sizeof(ag_mpi_shard_info), set by the caller */
    int32_t chunks;       /* 2, or 1 if the layout is contiguous */
    int64_t q_rows;       /* rows of q, o, lse and so on: all chunks, one after another */
    int64_t kv_rows;      /* rows of k and v */
    int64_t q_starts[2], q_lengths[2];
    int64_t k_starts[2], k_lengths[2];
    int64_t head_first, heads; /* the query heads that the rank computes in AG_MPI_ALL_TO_ALL */
} ag_mpi_shard_info;

AG_API ag_status ag_mpi_shard(const ag_mpi_plan *plan, int32_t rank, ag_mpi_shard_info *info);

/* ---- The five maps ----------------------------------------------------------------------------- */

/* As the maps of attngrad.h, on the rows of this rank. Of the tensors of ag_args
 *   - q, o, lse and what has their shapes have q_rows rows, k and v have kv_rows (packed: rows of the packed array);
 *   - bias and mask have the rows of q, and all keys. If they have one row, or if the problem is packed, they are
 *     whole and equal on all ranks, and so are their tangents; the gradient is then the sum over the ranks;
 *   - table and sink are whole and equal on all ranks; their gradients are sums over the ranks.
 * In the rings outputs are written at the end, if every rank has succeeded, but for the gradient of a bias with rows:
 * if aux_dtype is float32 (float64 if dtype is), vjp and vjp_jvp clear it first, unless they accumulate, and add to it
 * as they go on. After a call that was cancelled or has failed on the way it has a part of the sum.
 * A rank that has no rows gives its tensors too, at any address but NULL: NULL means on every rank the same.
 * Lists and offsets are those of the whole problem: lengths up to q_len, packed offsets up to q_total, the positions
 * of query 0 and key 0 of the whole sequence. With AG_GIVEN_O jvp leaves o and lse as they are. */
AG_API ag_status ag_mpi_forward(ag_mpi_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                                size_t bytes);
AG_API ag_status ag_mpi_vjp(ag_mpi_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                            size_t bytes);
AG_API ag_status ag_mpi_jvp(ag_mpi_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                            size_t bytes);
AG_API ag_status ag_mpi_vjp_jvp(ag_mpi_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                                size_t bytes);
AG_API ag_status ag_mpi_jvp_jvp(ag_mpi_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                                size_t bytes);

/* What this rank did in the last map of the plan. */
typedef struct ag_mpi_traffic {
    uint32_t struct_size; /* sizeof(ag_mpi_traffic), set by the caller */
    uint32_t reserved;
    int64_t bytes_sent;     /* of tensors */
    double seconds;         /* of the whole call */
    double seconds_waiting; /* for messages, with nothing to compute */
} ag_mpi_traffic;

AG_API ag_status ag_mpi_traffic_get(const ag_mpi_plan *plan, ag_mpi_traffic *traffic);

#ifdef __cplusplus
}
#endif

#endif
