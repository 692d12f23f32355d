/* Instruction sets: the one that an option forces is the one that the plan names and that the environment forces by its
 * name, bit by bit, in all four maps. */
#define _POSIX_C_SOURCE 200809L

#include "outputs.h"

#include <stdbool.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const names[] = {"auto", "scalar", "avx2", "avx512", "amx", "neon"};

static const char *const problems[] = {
    "h2 q70 k90 d40 f32 causal",
    "h2 kv1 q50 k70 d24 f64 bias=11qk sink",
    "b2 h2 q70 k90 d64 bf16 window=30,10",
};

/* False, with the reason printed: not on this processor. */
static bool make_with(struct arrays *x, const char *text, ag_isa isa)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_CPU;
    options.isa = isa;
    if (!CHECK_OK(ag_problem_parse(text, &p)) || arrays_create(x, &p, &options, 7) != AG_OK) {
        CHECK(isa > AG_ISA_SCALAR, "%s for '%s' is refused: %s", names[isa], text, ag_last_message());
        printf("%s for '%s': not tested: %s\n", names[isa], text, ag_last_message());
        return false;
    }
    return true;
}

static void by_option_and_by_name(const char *text, ag_isa isa)
{
    struct arrays by_option, by_name;
    if (!make_with(&by_option, text, isa)) {
        return;
    }
    /* AMX is for bfloat16; other dtypes have the set that comes with it. */
    const char *const name = isa == AG_ISA_AMX && strstr(text, "bf16") == NULL ? "avx512" : names[isa];
    CHECK(strstr(ag_plan_describe(by_option.plan), name) != NULL, "'%s' forced to %s is: %s", text,
          names[isa], ag_plan_describe(by_option.plan));
    setenv("ATTNGRAD_ISA", names[isa], 1);
    if (make_with(&by_name, text, AG_ISA_AUTO)) {
        CHECK(strcmp(ag_plan_describe(by_name.plan), ag_plan_describe(by_option.plan)) == 0, "by name: %s",
              ag_plan_describe(by_name.plan));
        CHECK_OK(arrays_run_all(&by_option));
        CHECK_OK(arrays_run_all(&by_name));
        same_outputs(&by_option, &by_name, ALL_MAPS, names[isa]);
        arrays_destroy(&by_name);
    }
    unsetenv("ATTNGRAD_ISA");
    arrays_destroy(&by_option);
}

/* An option is worth more than the environment. */
static void option_before_name(void)
{
    struct arrays x;
    setenv("ATTNGRAD_ISA", "avx2", 1);
    if (make_with(&x, problems[0], AG_ISA_SCALAR)) {
        CHECK(strstr(ag_plan_describe(x.plan), "scalar") != NULL, "the environment wins: %s",
              ag_plan_describe(x.plan));
        arrays_destroy(&x);
    }
    unsetenv("ATTNGRAD_ISA");
}

/* Asked without the library: amx-bf16 and amx-tile. */
static bool processor_has_amx(void)
{
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << 22) != 0 && (d & 1u << 24) != 0;
#else
    return false;
#endif
}

/* Where the processor has no AMX, the library refuses it, by option and by name. */
static void refused_without_amx(void)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_plan *plan = NULL;
    if (processor_has_amx()) {
        printf("amx: that it is refused is not tested, this processor has it\n");
        return;
    }
    CHECK_OK(ag_problem_parse(problems[2], &p));
    options.backend = AG_BACKEND_CPU;
    options.isa = AG_ISA_AMX;
    CHECK_STATUS(ag_plan_create(&plan, &p, &options), AG_UNSUPPORTED);
    options.isa = AG_ISA_AUTO;
    setenv("ATTNGRAD_ISA", "amx", 1);
    CHECK_STATUS(ag_plan_create(&plan, &p, &options), AG_UNSUPPORTED);
    unsetenv("ATTNGRAD_ISA");
}

int main(void)
{
    unsetenv("ATTNGRAD_ISA");
    for (size_t n = 0; n < sizeof problems / sizeof problems[0]; n++) {
        for (ag_isa isa = AG_ISA_SCALAR; isa <= AG_ISA_NEON; isa++) {
            by_option_and_by_name(problems[n], isa);
        }
    }
    option_before_name();
    refused_without_amx();
    return test_summary();
}
