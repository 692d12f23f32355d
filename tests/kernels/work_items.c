/* How many independent work items a plan of the CPU backend has, by map: at least 64 from 2^25 visible pairs on, so
 * that many threads have work; on every instruction set, without AG_INVARIANT. docs/design.md says which shapes have
 * fewer. */
#include "cpu/plan.h"
#include "test.h"

enum { WANTED = 64 };

static const char *const texts[] = {
    "h2 q8192 d64 f32", /* 2^27 pairs */
    "h2 q8192 d64 f32 causal", "h2 q16384 d128 bf16 causal", "h2 q16384 d128 f32 causal",
    "h1 q8192 d64 f32",        "h1 q8192 d64 bf16",          "h2 q4096 d64 f32", /* 2^25 */
    "h2 q4096 d64 bf16",       "h2 kv1 q8192 d64 f16",       "b2 h1 q8192 d64 f64 causal",
    "b4 h16 q1024 d64 bf16",   "h64 q1024 d64 f32",
};

/* Of the loop over the pairs; the sums of several parts are added up in loops of their own. */
static int64_t items_of(const agi_cpu_plan *cpu, agi_map map)
{
    const agi_row_schedule *rows = map == AGI_JVP_JVP ? &cpu->given : &cpu->rows;
    if (map == AGI_VJP || map == AGI_VJP_JVP) {
        const agi_backward_schedule *schedule = &cpu->backward[map];
        return schedule->groups * (schedule->chained ? schedule->passes : schedule->parts);
    }
    return rows->items * rows->kv_splits;
}

static void count_items(const char *text, ag_isa isa)
{
    static const char *const names[AGI_N_MAPS] = {[AGI_FORWARD] = "forward",
                                                  [AGI_VJP] = "vjp",
                                                  [AGI_JVP] = "jvp",
                                                  [AGI_VJP_JVP] = "vjp_jvp",
                                                  [AGI_JVP_JVP] = "jvp_jvp"};
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_plan *plan = NULL;
    options.backend = AG_BACKEND_CPU;
    options.isa = isa;
    CHECK_OK(ag_problem_parse(text, &p));
    CHECK_OK(ag_plan_create(&plan, &p, &options));
    for (int map = 0; plan != NULL && map < AGI_N_MAPS; map++) {
        const int64_t items = items_of(agi_cpu_plan_of(plan), (agi_map)map);
        CHECK(items >= WANTED, "'%s' %s, instruction set %d: %d work items, not %d", text, names[map],
              (int)isa, (int)items, WANTED);
    }
    ag_plan_destroy(plan);
}

/* The problems of tests/maps/chains.c run as chains; so do the long heads that many threads share. */
static void is_chained(const char *text)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_plan *plan = NULL;
    options.backend = AG_BACKEND_CPU;
    CHECK_OK(ag_problem_parse(text, &p));
    CHECK_OK(ag_plan_create(&plan, &p, &options));
    if (plan != NULL) {
        CHECK(agi_cpu_plan_of(plan)->backward[AGI_VJP].chained, "'%s': vjp is not chained", text);
        CHECK(agi_cpu_plan_of(plan)->backward[AGI_VJP_JVP].chained, "'%s': vjp_jvp is not chained", text);
    }
    ag_plan_destroy(plan);
}

int main(void)
{
    static const char *const chained[] = {
        "h4 q6200 k6200 d170 f32 window=500,0 sink",
        "h8 kv4 q6200 k6100 d170 bf16 causal window=400,0 softcap=5",
        "b2 h2 packed=5000,6300 q4200 k4300 d256 f64 causal align=bottom-right dropout=0.1 alibi",
        "b2 h2 q6200 k6300 d170 f16 out=f32 window=300,20 mask=b11k",
        "h2 q16384 d128 bf16 causal",
        "h1 q65536 d64 f32",
    };
    for (size_t n = 0; n < sizeof chained / sizeof chained[0]; n++) {
        is_chained(chained[n]);
    }
    for (size_t n = 0; n < sizeof texts / sizeof texts[0]; n++) {
        count_items(texts[n], AG_ISA_AUTO);
        count_items(texts[n], AG_ISA_SCALAR);
    }
    return test_summary();
}
