/* `attngrad check --mpi`: the maps of a problem over the ranks, against the reference on one process. */
#include "mpi_commands.h"

#include "check/error_rule.h"
#include "check/random_case.h"
#include "check_print.h"
#include "shards.h"
#include "usage.h"

#include <attngrad_check.h>

#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: mpirun -n P attngrad check --mpi PROBLEM [OPTION]...\n"
    "       mpirun -n P attngrad check --mpi --random N [OPTION]...\n"
    "\n"
    "Fills a problem with random numbers, runs the five maps on it with the sequence\n"
    "cut over P ranks, and compares the results with the reference in f64 by the\n"
    "rule of 'attngrad check' (rounding).\n"
    "\n"
    "PROBLEM is one argument; 'attngrad check --help' lists its words.\n"
    "\n"
    "options:\n"
    "      --way W         what travels: auto, keys, queries or all-to-all\n"
    "      --layout L      zigzag or contiguous\n"
    "      --progress P    who moves messages on: auto, poll (the maps) or thread\n"
    "      --random N      N random problems over all features\n"
    "      --seed S        of the random numbers; default 1\n"
    "      --threads T     of each rank; default 1\n"
    "      --q-offset N    position of query 0; --k-offset N of key 0\n"
    "      --batch-offset N  number of sequence 0, for dropout\n"
    "      --lengths       random lengths of the sequences\n"
    "      --offsets       random positions of query 0 and key 0, per sequence\n"
    "      --low-halves    low halves of the outputs in f16 and bf16\n"
    "      --invariant     bits independent of the rest of the batch\n"
    "      --timeout S     seconds without progress after which it fails; default 300\n"
    "  -h, --help          this text\n"
    "\n"
    "exit codes: 0 all checks passed, 1 a check failed, 2 wrong arguments\n";

struct request {
    struct mpi_request shared;
    int64_t random;
    ag_check_case given; /* offsets */
    bool lengths, offsets, low_halves;
};

enum { OWN_OPTIONS = 7 };

static int read_request(int argc, char **argv, struct request *r)
{
    struct option options[MPI_SHARED_OPTIONS + OWN_OPTIONS];
    const struct option own[OWN_OPTIONS] = {
        {"random", OPTION_INTEGER, &r->random, 1, 1000000000},
        {"lengths", OPTION_FLAG, &r->lengths, 0, 0},
        {"offsets", OPTION_FLAG, &r->offsets, 0, 0},
        {"low-halves", OPTION_FLAG, &r->low_halves, 0, 0},
        {"q-offset", OPTION_INTEGER, &r->given.q_offset, INT64_MIN, INT64_MAX},
        {"k-offset", OPTION_INTEGER, &r->given.k_offset, INT64_MIN, INT64_MAX},
        {"batch-offset", OPTION_INTEGER, &r->given.batch_offset, 0, INT64_MAX},
    };
    struct positionals positionals = {&r->shared.text, 1, 0};
    mpi_shared_options(&r->shared, options);
    memcpy(options + MPI_SHARED_OPTIONS, own, sizeof own);
    return options_parse(argc, argv, options, sizeof options / sizeof options[0], &positionals);
}

/* Refuses options that do not go with the problem, or together. */
static int check_options(const struct request *r, const ag_problem *p)
{
    if (r->lengths && (p->flags & AG_PACKED)) {
        return mpi_usage_error("check", "--lengths: packed sequences have random lengths anyway");
    }
    if (r->low_halves && ag_dtype_size(p->out_dtype != 0 ? p->out_dtype : p->dtype) != 2) {
        return mpi_usage_error("check", "--low-halves: only outputs in f16 and bf16 have them");
    }
    if (r->offsets && p->align == AG_ALIGN_BOTTOM_RIGHT) {
        return mpi_usage_error("check", "--offsets: not with align=bottom-right");
    }
    if (r->offsets && (r->given.q_offset != 0 || r->given.k_offset != 0)) {
        return mpi_usage_error("check", "--offsets: not with --q-offset or --k-offset");
    }
    return 0;
}

/* --random draws these by itself. */
static bool describes_a_problem(const struct request *r)
{
    const ag_check_case *c = &r->given;
    return r->lengths || r->offsets || r->low_halves || c->q_offset != 0 || c->k_offset != 0 ||
           c->batch_offset != 0;
}

/* ---- One problem ---- */

/* What the ranks have written to their rows, together on all: each left zero bytes elsewhere. */
static void join(struct arrays *y)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (y->data[t] != NULL && agc_tensor_info[t].role == ROLE_OUTPUT) {
            const size_t bytes = (size_t)y->count[t] * agc_element_size(y, t);
            for (size_t n = 0; n < bytes; n += 1 << 30) {
                const size_t left = bytes - n;
                MPI_Allreduce(MPI_IN_PLACE, (char *)y->data[t] + n, (int)(left < 1 << 30 ? left : 1 << 30),
                              MPI_BYTE, MPI_BOR, MPI_COMM_WORLD);
            }
        }
    }
}

static void clear_outputs(struct arrays *y)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (y->data[t] != NULL && agc_tensor_info[t].role == ROLE_OUTPUT) {
            memset(y->data[t], 0, (size_t)y->count[t] * agc_element_size(y, t));
        }
    }
}

static ag_status run_shards(const struct arrays *x, struct arrays *y, ag_mpi_plan *plan)
{
    struct shard s;
    ag_status status = shard_create(&s, plan, mpi_rank, x);
    status = status == AG_OK ? shard_run_all(&s) : status;
    if (status == AG_OK) {
        shard_collect(&s, y, mpi_rank == 0);
        join(y);
    }
    shard_destroy(&s);
    return status;
}

/* Writes the ways of the maps into the report: "4 ranks: keys keys ...". */
static void describe(ag_check_report *report, const ag_mpi_plan *plan, const ag_plan *inner)
{
    int length =
        snprintf(report->plan, sizeof report->plan, "%d rank%s:", mpi_ranks, mpi_ranks == 1 ? "" : "s");
    for (uint32_t map = AG_MAP_FORWARD; map <= AG_MAP_JVP_JVP; map <<= 1) {
        ag_mpi_way way = AG_MPI_AUTO;
        ag_mpi_plan_way(plan, map, &way);
        length +=
            snprintf(report->plan + length, sizeof report->plan - (size_t)length, " %s", mpi_way_name(way));
    }
    snprintf(report->plan + length, sizeof report->plan - (size_t)length, "; %s", ag_plan_describe(inner));
}

/* On all ranks; the report is filled in on rank 0. */
static ag_status check_arrays(const struct arrays *x, const ag_mpi_options *options, ag_check_report *report)
{
    ag_mpi_plan *plan;
    struct arrays y;
    mpi_reason = ag_mpi_last_message;
    ag_status status = ag_mpi_plan_create(&plan, &x->given, MPI_COMM_WORLD, options);
    if (status != AG_OK) {
        return status;
    }
    mpi_reason = ag_check_last_message;
    status = agc_arrays_clone_as(&y, x, x->given.dtype, options->plan);
    if (status == AG_OK) {
        clear_outputs(&y);
        mpi_reason = ag_mpi_last_message;
        status = run_shards(x, &y, plan);
        describe(report, plan, x->plan);
        if (status == AG_OK && mpi_rank == 0) {
            mpi_reason = ag_check_last_message;
            status = agc_error_rule_results(&y, options->plan->threads, report);
        }
        agc_arrays_destroy(&y);
    }
    ag_mpi_plan_destroy(plan);
    return status;
}

static ag_status check_case(const ag_check_case *c, const ag_mpi_options *options, ag_check_report *report)
{
    struct arrays x;
    report->count = report->omitted = 0;
    report->plan[0] = '\0';
    mpi_reason = ag_check_last_message;
    ag_status status = agc_arrays_of_case(&x, c, options->plan);
    if (status == AG_OK) {
        status = check_arrays(&x, options, report);
        agc_arrays_destroy(&x);
    }
    return status;
}

/* ---- The command ---- */

static int check_text(const struct request *r, const ag_mpi_options *options)
{
    static ag_check_report report;
    ag_check_case c = r->given;
    c.problem = (ag_problem)AG_PROBLEM_INIT;
    c.seed = r->shared.seed;
    c.lengths = r->lengths;
    c.offsets = r->offsets;
    c.low_halves = r->low_halves;
    if (ag_problem_parse(r->shared.text, &c.problem) != AG_OK) {
        return mpi_usage_error("check", ag_last_message());
    }
    const int wrong = check_options(r, &c.problem);
    if (wrong != 0) {
        return wrong;
    }
    const ag_status status = check_case(&c, options, &report);
    if (status != AG_OK) {
        return mpi_usage_error("check", mpi_reason());
    }
    if (mpi_rank == 0) {
        print_problem(&c, &report);
    }
    return ag_check_failures(&report) > 0 ? EXIT_FAIL : EXIT_PASS;
}

static int check_random(const struct request *r, const ag_mpi_options *options)
{
    static ag_check_report report;
    struct summary summary = {.count = 0};
    for (int64_t n = 0; n < r->random; n++) {
        ag_check_case c;
        ag_check_random(&c, r->shared.seed, (uint64_t)n, AG_CHECK_SMALL);
        const ag_status status = check_case(&c, options, &report);
        const bool refused = status == AG_UNSUPPORTED && options->way == AG_MPI_RING_QUERIES;
        agc_summary_add(&summary, &report);
        summary.problems++;
        if ((status != AG_OK && !refused) || ag_check_failures(&report) > 0) {
            summary.failed_problems++;
            if (mpi_rank == 0) {
                print_failure(&c, &report, status == AG_OK ? NULL : mpi_reason());
            }
        }
    }
    if (mpi_rank == 0) {
        print_summary(&summary);
    }
    return summary.failed_problems > 0 ? EXIT_FAIL : EXIT_PASS;
}

int mpi_check_main(int argc, char **argv)
{
    struct request r = {.shared = {.seed = 1, .threads = 1}};
    ag_mpi_options options;
    ag_options plan;
    int status = read_request(argc, argv, &r);
    if (status == 0 && r.shared.help) {
        fputs(mpi_rank == 0 ? help : "", stdout);
        return EXIT_PASS;
    }
    if (status == 0 && (r.shared.text == NULL) == (r.random == 0)) {
        return mpi_usage_error("check", "a problem or --random N: one of them");
    }
    if (status == 0 && r.random > 0 && describes_a_problem(&r)) {
        return mpi_usage_error("check", "--random draws offsets, lengths and low halves itself");
    }
    status = status == 0 ? mpi_plan_options("check", &r.shared, &options, &plan) : status;
    if (status != 0) {
        return status;
    }
    return r.shared.text != NULL ? check_text(&r, &options) : check_random(&r, &options);
}
