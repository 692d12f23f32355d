/* Failures on MPI: mpi_failures argument|slow|kill|silent|absent
 * argument: one rank after another has a wrong argument; all ranks report it alike, and the plan works afterwards.
 * slow:     two ranks wait for longer than the timeout while the third one computes: no failure.
 * kill:     rank 1 is killed in the middle of a map. silent: it never comes to a map; absent: nor to
 *           the plan. The others end with a status. */
#define _POSIX_C_SOURCE 200809L /* kill, nanosleep, sleep */
#include "attngrad_mpi.h"
#include "shards.h"
#include "slow_rank.h"
#include "test.h"

#include <signal.h>
#include <unistd.h>

static const double timeout_s = 2;
static int rank, ranks;

static void make_arrays(struct arrays *x, const char *text)
{
    ag_problem p = AG_PROBLEM_INIT;
    test_need(ag_problem_parse(text, &p) == AG_OK && agc_arrays_create(x, &p, NULL, 3) == AG_OK, text);
}

static void make_plan(ag_mpi_plan **plan, struct shard *s, const struct arrays *x, ag_mpi_way way,
                      double timeout)
{
    ag_mpi_options options = AG_MPI_OPTIONS_INIT;
    options.way = way;
    options.timeout_s = timeout;
    test_need(ag_mpi_plan_create(plan, &x->given, MPI_COMM_WORLD, &options) == AG_OK, "a plan");
    CHECK_OK(shard_create(s, *plan, rank, x));
}

static void wrong_arguments(void)
{
    struct arrays x;
    struct shard s;
    ag_mpi_plan *plan;
    make_arrays(&x, "b2 h2 q50 d8 f32 causal");
    make_plan(&plan, &s, &x, AG_MPI_RING_KEYS, timeout_s);
    for (int bad = 0; bad < ranks; bad++) {
        char name[16];
        const ag_tensor kept = s.args.k;
        snprintf(name, sizeof name, "rank %d", bad);
        s.args.k.data = rank == bad ? NULL : kept.data;
        CHECK_INT(shard_run(&s, AG_MAP_FORWARD), AG_INVALID_ARGUMENT);
        CHECK(strcmp(ag_mpi_last_field(), "k") == 0 && strstr(ag_mpi_last_message(), name) != NULL, "%s: %s",
              ag_mpi_last_field(), ag_mpi_last_message());
        s.args.k = kept;
        CHECK(shard_run_all(&s) == AG_OK, "%s", ag_mpi_last_message());
    }
    shard_destroy(&s);
    ag_mpi_plan_destroy(plan);
    agc_arrays_destroy(&x);
}

/* The last rank has the only head. */
static void slow_but_alive(void)
{
    struct slow_rank slow = {0};
    const bool is_slow = rank == ranks - 1;
    const ag_exec exec = slow_exec(&slow);
    struct arrays x;
    struct shard s;
    ag_mpi_plan *plan;
    make_arrays(&x, "h1 q8000 d64 f32");
    make_plan(&plan, &s, &x, AG_MPI_ALL_TO_ALL, SLOW_TIMEOUT_S);
    CHECK(ag_mpi_forward(plan, &s.args, is_slow ? &exec : NULL, s.workspace, s.bytes) == AG_OK, "%s",
          ag_mpi_last_message());
    CHECK_INT(slow.naps, is_slow ? SLOW_NAPS : 0);
    shard_destroy(&s);
    ag_mpi_plan_destroy(plan);
    agc_arrays_destroy(&x);
}

static int32_t die(void *ctx)
{
    (void)ctx;
    kill(getpid(), SIGKILL);
    return 0;
}

static int report(ag_status status)
{
    printf("rank %d: %s: %s\n", rank, ag_status_string(status), ag_mpi_last_message());
    fflush(stdout);
    return status == AG_TIMEOUT || status == AG_DEVICE ? 3 : 1;
}

static int without_plan(const struct arrays *x)
{
    ag_mpi_options options = AG_MPI_OPTIONS_INIT;
    ag_mpi_plan *plan;
    options.timeout_s = timeout_s;
    if (rank == 1) {
        sleep(60);
    }
    return report(ag_mpi_plan_create(&plan, &x->given, MPI_COMM_WORLD, &options));
}

/* Does not return if rank 1 is killed and MPI ends the job. */
static int without_rank_1(int killed, int absent)
{
    const ag_exec exec = {.struct_size = sizeof exec, .poll = rank == 1 && killed ? die : NULL};
    struct arrays x;
    struct shard s;
    ag_mpi_plan *plan;
    make_arrays(&x, "h2 q3000 d64 f32");
    if (absent) {
        return without_plan(&x);
    }
    make_plan(&plan, &s, &x, AG_MPI_RING_KEYS, timeout_s);
    if (rank == 1 && !killed) {
        sleep(60);
    }
    return report(ag_mpi_forward(plan, &s.args, &exec, s.workspace, s.bytes));
}

int main(int argc, char **argv)
{
    int level;
    const char *mode = argc > 1 ? argv[1] : "";
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (strcmp(mode, "argument") == 0) {
        wrong_arguments();
    } else if (strcmp(mode, "slow") == 0) {
        slow_but_alive();
    } else {
        MPI_Abort(MPI_COMM_WORLD, without_rank_1(strcmp(mode, "kill") == 0, strcmp(mode, "absent") == 0));
    }
    MPI_Finalize();
    return test_summary();
}
