/* Faults planted into the emulation of Hopper's verbs must be found: results out of the error rule, or a block that
 * can never end, under at least one schedule. Without a fault nothing may be found. Each problem runs in a process of
 * its own, as the emulation ends the process of a block that cannot go on.
 *
 * And faults planted into what the kernels of a feature set are given: each feature in each kernel. */
#define _POSIX_C_SOURCE 200809L /* fork */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hopper_problems.h"

static const struct hopper_problem problems[] = {
    {"h1 q100 k500 d64 bf16 causal align=bottom-right", WITH_LOW},
    {"h1 q130 k900 d128 bf16", WITH_LOW},
    {"h1 q70 k130 d40 bf16", 0},
};
enum { N_PROBLEMS = sizeof problems / sizeof problems[0], SCHEDULES = 2 * EMULATE_ORDERS };

static void run_alone(int number, int schedule)
{
    const struct rlimit seconds = {60, 60}; /* of the processor: a block that neither ends nor stands still */
    struct arrays x;
    setrlimit(RLIMIT_CPU, &seconds);
    make_hopper_problem(&x, &problems[number], 7);
    emulate_schedule(schedule & 1, schedule >> 1);
    const bool ran = run_hopper_maps(&x) == AG_OK;
    _exit(!ran || count_wrong_results(&x, problems[number].text, false) != 0);
}

/* Was something wrong? */
static bool is_found(int number, int schedule)
{
    int status = 0;
    fflush(stdout);
    const pid_t child = fork();
    test_need(child >= 0, "fork");
    if (child == 0) {
        const int null = open("/dev/null", O_WRONLY);
        dup2(null, 2); /* what the emulation says of a block that it ends */
        run_alone(number, schedule);
    }
    test_need(waitpid(child, &status, 0) == child, "waitpid");
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* One feature of a set is wrong in one kernel, in one of the problems of the set. */
static void check_feature_fault(int set, uint32_t feature, const char *kernel)
{
    char text[256];
    struct arrays x;
    int wrong = 0;
    emulate_plant_feature(feature, kernel);
    format_set_problem(text, sizeof text, set, 0);
    make_hopper_problem(&x, &(struct hopper_problem){text, 0}, 7);
    emulate_schedule(0, EMULATE_FORWARDS);
    if (CHECK_OK(run_hopper_maps(&x))) {
        wrong = count_wrong_results(&x, text, false);
    }
    CHECK((wrong > 0) == (feature != 0), "%s, feature %u in %s: %d results are out of the rule",
          hopper_sets[set].name, (unsigned)feature, kernel, wrong);
    emulate_plant_feature(0, "");
    agc_arrays_destroy(&x);
}
static void check_feature_faults(void)
{
    for (int set = 0; set < N_HOPPER_SETS; set++) {
        check_feature_fault(set, 0, "");
        for (uint32_t feature = 1; feature <= hopper_sets[set].features; feature *= 2) {
            if (hopper_sets[set].features & feature) {
                check_feature_fault(set, feature, "hopper_forward");
                check_feature_fault(set, feature, "hopper_dkdv");
                check_feature_fault(set, feature, "hopper_dq");
            }
        }
    }
}

int main(void)
{
    emulated_hopper = true;
    check_feature_faults();
    for (int fault = 0; emulate_plant_hopper(fault) != NULL; fault++) {
        const char *name = emulate_plant_hopper(fault);
        int found = 0;
        for (int n = 0; n < SCHEDULES * N_PROBLEMS && (fault == 0 || found == 0); n++) {
            found += is_found(n % N_PROBLEMS, SCHEDULES - 1 - n / N_PROBLEMS);
        }
        printf("%s: %s\n", name, found ? "found" : "not found");
        CHECK((found > 0) == (fault > 0), "%s: %d problems found something", name, found);
    }
    return test_summary();
}
