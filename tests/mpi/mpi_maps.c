/* The sharded maps on MPI, against the error rule: random problems over all features and dtypes, one way and layout
 * after another. Run by mpirun on any number of ranks: mpi_maps [FIRST COUNT [THREADS]]. Rank 0 prints the summary,
 * with a hash of all results, which mpi_bits.sh compares between runs. */
#include "attngrad_mpi.h"
#include "check/error_rule.h"
#include "check/random_case.h"
#include "shards.h"
#include "test.h"

#include <attngrad_check.h>

enum { PROBLEMS = 60, SEED = 33 };

static int rank, ranks;
static int32_t threads = 1;
static uint64_t results = UINT64_C(0xcbf29ce484222325); /* FNV-1a of all results so far */

static void add_to_hash(const struct arrays *y)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        const unsigned char *bytes = y->data[t];
        const int output = bytes != NULL && agc_tensor_info[t].role == ROLE_OUTPUT;
        for (size_t n = 0; output && n < (size_t)y->count[t] * agc_element_size(y, t); n++) {
            results = (results ^ bytes[n]) * UINT64_C(0x100000001b3);
        }
    }
}

/* What each rank has written to its rows, together: the others left zero bytes there. */
static void join(struct arrays *y)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (y->data[t] != NULL && agc_tensor_info[t].role == ROLE_OUTPUT) {
            MPI_Allreduce(MPI_IN_PLACE, y->data[t], (int)((size_t)y->count[t] * agc_element_size(y, t)),
                          MPI_BYTE, MPI_BOR, MPI_COMM_WORLD);
        }
    }
}

static void check_rule(const struct arrays *x, const struct arrays *y, const char *label)
{
    struct error_entry entries[T_COUNT];
    struct error_truth truth;
    int count = 0;
    if (CHECK_OK(agc_error_truth_create(&truth, x, 1))) {
        agc_error_entries(&truth, y, entries, &count);
        for (int n = 0; n < count; n++) {
            CHECK(agc_error_entry_passed(&entries[n]), "%s: %s: error %.3g, limit %.3g", label,
                  agc_tensor_info[entries[n].t].name, entries[n].error, entries[n].limit);
        }
        agc_error_truth_destroy(&truth);
    }
}

static void run_way(const struct arrays *x, const ag_mpi_options *options, const char *label)
{
    ag_mpi_plan *plan = NULL;
    struct shard s;
    struct arrays y;
    const ag_status status = ag_mpi_plan_create(&plan, &x->given, MPI_COMM_WORLD, options);
    if (status == AG_UNSUPPORTED && options->way == AG_MPI_RING_QUERIES) {
        return; /* a bias or mask with rows */
    }
    if (!CHECK(status == AG_OK, "%s: rank %d: %s", label, rank, ag_mpi_last_message()) ||
        !CHECK_OK(agc_arrays_clone_as(&y, x, x->given.dtype, options->plan))) {
        return;
    }
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (y.data[t] != NULL && agc_tensor_info[t].role == ROLE_OUTPUT) {
            memset(y.data[t], 0, (size_t)y.count[t] * agc_element_size(&y, t));
        }
    }
    CHECK_OK(shard_create(&s, plan, rank, x));
    CHECK(shard_run_all(&s) == AG_OK, "%s: rank %d: %s", label, rank, ag_mpi_last_message());
    shard_collect(&s, &y, rank == 0);
    join(&y);
    if (rank == 0) {
        add_to_hash(&y);
        check_rule(x, &y, label);
    }
    shard_destroy(&s);
    agc_arrays_destroy(&y);
    ag_mpi_plan_destroy(plan);
}

static void run_case(int n)
{
    ag_check_case c;
    struct arrays x;
    char command[200], label[256];
    ag_options plan = AG_OPTIONS_INIT;
    ag_mpi_options options = AG_MPI_OPTIONS_INIT;
    plan.threads = threads;
    options.plan = &plan;
    options.way = n % 4;
    options.layout = n / 4 % 2;
    options.progress = n % 3;
    options.timeout_s = 60;
    ag_check_random(&c, SEED, (uint64_t)n, n % 20 == 10 ? AG_CHECK_LARGE : AG_CHECK_SMALL);
    ag_check_command(&c, command, sizeof command);
    snprintf(label, sizeof label, "%d ranks, way %d, layout %d: %s", ranks, (int)options.way,
             (int)options.layout, command);
    if (CHECK_OK(agc_arrays_of_case(&x, &c, NULL))) {
        run_way(&x, &options, label);
        agc_arrays_destroy(&x);
    }
}

/* The failures of all ranks count; rank 0 prints. */
static int conclude(int count)
{
    int failed = atomic_load(&test_failed);
    MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Finalize();
    if (rank > 0) {
        return failed != 0;
    }
    printf("%d problems on %d ranks, hash of all results %016llx\n", count, ranks,
           (unsigned long long)results);
    return test_summary() != 0 || failed != 0;
}

int main(int argc, char **argv)
{
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    test_need(level == MPI_THREAD_MULTIPLE, "MPI_THREAD_MULTIPLE");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const int first = argc > 1 ? atoi(argv[1]) : 0, count = argc > 2 ? atoi(argv[2]) : test_count(PROBLEMS);
    threads = argc > 3 ? atoi(argv[3]) : 1;
    for (int n = first; n < first + count; n++) {
        run_case(n);
    }
    return conclude(count);
}
