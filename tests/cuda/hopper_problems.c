/* The kernels of the table sm90 by the error rule, on the processor: dtypes, head sizes, every feature that they serve,
 * every set of score features, tiles that are cut on each side; copies that arrive early or late, the first or the last
 * warp ahead.
 *
 * cuda_hopper_emulated [SCHEDULES [NUMBER]]: how many of the four schedules each problem runs under, another one first
 * for each; this problem alone. */
#include "hopper_problems.h"

static const struct hopper_problem problems[] = {
    {"h1 q200 k300 d64 bf16", 0},
    {"h1 q140 k270 d128 bf16", WITH_LOW},
    {"h1 q200 k230 d64 f16 causal", WITH_LOW},
    {"h1 q140 k140 d128 f16 causal", 0},
    {"h2 kv1 q130 k300 d128 bf16 causal align=bottom-right", 0},
    {"h2 kv1 q200 k260 d64 bf16 window=40,9", 0},
    {"h1 q260 k90 d128 f16 window=-1,20 sink", WITH_LOW},
    {"b3 h1 q200 k240 d64 bf16 causal", WITH_LENGTHS},
    {"b3 h1 q70 k150 d128 f16 sink", WITH_LENGTHS | WITH_LOW},
    {"b3 h2 q120 k150 d64 f16 packed=210,290", WITH_LOW},
    {"b3 h1 q100 k140 d128 bf16 causal packed=230,270 sink", 0},
    {"h1 q70 k130 d40 dv24 bf16", WITH_LOW},
    {"h1 q70 k70 d100 dv128 f16 causal", 0},
    {"h1 q66 k120 d20 dv13 bf16", WITH_LOW},
    {"h1 q70 k140 d128 dv70 f16 out=f32", 0},
    {"h1 q70 k120 d64 bf16 out=f32 causal", 0},
    {"b2 h1 q70 k120 d64 bf16 window=30,0", WITH_OFFSETS},
    {"h1 q100 k70 d64 f16 scale=-0.3", 0},
    {"h1 q80 k200 d64 bf16 causal", NOT_A_NUMBER},
    {"h1 q65 k200 d128 f16 causal", NOT_A_NUMBER},
    {"b2 h1 q70 k120 d64 bf16 window=30,0 dropout=0.2", WITH_OFFSETS},
    {"b2 h2 q60 k120 d64 f16 alibi=slopes", WITH_OFFSETS},
    {"b3 h1 q100 k140 d128 bf16 dropout=0.5 bias=1h1k", WITH_LENGTHS},
    {"b2 h2 kv1 q70 k150 d64 f16 bias=b1q1 mask sink", WITH_LENGTHS | WITH_LOW},
};
enum { N_PROBLEMS = sizeof problems / sizeof problems[0] };

static void check_problem(const struct hopper_problem *problem, int number, int schedule)
{
    struct arrays x;
    make_hopper_problem(&x, problem, (uint64_t)number);
    emulate_schedule(schedule & 1, (schedule >> 1) % EMULATE_ORDERS);
    if (problem->with & NOT_A_NUMBER) {
        spoil_hidden_values(&x);
    }
    if (CHECK_OK(run_hopper_maps(&x))) {
        const int wrong = count_wrong_results(&x, problem->text, true);
        CHECK(wrong == 0, "%d: '%s' under schedule %d: %d results out of the rule", number, problem->text,
              schedule, wrong);
    }
    agc_arrays_destroy(&x);
}

/* Problems of the list, then those of the feature sets. */
static void check_number(int number, int schedule)
{
    char text[256];
    struct hopper_problem of_set = {text, 0};
    if (number < N_PROBLEMS) {
        check_problem(&problems[number], number, schedule);
    } else {
        const int n = number - N_PROBLEMS;
        format_set_problem(text, sizeof text, n / N_SET_PROBLEMS, n % N_SET_PROBLEMS);
        check_problem(&of_set, number, schedule);
    }
}

/* The other maps take what this forward leaves: O and lse, and scores that they compute again. */
static void check_all_maps(const char *text)
{
    struct error_entry entries[T_COUNT];
    struct arrays x;
    ag_problem p = AG_PROBLEM_INIT;
    int count = 0;
    CHECK_OK(ag_problem_parse(text, &p));
    test_need(agc_arrays_create(&x, &p, NULL, 5) == AG_OK, "a plan");
    CHECK_OK(agc_arrays_run_all(&x));
    CHECK_OK(agc_error_rule(&x, 1, entries, &count));
    for (int n = 0; n < count; n++) {
        CHECK(agc_error_entry_passed(&entries[n]), "'%s': %s: error %.2e, limit %.2e", text,
              agc_tensor_info[entries[n].t].name, entries[n].error, entries[n].limit);
    }
    agc_arrays_destroy(&x);
}

int main(int argc, char **argv)
{
    const int schedules = argc > 1 ? atoi(argv[1]) : 1, only = argc > 2 ? atoi(argv[2]) : -1;
    emulated_hopper = true;
    for (int n = 0; n < N_PROBLEMS + N_HOPPER_SETS * N_SET_PROBLEMS; n++) {
        for (int s = 0; s < schedules && (only < 0 || n == only); s++) {
            check_number(n, (n + n / 4 + s) % 4);
        }
    }
    if (only < 0) {
        check_all_maps("h1 q70 k80 d64 bf16 causal scale=300");
        check_all_maps("h1 q70 k70 d20 f16 scale=300");
        check_all_maps("h1 q70 k70 d64 bf16 scale=300 softcap=50");
        const int ran = emulate_report(AGI_CUDA_N_PORTABLE, AGI_CUDA_N_KERNELS);
        CHECK_INT(ran, AGI_CUDA_N_KERNELS - AGI_CUDA_N_PORTABLE);
    }
    return test_summary();
}
