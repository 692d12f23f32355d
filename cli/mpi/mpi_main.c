/* attngrad-mpi: the commands check and bench on the ranks of MPI_COMM_WORLD. The command attngrad, which has no MPI,
 * becomes this program if it is given --mpi. */
#include "mpi_commands.h"
#include "usage.h"

#include <stdio.h>
#include <string.h>

int mpi_rank, mpi_ranks;
const char *(*mpi_reason)(void) = ag_mpi_last_message;

static const char *const way_names[] = {"auto", "keys", "queries", "all-to-all"};

const char *mpi_way_name(ag_mpi_way way)
{
    return way_names[way];
}

int mpi_usage_error(const char *command, const char *text)
{
    return mpi_rank == 0 ? usage_error(command, "%s", text) : EXIT_USAGE;
}

void mpi_shared_options(struct mpi_request *r, struct option options[MPI_SHARED_OPTIONS])
{
    const struct option shared[MPI_SHARED_OPTIONS] = {
        {"help", OPTION_FLAG, &r->help, 0, 0},           {"mpi", OPTION_FLAG, &r->mpi, 0, 0},
        {"invariant", OPTION_FLAG, &r->invariant, 0, 0}, {"way", OPTION_TEXT, &r->way, 0, 0},
        {"layout", OPTION_TEXT, &r->layout, 0, 0},       {"threads", OPTION_INTEGER, &r->threads, 1, 1024},
        {"seed", OPTION_SEED, &r->seed, 0, 0},           {"timeout", OPTION_NUMBER, &r->timeout_s, 0, 0},
        {"progress", OPTION_TEXT, &r->progress, 0, 0},
    };
    memcpy(options, shared, sizeof shared);
}

/* The number of a name in a list; -1 if there is none. */
static int find(const char *const *names, int count, const char *name)
{
    for (int n = 0; n < count; n++) {
        if (strcmp(names[n], name) == 0) {
            return n;
        }
    }
    return -1;
}

int mpi_plan_options(const char *command, const struct mpi_request *r, ag_mpi_options *options,
                     ag_options *plan)
{
    static const char *const layouts[] = {"zigzag", "contiguous"};
    static const char *const progresses[] = {"auto", "poll", "thread"};
    const int way = r->way == NULL ? AG_MPI_AUTO : find(way_names, 4, r->way);
    const int layout = r->layout == NULL ? AG_MPI_ZIGZAG : find(layouts, 2, r->layout);
    const int progress = r->progress == NULL ? AG_MPI_PROGRESS_AUTO : find(progresses, 3, r->progress);
    if (way < 0) {
        return mpi_usage_error(command, "--way: auto, keys, queries or all-to-all");
    }
    if (layout < 0) {
        return mpi_usage_error(command, "--layout: zigzag or contiguous");
    }
    if (progress < 0) {
        return mpi_usage_error(command, "--progress: auto, poll or thread");
    }
    if (r->timeout_s < 0) {
        return mpi_usage_error(command, "--timeout: must not be negative");
    }
    *plan = (ag_options)AG_OPTIONS_INIT;
    plan->threads = (int32_t)r->threads;
    plan->flags = r->invariant ? AG_INVARIANT : 0;
    *options = (ag_mpi_options)AG_MPI_OPTIONS_INIT;
    options->way = way;
    options->layout = layout;
    options->progress = progress;
    options->timeout_s = r->timeout_s;
    options->plan = plan;
    return 0;
}

static int dispatch(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "check") == 0) {
        return mpi_check_main(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "bench") == 0) {
        return mpi_bench_main(argc - 1, argv + 1);
    }
    return mpi_usage_error(NULL, "attngrad-mpi is run by 'attngrad check --mpi' and 'attngrad bench --mpi'");
}

int main(int argc, char **argv)
{
    int level, status;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) {
        return run_error(NULL, "MPI cannot be initialized");
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi_ranks);
    status = dispatch(argc, argv);
    fflush(stdout);
    MPI_Allreduce(MPI_IN_PLACE, &status, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Finalize();
    return status;
}
