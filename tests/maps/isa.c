/* Instruction sets: one that an option forces is the one that the plan reports, and gives the same bits in all
 * maps as when ATTNGRAD_ISA names it. The list of instruction sets comes from the library. */
#define _POSIX_C_SOURCE 200809L

#include "outputs.h"

#include <stdbool.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* AMX runs those that attngrad.h says at AG_ISA_AMX; the others have the set that comes with it. */
struct problem {
    const char *text;
    bool on_amx;
    uint32_t flags; /* of the plan */
};
static const struct problem problems[] = {
    {"h2 q70 k90 d40 f32 causal", false, 0},
    {"h2 kv1 q50 k70 d24 f64 bias=11qk sink", false, 0},
    {"h2 q70 k90 d40 f16", false, 0},
    {"b2 h2 q70 k90 d64 bf16 window=30,10", true, 0},
    {"h2 q70 k90 d64 bf16 grad=f32", true, 0},
    {"h2 q70 k90 d64 bf16 out=f32", true, 0},
    {"h2 q70 k24 d64 bf16", true, 0},
    {"h2 q70 k23 d64 bf16", false, 0},
    {"h2 q70 k20 d64 bf16", true, AG_INVARIANT},
    {"h2 q70 k20 d64 f16", false, AG_INVARIANT},
    {"h2 q70 k24 d64 bf16 out=f32", true, 0},
    {"h2 q70 k23 d64 bf16 out=f32 grad=f32", false, 0},
};
enum { PROBLEMS = sizeof problems / sizeof problems[0] };

static void make_with(struct arrays *x, const struct problem *p, ag_isa isa)
{
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_CPU;
    options.isa = isa;
    options.flags = p->flags;
    make_arrays(x, p->text, &options, 7);
}

static ag_plan_info info_of(const struct arrays *x)
{
    ag_plan_info info = {.struct_size = sizeof info};
    CHECK_OK(ag_plan_info_get(x->plan, &info));
    return info;
}

static void by_option_and_by_name(const struct problem *p, const ag_isa_info *isa)
{
    struct arrays by_option, by_name;
    const ag_isa wanted = isa->isa == AG_ISA_AMX && !p->on_amx ? (ag_isa)AG_ISA_AVX512 : isa->isa;
    make_with(&by_option, p, isa->isa);
    const ag_plan_info info = info_of(&by_option);
    CHECK(info.isa == wanted, "'%s' forced to %s is %s", p->text, isa->name, info.isa_name);
    setenv("ATTNGRAD_ISA", isa->name, 1);
    make_with(&by_name, p, AG_ISA_AUTO);
    CHECK(strcmp(ag_plan_describe(by_name.plan), ag_plan_describe(by_option.plan)) == 0, "by name: %s",
          ag_plan_describe(by_name.plan));
    CHECK_OK(agc_arrays_run_all(&by_option));
    CHECK_OK(agc_arrays_run_all(&by_name));
    same_outputs(&by_option, &by_name, ALL_MAPS, isa->name);
    unsetenv("ATTNGRAD_ISA");
    agc_arrays_destroy(&by_name);
    agc_arrays_destroy(&by_option);
}

/* One that is not built in, or that this machine lacks, is refused, by option and by name. */
static void is_refused(const ag_isa_info *isa)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_plan *plan = NULL;
    CHECK_OK(ag_problem_parse(problems[0].text, &p));
    options.isa = isa->isa;
    CHECK_STATUS(ag_plan_create(&plan, &p, &options), AG_UNSUPPORTED);
    CHECK(strcmp(ag_last_field(), "options.isa") == 0, "the field is '%s'", ag_last_field());
    printf("%s: only its refusal is tested: %s\n", isa->name, ag_last_message());
    setenv("ATTNGRAD_ISA", isa->name, 1);
    CHECK_STATUS(ag_plan_create(&plan, &p, NULL), AG_UNSUPPORTED);
    CHECK(strcmp(ag_last_field(), "ATTNGRAD_ISA") == 0, "the field is '%s'", ag_last_field());
    unsetenv("ATTNGRAD_ISA");
}

/* An option takes precedence over the environment variable. */
static void option_before_name(void)
{
    struct arrays x;
    setenv("ATTNGRAD_ISA", "avx2", 1);
    make_with(&x, &problems[0], AG_ISA_SCALAR);
    CHECK_INT(info_of(&x).isa, AG_ISA_SCALAR);
    unsetenv("ATTNGRAD_ISA");
    agc_arrays_destroy(&x);
}

/* The reference has no instruction sets: an option that names one is refused; ATTNGRAD_ISA is ignored, but must be
 * the name of one. */
static void reference_has_none(void)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_plan *plan = NULL;
    ag_plan_info info = {.struct_size = sizeof info};
    CHECK_OK(ag_problem_parse(problems[0].text, &p));
    options.backend = AG_BACKEND_REFERENCE;
    options.isa = AG_ISA_AVX2;
    CHECK_STATUS(ag_plan_create(&plan, &p, &options), AG_UNSUPPORTED);
    CHECK(strcmp(ag_last_message(), "isa avx2 is the cpu backend's: the reference has none") == 0,
          "it says: %s", ag_last_message());
    CHECK(strcmp(ag_last_field(), "options.isa") == 0, "the field is '%s'", ag_last_field());
    options.isa = AG_ISA_AUTO;
    setenv("ATTNGRAD_ISA", "avx2", 1);
    CHECK_OK(ag_plan_create(&plan, &p, &options));
    CHECK_OK(ag_plan_info_get(plan, &info));
    CHECK(info.backend == AG_BACKEND_REFERENCE && strcmp(info.backend_name, "reference") == 0 &&
              info.isa == AG_ISA_AUTO && info.isa_name[0] == '\0' && info.tile_queries == 0 &&
              info.compute_dtype == AG_F64 && info.deterministic == 1,
          "the reference says: backend '%s', isa '%s'", info.backend_name, info.isa_name);
    ag_plan_destroy(plan);
    setenv("ATTNGRAD_ISA", "nonsense", 1);
    CHECK_STATUS(ag_plan_create(&plan, &p, &options), AG_INVALID_PROBLEM);
    CHECK(strcmp(ag_last_field(), "ATTNGRAD_ISA") == 0, "the field is '%s'", ag_last_field());
    unsetenv("ATTNGRAD_ISA");
    CHECK_INT(ag_backend_isa_count(AG_BACKEND_REFERENCE), 0);
    CHECK_INT(ag_backend_isa_count(INT32_MAX), 0);
}

static void wrong_index(void)
{
    ag_isa_info isa = {.struct_size = sizeof isa};
    const int32_t count = ag_backend_isa_count(AG_BACKEND_CPU);
    const struct {
        ag_backend backend;
        int32_t index;
        const char *field;
    } wrong[] = {{AG_BACKEND_CPU, -1, "index"},
                 {AG_BACKEND_CPU, count, "index"},
                 {AG_BACKEND_REFERENCE, 0, "backend"},
                 {99, 0, "backend"}};
    for (size_t n = 0; n < sizeof wrong / sizeof wrong[0]; n++) {
        CHECK_STATUS(ag_backend_isa(wrong[n].backend, wrong[n].index, &isa), AG_INVALID_ARGUMENT);
        CHECK(strcmp(ag_last_field(), wrong[n].field) == 0, "the field is '%s'", ag_last_field());
    }
    CHECK_STATUS(ag_backend_isa(AG_BACKEND_CPU, 0, NULL), AG_INVALID_ARGUMENT);
    CHECK(strcmp(ag_last_field(), "info") == 0, "the field is '%s'", ag_last_field());
}

/* Queried by cpuid, independently of the library: bits 22 and 24 of edx are AMX-BF16 and AMX-TILE. */
static bool processor_has_amx(void)
{
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << 22) != 0 && (d & 1u << 24) != 0;
#else
    return false;
#endif
}

/* If the processor has no AMX, the library refuses it, by option and by name. */
static void refused_without_amx(void)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_plan *plan = NULL;
    if (processor_has_amx()) {
        printf("amx: that it is refused is not tested, this processor has it\n");
        return;
    }
    CHECK_OK(ag_problem_parse("q64 d64 bf16", &p));
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
    unsetenv("ATTNGRAD_BACKEND");
    const int32_t count = ag_backend_isa_count(AG_BACKEND_CPU);
    CHECK_INT(count, AG_ISA_NEON); /* the last value of ag_isa: every one after AG_ISA_AUTO is listed */
    for (int32_t n = 0; n < count; n++) {
        ag_isa_info isa = {.struct_size = sizeof isa};
        CHECK_OK(ag_backend_isa(AG_BACKEND_CPU, n, &isa));
        if (!isa.available) {
            is_refused(&isa);
        }
        for (int p = 0; p < PROBLEMS && isa.available; p++) {
            by_option_and_by_name(&problems[p], &isa);
        }
    }
    option_before_name();
    reference_has_none();
    wrong_index();
    refused_without_amx();
    return test_summary();
}
