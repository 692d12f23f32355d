/* On a GPU of Hopper: the problems that the emulated table sm90 is tested with, by the error rule. Each plan must have
 * taken that table, in the maps that docs/gpu.md says, with the smallest set of score features. On another GPU, or if
 * the environment names another table, says so and exits with 77: skipped.
 *
 * gpu_hopper [JOBS [NUMBER]]: how many at a time; this problem alone, in this process (for a debugger). */
#define _POSIX_C_SOURCE 200809L /* fork */
#include "processes.h"

#include "hopper_list.h"

enum { SKIPPED = 77 };

/* The maps that the table has for a problem: of float32 and of head sizes above 128 the first ones; vjp_jvp of score
 * features in one kernel alone, which is not for AG_INVARIANT; dbias where each pair has its own. */
static const char *maps_of(const ag_problem *p, uint32_t features, bool invariant)
{
    const bool second = features == 0 || !invariant;
    const bool dbias = features & AGI_HAS_BIAS && p->bias_size[2] == p->q_len && p->bias_size[3] == p->kv_len;
    if (p->dtype == AG_F32) {
        return "forward";
    }
    if (p->dim_qk > 128 || p->dim_v > 128) {
        return "forward and vjp";
    }
    if (second) {
        return dbias ? "forward, vjp, jvp, vjp_jvp and dbias" : "forward, vjp, jvp and vjp_jvp";
    }
    return dbias ? "forward, vjp, jvp and dbias" : "forward, vjp and jvp";
}

/* The set of exactly these features; the list has no problem of others. */
static const char *set_of(uint32_t features)
{
    for (int n = 0; n < N_HOPPER_SETS; n++) {
        if (hopper_sets[n].features == features) {
            return hopper_sets[n].name;
        }
    }
    return "a set that is not there";
}

static void needs_hopper(const struct arrays *x, const struct hopper_problem *problem)
{
    const ag_problem *p = ag_plan_problem(x->plan);
    const uint32_t features = features_of(p);
    char wanted[128];
    ag_plan_info info = {.struct_size = sizeof info};
    CHECK_OK(ag_plan_info_get(x->plan, &info));
    snprintf(wanted, sizeof wanted, ", wgmma in %s%s%s, ",
             maps_of(p, features, (problem->with & INVARIANT) != 0), features == 0 ? "" : " with ",
             features == 0 ? "" : set_of(features));
    CHECK(info.backend == AG_BACKEND_CUDA && info.isa == AG_ISA_SM90 &&
              strstr(ag_plan_describe(x->plan), wanted) != NULL,
          "'%s' runs on %s, without '%s'", problem->text, ag_plan_describe(x->plan), wanted);
}

static void check_plan(const struct hopper_problem *problem)
{
    struct arrays x;
    make_hopper_problem(&x, problem, 1);
    needs_hopper(&x, problem);
    agc_arrays_destroy(&x);
}

static void check_number(int number)
{
    char text[256];
    struct arrays x;
    struct hopper_problem p;
    if (number >= N_NUMBERS) {
        const struct hopper_problem *problem = &tiled_masks[number - N_NUMBERS];
        check_plan(problem);
        make_tiled_mask(&x, problem);
        struct error_truth truth = truth_of(&x);
        check_masked_maps(&truth, &x, problem->text, masked_first_order, FORWARD_RESULTS | VJP_RESULTS);
        check_masked_maps(&truth, &x, problem->text, masked_tangents,
                          FORWARD_RESULTS | JVP_RESULTS | VJP_JVP_RESULTS);
        agc_error_truth_destroy(&truth);
        agc_arrays_destroy(&x);
    } else {
        hopper_problem_of(number, text, sizeof text, &p);
        check_plan(&p);
        check_hopper_problem(&p, number);
    }
}

/* In a process of its own: exits with SKIPPED if no plan can have the table. */
static void look_for_hopper(int number)
{
    ag_info info = {.struct_size = sizeof info};
    (void)number;
    CHECK_OK(ag_info_get(&info));
    if (strstr(info.devices, ", sm90,") == NULL) {
        printf("no GPU of compute capability 9.0: %s\n", info.devices);
        fflush(stdout);
        _exit(SKIPPED);
    }
}

static int has_hopper(void)
{
    const char *table = getenv("ATTNGRAD_ISA"), *shared = getenv("ATTNGRAD_CUDA_SHARED");
    if ((table != NULL && strcmp(table, "sm90") != 0) || shared != NULL) {
        printf("the environment asks for another table: ATTNGRAD_ISA=%s ATTNGRAD_CUDA_SHARED=%s\n",
               table == NULL ? "" : table, shared == NULL ? "" : shared);
        return 0;
    }
    begin_process(look_for_hopper, 0);
    return collect_process() != SKIPPED;
}

int main(int argc, char **argv)
{
    const int jobs = argc > 1 ? atoi(argv[1]) : 4;
    if (!has_hopper()) {
        return SKIPPED;
    }
    if (argc > 2) {
        check_number(atoi(argv[2]));
        return test_summary();
    }
    return run_processes(check_number, N_NUMBERS + N_TILED_MASKS, jobs) != 0;
}
