/* `attngrad bench`: how long the maps of one problem take, what share of the ceiling that is, and how that scales with
 * the number of threads. */
#define _POSIX_C_SOURCE 200809L /* isatty */
#include "bench_time.h"
#include "backend.h"
#include "check/stage.h"
#include "commands.h"
#include "json.h"
#include "mpi_exec.h"
#include "options.h"
#include "usage.h"

#include <attngrad_check.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char help[] = "usage: attngrad bench PROBLEM [OPTION]...\n"
                           "\n"
                           "Times the maps of a problem on random numbers. Each round takes, before each\n"
                           "map, a probe of the ceiling: the multiply-adds per second that as many threads\n"
                           "do on numbers in registers, with the same instruction set, after 0.2 seconds\n"
                           "of the same load; for bf16 on AMX those of its tiles. f16, and bf16 without\n"
                           "AMX, are computed in f32 and compared with f32's probe. The best round counts,\n"
                           "for the maps and for the probe. A second probe loads its factors from the L1\n"
                           "cache: on some processors loads among multiply-adds lower the clock.\n"
                           "\n"
                           "Flops: forward 4, vjp 10, jvp 12 (10 with --given-o), vjp_jvp 24, jvp_jvp 20\n"
                           "for each pair of a query and a key that it sees by causal, window and lengths,\n"
                           "and each channel (d + dv) / 2.\n"
                           "\n"
                           "PROBLEM is one argument; 'attngrad check --help' lists its words. For example\n"
                           "  \"b1 h12 q2048 k2048 d64 f32 causal\"\n"
                           "\n"
                           "options:\n"
                           "      --map M         forward, vjp, jvp, vjp_jvp or jvp_jvp; default: all\n"
                           "      --threads T,..  default: ATTNGRAD_THREADS, else one per processor; of\n"
                           "                      several numbers each is timed, and a table with bars\n"
                           "                      shows how the maps scale\n"
                           "      --backend B     cpu, reference or cuda; default: ATTNGRAD_BACKEND, else\n"
                           "                      cpu\n"
                           "      --device N      the number of the GPU, with cuda; default 0\n"
                           "      --rounds R      at least 5, the default\n"
                           "      --seed S        of the random numbers; default 1\n"
                           "      --invariant     bits independent of the rest of the batch\n"
                           "      --given-o       jvp reads o and lse of forward instead of computing them\n"
                           "      --json          an array with an object for each number of threads and\n"
                           "                      each map: map ms gflops percent_of_probe\n"
                           "                      workspace_bytes threads isa\n"
                           "      --mpi           on ranks of mpirun; 'attngrad bench --mpi --help'\n"
                           "  -h, --help          this text\n";

enum { MAX_COUNTS = 16 };

struct request {
    const char *text, *map, *threads;
    int64_t rounds;
    int64_t counts[MAX_COUNTS]; /* of threads; 0: the default */
    int n_counts;
    uint64_t seed;
    struct backend_choice backend;
    bool help, json, invariant, given_o;
};

static int read_request(int argc, char **argv, struct request *r)
{
    const struct option options[] = {
        {"backend", OPTION_TEXT, &r->backend.name, 0, 0},
        {"device", OPTION_INTEGER, &r->backend.device, 0, MAX_DEVICE},
        {"help", OPTION_FLAG, &r->help, 0, 0},
        {"json", OPTION_FLAG, &r->json, 0, 0},
        {"invariant", OPTION_FLAG, &r->invariant, 0, 0},
        {"given-o", OPTION_FLAG, &r->given_o, 0, 0},
        {"map", OPTION_TEXT, &r->map, 0, 0},
        {"threads", OPTION_TEXT, &r->threads, 0, 0},
        {"rounds", OPTION_INTEGER, &r->rounds, 5, 1000000},
        {"seed", OPTION_SEED, &r->seed, 0, 0},
    };
    struct positionals positionals = {&r->text, 1, 0};
    return options_parse(argc, argv, options, sizeof options / sizeof options[0], &positionals);
}

/* The numbers of --threads: "1,2,4". */
static int read_counts(struct request *r)
{
    const char *at = r->threads;
    int status = 0;
    r->n_counts = at == NULL; /* the default alone */
    while (at != NULL && status == 0) {
        const size_t length = strcspn(at, ",");
        char word[32];
        if (r->n_counts == MAX_COUNTS) {
            return usage_error("bench", "--threads: more than %d numbers", MAX_COUNTS);
        }
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        const struct option count = {"threads", OPTION_INTEGER, &r->counts[r->n_counts++], 1, 1024};
        status = option_set("bench", &count, word);
        at = at[length] == ',' ? at + length + 1 : NULL;
    }
    return status;
}

/* The bits of the maps that --map names; 0 if there is no such map. */
static uint32_t selected_maps(const char *name)
{
    uint32_t maps = 0;
    for (int n = 0; n < BENCH_MAPS; n++) {
        if (name == NULL || strcmp(name, bench_maps[n].name) == 0) {
            maps |= bench_maps[n].bit;
        }
    }
    return maps;
}

static int unknown_map(const char *name)
{
    const char *names[BENCH_MAPS];
    for (int n = 0; n < BENCH_MAPS; n++) {
        names[n] = bench_maps[n].name;
    }
    const char *near = nearest_name(name, names, BENCH_MAPS);
    if (near != NULL) {
        return usage_error("bench", "--map: no map '%s' (did you mean '%s'?)", name, near);
    }
    return usage_error("bench", "--map: no map '%s': forward, vjp, jvp, vjp_jvp or jvp_jvp", name);
}

/* ---- Printing ---- */

static double gflops(const struct bench_result *r)
{
    return 1e-9 * r->flops / r->seconds;
}

/* Writes "1.5 MiB". */
static void print_bytes(char *text, size_t size, size_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(text, size, "%.*f %s", unit == 0 ? 0 : 1, value, units[unit]);
}

static void print_probe(const struct bench *b)
{
    static const char *const kinds[PROBE_KINDS] = {
        [PROBE_FMA_F32] = "f32 fma", [PROBE_FMA_F64] = "f64 fma", [PROBE_AMX_BF16] = "bf16 tiles"};
    const ag_dtype dtype = b->arrays->p->dtype;
    if (b->on_gpu) {
        printf("probe    tensor cores in %s: %.1f GFLOP/s\n", ag_dtype_name(dtype), 1e-9 * b->probe);
        return;
    }
    printf("probe    %s %s: %.1f GFLOP/s", b->isa, kinds[b->kind], 1e-9 * b->probe);
    if (b->threads > 1) {
        printf(" (one thread %.1f)", 1e-9 * b->probe_one);
    }
    printf("; f32 exp2: %.1f G/s\n", 1e-9 * b->exp2);
    if (b->fed > 0) {
        printf("         with factors from the L1 cache: %.1f GFLOP/s\n", 1e-9 * b->fed);
    }
    if (b->kind == PROBE_FMA_F32 && dtype != AG_F32) {
        printf("         %s is computed in f32 here, so it is compared with f32\n",
               dtype == AG_F16 ? "f16" : "bf16");
    }
}

static void print_text(const struct bench *b, const char *problem)
{
    printf("problem  %s\n", problem);
    printf("plan     %s\n", ag_plan_describe(b->arrays->plan));
    print_probe(b);
    printf("\n");
    printf("%-8s %12s %10s %10s %12s\n", "map", "ms", "GFLOP/s", "% of probe", "workspace");
    for (int n = 0; n < b->count; n++) {
        const struct bench_result *r = &b->results[n];
        char bytes[32];
        print_bytes(bytes, sizeof bytes, r->workspace_bytes);
        printf("%-8s %12.4f %10.1f %10.1f %12s\n", r->map->name, 1e3 * r->seconds, gflops(r),
               bench_percent(b, r), bytes);
    }
}

static void print_object(struct json *json, const struct bench *b, const struct bench_result *r)
{
    emit_begin_object(json, NULL);
    emit_string(json, "map", r->map->name);
    emit_number(json, "ms", 1e3 * r->seconds);
    emit_number(json, "gflops", gflops(r));
    emit_number(json, "percent_of_probe", bench_percent(b, r));
    emit_integer(json, "workspace_bytes", (int64_t)r->workspace_bytes);
    emit_integer(json, "threads", b->threads);
    emit_string(json, "isa", b->isa);
    emit_end(json);
}

/* all: one per number of threads. */
static void print_json(const struct bench *all, int n_counts)
{
    struct json json = emit_to(stdout);
    emit_begin_array(&json, NULL);
    for (int n = 0; n < n_counts; n++) {
        for (int map = 0; map < all[n].count; map++) {
            print_object(&json, &all[n], &all[n].results[map]);
        }
    }
    emit_end(&json);
}

/* How many times as fast each map is as with the first number of threads; a bar of 40 columns is the fastest. */
static void print_scaling(const struct bench *all, int n_counts)
{
    enum { COLUMNS = 40 };
    double best = 1;
    for (int n = 0; n < n_counts * all[0].count; n++) {
        const int map = n / n_counts;
        const double times = all[0].results[map].seconds / all[n % n_counts].results[map].seconds;
        best = times > best ? times : best;
    }
    printf("\ntimes as fast as with %d thread%s\n", all[0].threads, all[0].threads == 1 ? "" : "s");
    printf("%-8s %7s %12s %7s\n", "map", "threads", "ms", "times");
    for (int n = 0; n < n_counts * all[0].count; n++) {
        const struct bench *b = &all[n % n_counts];
        const struct bench_result *r = &b->results[n / n_counts];
        const double times = all[0].results[n / n_counts].seconds / r->seconds;
        const int bar = (int)(COLUMNS * times / best + 0.5);
        printf("%-8s %7d %12.4f %7.2f  %.*s\n", r->map->name, b->threads, 1e3 * r->seconds, times, bar,
               "########################################");
    }
}

/* ---- Running ---- */

static void show_progress(int64_t done, int64_t total)
{
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "\rround %lld of %lld%s", (long long)done, (long long)total,
                done == total ? "\r\033[K" : "");
    }
}

static int time_problem(const struct request *r, struct arrays *arrays, struct bench *b)
{
    ag_status status = bench_begin(b, arrays, selected_maps(r->map), r->given_o);
    for (int64_t n = 0; n < r->rounds && status == AG_OK; n++) {
        show_progress(n, r->rounds);
        status = bench_round(b);
    }
    if (status != AG_OK) {
        return run_error("bench", "%s", b->on_gpu ? ag_check_last_message() : ag_last_message());
    }
    show_progress(r->rounds, r->rounds);
    if (!r->json) {
        print_text(b, r->text);
    }
    return EXIT_PASS;
}

static int bench_count(const struct request *r, int64_t threads, struct bench *b)
{
    ag_problem problem = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    struct arrays arrays;
    options.threads = (int32_t)threads;
    options.flags = r->invariant ? AG_INVARIANT : 0;
    const int chosen = choose_backend("bench", &r->backend, &options);
    if (chosen != 0) {
        return chosen;
    }
    if (ag_problem_parse(r->text, &problem) != AG_OK ||
        agc_arrays_create(&arrays, &problem, &options, r->seed) != AG_OK) {
        return usage_error("bench", "%s", ag_check_last_message());
    }
    const int status = time_problem(r, &arrays, b);
    agc_arrays_destroy(&arrays);
    return status;
}

static int bench_counts(const struct request *r)
{
    struct bench all[MAX_COUNTS];
    for (int n = 0; n < r->n_counts; n++) {
        if (n > 0 && !r->json) {
            printf("\n");
        }
        const int status = bench_count(r, r->counts[n], &all[n]);
        if (status != EXIT_PASS) {
            return status;
        }
    }
    if (r->json) {
        print_json(all, r->n_counts);
    } else if (r->n_counts > 1) {
        print_scaling(all, r->n_counts);
    }
    return EXIT_PASS;
}

int bench_main(int argc, char **argv)
{
    struct request r = {.rounds = 5, .seed = 1, .backend = {NULL, -1}};
    if (mpi_is_asked_for(argc, argv)) {
        return mpi_exec(argc, argv);
    }
    int status = read_request(argc, argv, &r);
    if (status != 0) {
        return status;
    }
    if (r.help) {
        fputs(help, stdout);
        return EXIT_PASS;
    }
    if (r.text == NULL) {
        return usage_error("bench", "no problem given: \"h12 q2048 d64 f32 causal\", for example");
    }
    if (selected_maps(r.map) == 0) {
        return unknown_map(r.map);
    }
    if (r.given_o && !(selected_maps(r.map) & AG_MAP_JVP)) {
        return usage_error("bench", "--given-o is for jvp, but --map is %s", r.map);
    }
    status = read_counts(&r);
    return status == 0 ? bench_counts(&r) : status;
}
