/* `attngrad check`: reads the arguments, runs all checks on one problem or on many random ones. */
#include "check.h"

#include "backend.h"
#include "bar.h"
#include "check_print.h"
#include "mpi_exec.h"
#include "options.h"
#include "usage.h"

#include <stdio.h>
#include <string.h>

static const char help[] = "usage: attngrad check PROBLEM [OPTION]...\n"
                           "       attngrad check --random N [OPTION]...\n"
                           "\n"
                           "Fills a problem with random numbers and tests all derivatives on it:\n"
                           "  differences  every gradient and tangent against finite differences, in f64\n"
                           "  identities   adjoint, symmetry of the Hessian, sums, shifts, permutations,\n"
                           "               split and merge, symmetry of jvp_jvp and its identity with\n"
                           "               vjp_jvp, in f64\n"
                           "  rounding     the error in the problem's format against the reference in f64\n"
                           "\n"
                           "PROBLEM is one argument of words in any order, for example\n"
                           "  \"b2 h8 kv2 q128 k96 d64 dv32 f32 causal softcap=30 sink\"\n"
                           "  b h kv q k d dv     batch, heads, kv heads, queries, keys, channels\n"
                           "  f64 f32 f16 bf16    number format; out= grad= aux=f32: wider ones\n"
                           "  causal  align=bottom-right  window=L,R  scale=X  softcap=X  dropout=P  sink\n"
                           "  bias=bhqk  mask=b11k  table=R,NB,shared  alibi  alibi=slopes\n"
                           "  packed=QT,KT  head_offset=N\n"
                           "\n"
                           "options:\n"
                           "      --random N          N random problems over all features\n"
                           "      --seed S            of the random numbers; default 1\n"
                           "      --threads T         default: ATTNGRAD_THREADS, else one per processor\n"
                           "      --backend B         cpu, reference or cuda; default: ATTNGRAD_BACKEND,\n"
                           "                          else cpu\n"
                           "      --device N          the number of the GPU, with cuda; default 0\n"
                           "      --q-offset N        position of query 0\n"
                           "      --k-offset N        position of key 0\n"
                           "      --batch-offset N    number of sequence 0, for dropout\n"
                           "      --lengths           random lengths of the sequences\n"
                           "      --offsets           random positions of query 0 and key 0, per sequence\n"
                           "      --low-halves        with the low halves of 16-bit outputs\n"
                           "      --invariant         bits independent of the rest of the batch\n"
                           "      --json              the results as JSON\n"
                           "      --mpi               on ranks of mpirun; 'attngrad check --mpi --help'\n"
                           "  -h, --help              this text\n"
                           "\n"
                           "exit codes: 0 all checks passed, 1 a check failed, 2 wrong arguments\n";

/* What the command line requests. */
struct request {
    const char *text; /* the problem; NULL: random problems */
    int64_t random, threads;
    struct backend_choice backend;
    bool help, json, lengths, offsets, low_halves, invariant;
    ag_check_case given; /* with --random only its seed is used */
};

static int read_request(int argc, char **argv, struct request *r)
{
    const struct option options[] = {
        {"backend", OPTION_TEXT, &r->backend.name, 0, 0},
        {"device", OPTION_INTEGER, &r->backend.device, 0, MAX_DEVICE},
        {"help", OPTION_FLAG, &r->help, 0, 0},
        {"invariant", OPTION_FLAG, &r->invariant, 0, 0},
        {"json", OPTION_FLAG, &r->json, 0, 0},
        {"lengths", OPTION_FLAG, &r->lengths, 0, 0},
        {"offsets", OPTION_FLAG, &r->offsets, 0, 0},
        {"low-halves", OPTION_FLAG, &r->low_halves, 0, 0},
        {"random", OPTION_INTEGER, &r->random, 1, 1000000000},
        {"seed", OPTION_SEED, &r->given.seed, 0, 0},
        {"threads", OPTION_INTEGER, &r->threads, 1, 1024},
        {"q-offset", OPTION_INTEGER, &r->given.q_offset, INT64_MIN, INT64_MAX},
        {"k-offset", OPTION_INTEGER, &r->given.k_offset, INT64_MIN, INT64_MAX},
        {"batch-offset", OPTION_INTEGER, &r->given.batch_offset, 0, INT64_MAX},
    };
    struct positionals positionals = {&r->text, 1, 0};
    int status = options_parse(argc, argv, options, sizeof options / sizeof options[0], &positionals);
    r->given.lengths = r->lengths;
    r->given.offsets = r->offsets;
    r->given.low_halves = r->low_halves;
    return status;
}

/* Refuses options that do not go together: options_parse reads each by itself. */
static int check_request(const struct request *r)
{
    const ag_check_case *c = &r->given;
    if (r->text == NULL && r->random == 0) {
        return usage_error("check", "no problem given: \"q8 d4 f64 causal\", for example, or --random N");
    }
    if (r->text != NULL && r->random > 0) {
        return usage_error("check", "'%s' and --random: one of them", r->text);
    }
    const bool offsets = c->q_offset != 0 || c->k_offset != 0 || c->batch_offset != 0;
    if (r->random > 0 && (c->lengths || c->low_halves || c->offsets || offsets)) {
        return usage_error("check", "--random draws offsets, lengths and low halves itself");
    }
    return 0;
}

/* ---- One problem ------------------------------------------------------------------------------- */

static void show_progress(void *ctx, const char *part, double share)
{
    (void)ctx;
    ticker_share(share, part);
}

static int check_one(struct request *r, const ag_check_options *options)
{
    static ag_check_report report;
    ag_check_options shown = *options;
    shown.progress = show_progress;
    ticker_begin(100);
    ag_status status = ag_check_problem(&r->given, &shown, &report);
    ticker_end();
    if (status != AG_OK) {
        return usage_error("check", "%s%s", ag_check_last_message(),
                           status == AG_NO_MEMORY ? "; try a smaller problem" : "");
    }
    (r->json ? print_problem_json : print_problem)(&r->given, &report);
    return ag_check_failures(&report) > 0 ? EXIT_FAIL : EXIT_PASS;
}

static int check_text(struct request *r, const ag_check_options *options)
{
    ag_problem problem = AG_PROBLEM_INIT;
    if (ag_problem_parse(r->text, &problem) != AG_OK) {
        return usage_error("check", "%s", ag_last_message());
    }
    if (r->lengths && (problem.flags & AG_PACKED)) {
        return usage_error("check", "--lengths: packed sequences have random lengths anyway");
    }
    if (r->low_halves && ag_dtype_size(problem.out_dtype != 0 ? problem.out_dtype : problem.dtype) != 2) {
        return usage_error("check", "--low-halves: only outputs in f16 and bf16 have them");
    }
    if (r->offsets && problem.align == AG_ALIGN_BOTTOM_RIGHT) {
        return usage_error("check", "--offsets: not with align=bottom-right");
    }
    if (r->offsets && (r->given.q_offset != 0 || r->given.k_offset != 0)) {
        return usage_error("check", "--offsets: not with --q-offset or --k-offset");
    }
    r->given.problem = problem;
    return check_one(r, options);
}

/* ---- Many problems ----------------------------------------------------------------------------- */

static void check_random_case(const struct request *r, const ag_check_options *options, int64_t n,
                              struct summary *summary, struct json *json, struct counter *counter)
{
    static ag_check_report report;
    ag_check_case c;
    ag_check_random(&c, r->given.seed, (uint64_t)n, AG_CHECK_SMALL);
    ag_status status = ag_check_problem(&c, options, &report);
    const char *message = status == AG_OK ? NULL : ag_check_last_message();
    agc_summary_add(summary, &report);
    summary->problems++;
    if (status == AG_OK && ag_check_failures(&report) == 0) {
        return;
    }
    summary->failed_problems++;
    counter_clear(counter);
    if (json != NULL) {
        print_failure_json(json, &c, &report, message);
    } else {
        print_failure(&c, &report, message);
    }
}

static int check_random(const struct request *r, const ag_check_options *options)
{
    struct summary summary = {.count = 0};
    struct json json = emit_to(stdout);
    struct counter counter;
    counter_begin(&counter, r->random);
    if (r->json) {
        emit_begin_object(&json, NULL);
        emit_begin_array(&json, "failures");
    }
    for (int64_t n = 0; n < r->random; n++) {
        check_random_case(r, options, n, &summary, r->json ? &json : NULL, &counter);
        counter_step(&counter, n + 1);
    }
    counter_clear(&counter);
    if (r->json) {
        emit_end(&json);
        print_summary_json(&json, &summary);
        emit_end(&json);
    } else {
        print_summary(&summary);
    }
    return summary.failed_problems > 0 ? EXIT_FAIL : EXIT_PASS;
}

int check_main(int argc, char **argv)
{
    struct request r;
    ag_options plan = AG_OPTIONS_INIT;
    ag_check_options options = {.plan = &plan};
    memset(&r, 0, sizeof r);
    r.given.seed = 1;
    r.backend.device = -1;
    if (mpi_is_asked_for(argc, argv)) {
        return mpi_exec(argc, argv);
    }
    int status = read_request(argc, argv, &r);
    if (status == 0 && r.help) {
        fputs(help, stdout);
        return EXIT_PASS;
    }
    if (status == 0) {
        status = check_request(&r);
    }
    if (status == 0) {
        status = choose_backend("check", &r.backend, &plan);
    }
    if (status != 0) {
        return status;
    }
    plan.threads = (int32_t)r.threads;
    plan.flags = r.invariant ? AG_INVARIANT : 0;
    return r.text != NULL ? check_text(&r, &options) : check_random(&r, &options);
}
