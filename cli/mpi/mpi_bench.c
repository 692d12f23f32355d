/* `attngrad bench --mpi`: how long the maps take over the ranks, what they send, and how much of that is hidden. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "mpi_commands.h"

#include <attngrad_check.h>

#include "check/arrays.h"
#include "json.h"
#include "shards.h"
#include "usage.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const char help[] =
    "usage: mpirun -n P attngrad bench --mpi PROBLEM [OPTION]...\n"
    "\n"
    "Times the maps of a problem whose sequence is cut over P ranks, beside one process\n"
    "on the machine of rank 0 with as many threads as all ranks together. For that every\n"
    "rank allocates the whole problem, not only its rows: --alone off leaves it out.\n"
    "The best round counts. For each map:\n"
    "  ms        of the slowest rank\n"
    "  one       ms of one process\n"
    "  speed     one / ms\n"
    "  sent      MB that the rank sends which sends most\n"
    "  transfer  ms of the messages alone, with nothing computed\n"
    "  hidden    the share of the transfer in which no rank waited\n"
    "\n"
    "PROBLEM is one argument; 'attngrad check --help' lists its words.\n"
    "\n"
    "options:\n"
    "      --way W         what travels: auto, keys, queries or all-to-all\n"
    "      --layout L      zigzag or contiguous\n"
    "      --progress P    who moves messages on: auto, poll (the maps) or thread\n"
    "      --map M         forward, vjp, jvp, vjp_jvp or jvp_jvp; default: all\n"
    "      --rounds R      default 5\n"
    "      --alone W       on: also one process (the default); off: not, and a rank\n"
    "                      allocates its rows only; not with packed, bias and mask\n"
    "      --threads T     of each rank; default 1\n"
    "      --seed S        of the random numbers; default 1\n"
    "      --invariant     bits independent of the rest of the batch\n"
    "      --timeout S     seconds without progress after which it fails; default 300\n"
    "      --json          an array with an object for each map, also with the\n"
    "                      bytes of the largest workspace of a rank\n"
    "  -h, --help          this text\n";

struct request {
    struct mpi_request shared;
    int64_t rounds;
    const char *map, *alone;
    bool json;
};

struct result {
    const char *name;
    uint32_t map;
    ag_mpi_way way;
    double seconds, transfer, waiting; /* of the best round; of the slowest rank */
    double one_process;                /* 0: was not run */
    double bytes;                      /* of the rank that sends most */
    double workspace;                  /* bytes of the rank that asks for most */
};

enum { MAPS = 5 };

static int read_request(int argc, char **argv, struct request *r)
{
    struct option options[MPI_SHARED_OPTIONS + 4] = {{NULL, OPTION_FLAG, NULL, 0, 0}};
    struct positionals positionals = {&r->shared.text, 1, 0};
    mpi_shared_options(&r->shared, options);
    options[MPI_SHARED_OPTIONS] = (struct option){"rounds", OPTION_INTEGER, &r->rounds, 1, 1000000};
    options[MPI_SHARED_OPTIONS + 1] = (struct option){"json", OPTION_FLAG, &r->json, 0, 0};
    options[MPI_SHARED_OPTIONS + 2] = (struct option){"map", OPTION_TEXT, &r->map, 0, 0};
    options[MPI_SHARED_OPTIONS + 3] = (struct option){"alone", OPTION_TEXT, &r->alone, 0, 0};
    return options_parse(argc, argv, options, sizeof options / sizeof options[0], &positionals);
}

/* ---- Timing ---- */

/* A barrier that leaves the processors to rank 0, which may be computing. */
static void wait_for_all(void)
{
    const struct timespec moment = {0, 1000000};
    MPI_Request request;
    int done = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (MPI_Test(&request, &done, MPI_STATUS_IGNORE); !done; MPI_Test(&request, &done, MPI_STATUS_IGNORE)) {
        nanosleep(&moment, NULL);
    }
}

static double largest_of_ranks(double x)
{
    MPI_Allreduce(MPI_IN_PLACE, &x, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return x;
}

static int32_t cancel(void *ctx)
{
    (void)ctx;
    return 1;
}

/* One round of one map over the ranks. */
static ag_status time_ranks(struct result *r, struct shard *s)
{
    ag_mpi_traffic t = {.struct_size = sizeof t};
    wait_for_all();
    ag_status status = shard_call(s, r->map, NULL);
    if (status != AG_OK) {
        return status;
    }
    ag_mpi_traffic_get(s->plan, &t);
    const double seconds = largest_of_ranks(t.seconds), waiting = largest_of_ranks(t.seconds_waiting);
    r->bytes = largest_of_ranks((double)t.bytes_sent);
    if (r->seconds == 0 || seconds < r->seconds) {
        r->seconds = seconds;
        r->waiting = waiting;
    }
    return AG_OK;
}

/* A call that is cancelled at once exchanges its messages but computes nothing. */
static ag_status time_transfer(struct result *r, struct shard *s)
{
    const ag_exec exec = {.struct_size = sizeof exec, .poll = cancel};
    ag_mpi_traffic t = {.struct_size = sizeof t};
    wait_for_all();
    const ag_status status = shard_call(s, r->map, &exec);
    if (status != AG_CANCELLED && status != AG_OK) {
        return status;
    }
    ag_mpi_traffic_get(s->plan, &t);
    const double seconds = largest_of_ranks(t.seconds_waiting);
    r->transfer = r->transfer == 0 || seconds < r->transfer ? seconds : r->transfer;
    return AG_OK;
}

/* x NULL: there are no arrays of the whole problem, here and below. */
static ag_status time_one_process(struct result *r, struct arrays *x)
{
    ag_status status = AG_OK;
    if (x == NULL) {
        return AG_OK;
    }
    wait_for_all();
    if (mpi_rank == 0) {
        const double start = MPI_Wtime();
        status = agc_arrays_run(x, r->map);
        const double seconds = MPI_Wtime() - start;
        r->one_process = r->one_process == 0 || seconds < r->one_process ? seconds : r->one_process;
    }
    wait_for_all();
    return status;
}

static double hidden(const struct result *r)
{
    const double visible = r->waiting < r->transfer ? r->waiting : r->transfer;
    return r->transfer > 0 ? 1 - visible / r->transfer : 1;
}

/* ---- Printing ---- */

static void print_text(const struct result *results, int count)
{
    printf("%-8s %-10s %9s %9s %6s %9s %9s %7s\n", "map", "way", "ms", "one", "speed", "sent", "transfer",
           "hidden");
    for (int n = 0; n < count; n++) {
        const struct result *r = &results[n];
        char one[24] = "-", speed[24] = "-";
        if (r->one_process > 0) {
            snprintf(one, sizeof one, "%.2f", 1e3 * r->one_process);
            snprintf(speed, sizeof speed, "%.2f", r->one_process / r->seconds);
        }
        printf("%-8s %-10s %9.2f %9s %6s %9.2f %9.2f %6.0f%%\n", r->name, mpi_way_name(r->way),
               1e3 * r->seconds, one, speed, 1e-6 * r->bytes, 1e3 * r->transfer, 100 * hidden(r));
    }
}

static void print_json(const struct result *results, int count)
{
    struct json json = emit_to(stdout);
    emit_begin_array(&json, NULL);
    for (int n = 0; n < count; n++) {
        const struct result *r = &results[n];
        emit_begin_object(&json, NULL);
        emit_string(&json, "map", r->name);
        emit_string(&json, "way", mpi_way_name(r->way));
        emit_integer(&json, "ranks", mpi_ranks);
        emit_number(&json, "ms", 1e3 * r->seconds);
        if (r->one_process > 0) {
            emit_number(&json, "one_process_ms", 1e3 * r->one_process);
        }
        emit_number(&json, "bytes_sent", r->bytes);
        emit_number(&json, "workspace_bytes", r->workspace);
        emit_number(&json, "transfer_ms", 1e3 * r->transfer);
        emit_number(&json, "hidden", hidden(r));
        emit_end(&json);
    }
    emit_end(&json);
}

/* ---- The command ---- */

/* What a map reads, on the ranks and on one process: of all maps or of one. */
static ag_status prepare(const struct result *results, int count, struct shard *s, struct arrays *x)
{
    uint32_t maps = 0;
    for (int n = 0; n < count; n++) {
        maps |= results[n].map;
    }
    const bool second = (maps & AG_MAP_JVP_JVP) != 0, tangents = second || (maps & AG_MAP_VJP_JVP) != 0;
    ag_status status = shard_run(s, AG_MAP_FORWARD);
    status = status == AG_OK && tangents ? shard_run(s, AG_MAP_JVP) : status;
    status = status == AG_OK && second ? shard_run_along_s(s) : status;
    if (mpi_rank == 0 && x != NULL) {
        status = status == AG_OK ? agc_arrays_run(x, AG_MAP_FORWARD) : status;
        status = status == AG_OK && tangents ? agc_arrays_run(x, AG_MAP_JVP) : status;
        status = status == AG_OK && second ? agc_arrays_run_along_s(x) : status;
    }
    wait_for_all();
    return status;
}

static ag_status time_maps(struct result *results, int count, struct shard *s, struct arrays *x,
                           int64_t rounds)
{
    ag_status status = prepare(results, count, s, x);
    for (int64_t round = 0; round < rounds && status == AG_OK; round++) {
        for (int n = 0; n < count && status == AG_OK; n++) {
            status = time_ranks(&results[n], s);
            status = status == AG_OK ? time_transfer(&results[n], s) : status;
            status = status == AG_OK ? shard_run(s, results[n].map) : status; /* what cancelling has spoilt */
            status = status == AG_OK ? time_one_process(&results[n], x) : status;
        }
    }
    return status;
}

/* The arrays of the whole problem, and the shard of this rank. */
static ag_status bench_beside_one(const struct request *r, const ag_problem *problem,
                                  const ag_options *options, ag_mpi_plan *plan, struct result *results,
                                  int count)
{
    ag_options all = *options;
    struct arrays x;
    struct shard s;
    all.threads *= mpi_ranks;
    mpi_reason = ag_check_last_message;
    ag_status status = agc_arrays_create(&x, problem, &all, r->shared.seed);
    if (status != AG_OK) {
        return status;
    }
    status = agc_arrays_add_second_direction(&x);
    if (status == AG_OK) {
        mpi_reason = ag_mpi_last_message;
        status = shard_create(&s, plan, mpi_rank, &x);
        status = status == AG_OK ? time_maps(results, count, &s, &x, r->rounds) : status;
        shard_destroy(&s);
    }
    agc_arrays_destroy(&x);
    return status;
}

/* Arrays of this rank's rows only. */
static ag_status bench_rows(const struct request *r, const ag_problem *problem, const ag_options *options,
                            ag_mpi_plan *plan, struct result *results, int count)
{
    ag_mpi_shard_info info = {.struct_size = sizeof info};
    ag_problem rows = *problem;
    struct arrays x;
    struct shard s;
    ag_status status = ag_mpi_shard(plan, mpi_rank, &info);
    rows.q_len = info.q_rows;
    rows.kv_len = info.kv_rows;
    mpi_reason = status == AG_OK ? ag_check_last_message : ag_mpi_last_message;
    status = status == AG_OK ? agc_arrays_create(&x, &rows, options, r->shared.seed) : status;
    if (status != AG_OK) {
        return status;
    }
    status = agc_arrays_add_second_direction(&x);
    if (status == AG_OK) {
        mpi_reason = ag_mpi_last_message;
        status = shard_create_of_rows(&s, plan, mpi_rank, &x);
        status = status == AG_OK ? time_maps(results, count, &s, NULL, r->rounds) : status;
        shard_destroy(&s);
    }
    agc_arrays_destroy(&x);
    return status;
}

static ag_status run_bench(const struct request *r, const ag_problem *problem, const ag_mpi_options *options,
                           struct result *results, int count)
{
    ag_mpi_plan *plan;
    const bool alone = r->alone == NULL || strcmp(r->alone, "on") == 0;
    ag_status status = ag_mpi_plan_create(&plan, problem, MPI_COMM_WORLD, options);
    if (status != AG_OK) {
        return status;
    }
    status = (alone ? bench_beside_one : bench_rows)(r, problem, options->plan, plan, results, count);
    for (int n = 0; n < count; n++) {
        size_t bytes = 0;
        ag_mpi_plan_way(plan, results[n].map, &results[n].way);
        ag_mpi_plan_workspace(plan, results[n].map, &bytes);
        results[n].workspace = largest_of_ranks((double)bytes);
    }
    ag_mpi_plan_destroy(plan);
    return status;
}

/* Leaves the map of that name alone in the list. Returns their number: 0 if there is none. */
static int select_map(struct result results[MAPS], const char *name)
{
    for (int n = 0; n < MAPS && name != NULL; n++) {
        if (strcmp(results[n].name, name) == 0) {
            results[0] = results[n];
            return 1;
        }
    }
    return name == NULL ? MAPS : 0;
}

static int check_alone(const struct request *r, const ag_problem *problem)
{
    const bool off = r->alone != NULL && strcmp(r->alone, "off") == 0;
    if (r->alone != NULL && !off && strcmp(r->alone, "on") != 0) {
        return mpi_usage_error("bench", "--alone: on or off");
    }
    if (off && (problem->flags & (AG_PACKED | AG_BIAS | AG_MASK)) != 0) {
        return mpi_usage_error("bench", "--alone off: not with packed sequences, a bias or a mask");
    }
    return 0;
}

int mpi_bench_main(int argc, char **argv)
{
    struct request r = {.shared = {.seed = 1, .threads = 1}, .rounds = 5};
    struct result results[MAPS] = {{.name = "forward", .map = AG_MAP_FORWARD},
                                   {.name = "vjp", .map = AG_MAP_VJP},
                                   {.name = "jvp", .map = AG_MAP_JVP},
                                   {.name = "vjp_jvp", .map = AG_MAP_VJP_JVP},
                                   {.name = "jvp_jvp", .map = AG_MAP_JVP_JVP}};
    ag_problem problem = AG_PROBLEM_INIT;
    ag_mpi_options options;
    ag_options plan;
    int wrong = read_request(argc, argv, &r);
    if (wrong == 0 && r.shared.help) {
        fputs(mpi_rank == 0 ? help : "", stdout);
        return EXIT_PASS;
    }
    if (wrong == 0 && r.shared.text == NULL) {
        return mpi_usage_error("bench", "no problem given: \"h8 q4096 d64 f32 causal\", for example");
    }
    wrong = wrong == 0 ? mpi_plan_options("bench", &r.shared, &options, &plan) : wrong;
    if (wrong != 0) {
        return wrong;
    }
    if (ag_problem_parse(r.shared.text, &problem) != AG_OK) {
        return mpi_usage_error("bench", ag_last_message());
    }
    wrong = check_alone(&r, &problem);
    if (wrong != 0) {
        return wrong;
    }
    const int count = select_map(results, r.map);
    if (count == 0) {
        return mpi_usage_error("bench", "--map: forward, vjp, jvp, vjp_jvp or jvp_jvp");
    }
    const ag_status status = run_bench(&r, &problem, &options, results, count);
    if (status != AG_OK) {
        return mpi_usage_error("bench", mpi_reason());
    }
    if (mpi_rank == 0) {
        (r.json ? print_json : print_text)(results, count);
    }
    return EXIT_PASS;
}
