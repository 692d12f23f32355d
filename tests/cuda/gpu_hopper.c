/* On a GPU of Hopper: the problems that the emulated table sm90 is tested with, by the error rule. Each plan must have
 * taken that table. On another GPU, or if the environment names another table, says so and exits with 77: skipped.
 *
 * gpu_hopper [JOBS [NUMBER]]: how many at a time; this problem alone, in this process (for a debugger). */
#define _POSIX_C_SOURCE 200809L /* fork */
#include "processes.h"

#include "hopper_list.h"

enum { SKIPPED = 77 };

static void needs_hopper(const struct arrays *x, const char *text)
{
    ag_plan_info info = {.struct_size = sizeof info};
    CHECK_OK(ag_plan_info_get(x->plan, &info));
    CHECK(info.backend == AG_BACKEND_CUDA && info.isa == AG_ISA_SM90, "'%s' runs on %s", text,
          ag_plan_describe(x->plan));
}

static void check_plan(const struct hopper_problem *problem)
{
    struct arrays x;
    make_hopper_problem(&x, problem, 1);
    needs_hopper(&x, problem->text);
    agc_arrays_destroy(&x);
}

static void check_number(int number)
{
    char text[256];
    struct arrays x;
    struct hopper_problem p;
    if (number >= N_NUMBERS) {
        check_plan(&tiled_masks[number - N_NUMBERS]);
        make_tiled_mask(&x, &tiled_masks[number - N_NUMBERS]);
        check_masked_maps(&x, tiled_masks[number - N_NUMBERS].text, masked_first_order,
                          FORWARD_RESULTS | VJP_RESULTS);
        remove_tangents(&x, tiled_masks[number - N_NUMBERS].with);
        check_masked_maps(&x, tiled_masks[number - N_NUMBERS].text, masked_tangents,
                          FORWARD_RESULTS | JVP_RESULTS | VJP_JVP_RESULTS);
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
