/* How many independent work items a plan of the CPU backend has, by map: at least 64 from 2^25 visible pairs on, so
 * that many threads have work, on every instruction set; with AG_INVARIANT for some shapes; and the exceptions that
 * docs/design.md lists, with their numbers. */
#include "cpu/plan.h"
#include "test.h"

enum { WANTED = 64 };

static const char *const texts[] = {
    "h2 q8192 d64 f32", /* 2^27 pairs */
    "h2 q8192 d64 f32 causal",
    "h2 q16384 d128 bf16 causal",
    "h2 q16384 d128 f32 causal",
    "h1 q8192 d64 f32",
    "h1 q8192 d64 bf16",
    "h2 q4096 d64 f32", /* 2^25 */
    "h2 q4096 d64 bf16",
    "h2 kv1 q8192 d64 f16",
    "b2 h1 q8192 d64 f64 causal",
    "b4 h16 q1024 d64 bf16",
    "h64 q1024 d64 f32",
    "h32 kv8 q4096 d128 f32 causal",
    "h32 kv8 q4096 d128 bf16 causal",
    "h32 kv8 q8192 d128 f32 causal",
    "h28 kv4 q4096 d128 bf16 causal",
    "h8 q16384 d128 bf16 causal",
    "h12 q8192 d64 bf16",
    "h16 q8192 d128 f32",
    "h24 q4096 d128 f32 causal",
    "h48 q2048 d64 f32",
    "h16 q2048 d64 bf16",
    "h8 q65536 d128 f32",
};

static const char *const invariant_texts[] = {
    "h16 kv4 q4096 d128 f32 causal",
    "h28 kv4 q4096 d128 bf16 causal",
    "h32 kv8 q4096 d128 bf16 causal",
    "h2 q16384 d128 bf16 causal",
    "h8 q4096 d64 f32",
    "h1 q65536 d64 f32",
    "h8 q65536 d128 f32",
};

static const struct exception {
    const char *text;
    agi_map map;
    uint32_t flags;
    int64_t items;
    bool on_amx; /* not on vectors */
} exceptions[] = {
    {"h12 q768 k8192 d64 f32", AGI_FORWARD, 0, 48, false}, /* 48 blocks of queries are enough */
    {"h12 q768 k8192 d64 f32", AGI_JVP_JVP, 0, 48, false},
    {"h12 q2048 d64 bf16", AGI_VJP, 0, 24, true},              /* chains of two spans each */
    {"h32 kv8 q4096 d128 bf16 table=50", AGI_VJP, 0, 8, true}, /* no chains */
    {"h4 q131072 d64 f32 table=50", AGI_VJP, 0, 8, false},     /* memory bounds the sums of dQ, dK and dV */
    {"h1 q131072 d64 f32 table=50", AGI_VJP, 0, 42, false},
    {"h1 q300 k200000 d64 f32", AGI_VJP, 0, 16, false},    /* few queries and few spans */
    {"h2 q2048 d64 f32", AGI_VJP, AG_INVARIANT, 8, false}, /* spans of 512 keys */
    {"h2 q8192 d64 f32", AGI_VJP, AG_INVARIANT, 32, false},
    {"h2 q8192 d64 f32", AGI_VJP_JVP, AG_INVARIANT, 32, false},
    {"h2 q8192 d64 f32 table=50", AGI_VJP, AG_INVARIANT, 20, false}, /* splits of the queries */
    {"h1 q131072 k512 d64 f32", AGI_VJP, AG_INVARIANT, 16, false},
    {"h1 q300 k200000 d64 f32", AGI_VJP, AG_INVARIANT, 391, false}, /* at most two at the same time */
    {"h2 q1 k32768 d64 f32", AGI_FORWARD, AG_INVARIANT, 16, false},
    {"h1 q2400 d64 f32 window=300,0", AGI_VJP, AG_INVARIANT, 5,
     false}, /* the three cases of tests/maps/invariant.c */
    {"h3 q2400 d64 f32 window=300,0", AGI_VJP, AG_INVARIANT, 15, false},
    {"h65 q2400 d64 f32 window=300,0", AGI_VJP, AG_INVARIANT, 65, false},
};

/* Those of tests/maps/chains.c and of tests/contract/poll.c, and long heads that many threads share. */
static const char *const chained[] = {
    "h4 q6200 k6200 d170 f32 window=500,0 sink",
    "h8 kv4 q6200 k6100 d170 bf16 causal window=400,0 softcap=5",
    "b2 h2 packed=5000,6300 q4200 k4300 d256 f64 causal align=bottom-right dropout=0.1 alibi",
    "b2 h2 q6200 k6300 d170 f16 out=f32 window=300,20 mask=b11k",
    "h18 q1700 k1900 d170 bf16 causal align=bottom-right window=200,0",
    "b4 h4 packed=5000,6000 q2000 k2100 d170 f32 window=300,50",
    "h4 q4096 d128 f32",
    "h2 q16384 d128 bf16 causal",
    "h1 q65536 d64 f32",
};

/* With AG_INVARIANT, those of tests/contract/threads.c and of tests/contract/poll.c. */
static const char *const invariant_chained[] = {
    "h2 kv1 q200 k400 d256 bf16 bias=bhqk",
    "h3 q400 k900 d256 f32 causal sink",
    "b2 h2 kv1 q385 k600 d256 bf16 bias=bhqk",
};

/* Of the loop over the pairs; the sums of several parts are added up in loops of their own. */
static int64_t items_of(const agi_cpu_plan *cpu, agi_map map)
{
    const agi_row_schedule *rows = map == AGI_JVP_JVP ? &cpu->given : &cpu->rows;
    if (map == AGI_VJP || map == AGI_VJP_JVP) {
        const agi_backward_schedule *s = &cpu->backward[map];
        const int64_t parts = s->chained ? s->passes : s->parts;
        return s->shared ? s->groups * parts : s->groups;
    }
    return rows->items * rows->kv_splits;
}

static const char *const names[AGI_N_MAPS] = {[AGI_FORWARD] = "forward",
                                              [AGI_VJP] = "vjp",
                                              [AGI_JVP] = "jvp",
                                              [AGI_VJP_JVP] = "vjp_jvp",
                                              [AGI_JVP_JVP] = "jvp_jvp"};

/* Ends the program if there is no plan. */
static ag_plan *make_plan(const char *text, ag_isa isa, uint32_t flags)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_plan *plan = NULL;
    options.backend = AG_BACKEND_CPU;
    options.isa = isa;
    options.flags = flags;
    CHECK_OK(ag_problem_parse(text, &p));
    test_need(ag_plan_create(&plan, &p, &options) == AG_OK, text);
    return plan;
}

static void count_items(const char *text, ag_isa isa, uint32_t flags)
{
    ag_plan *plan = make_plan(text, isa, flags);
    for (int map = 0; map < AGI_N_MAPS; map++) {
        const int64_t items = items_of(agi_cpu_plan_of(plan), (agi_map)map);
        CHECK(items >= WANTED, "'%s' %s, instruction set %d, flags %d: %d work items, not %d", text,
              names[map], (int)isa, (int)flags, (int)items, WANTED);
    }
    ag_plan_destroy(plan);
}

static void count_exception(const struct exception *x)
{
    ag_plan *plan = make_plan(x->text, AG_ISA_AUTO, x->flags);
    ag_plan_info info = {.struct_size = sizeof info};
    CHECK_OK(ag_plan_info_get(plan, &info));
    if (x->on_amx && info.isa != AG_ISA_AMX) {
        printf("not checked: the work items of '%s', as this processor has no AMX\n", x->text);
        ag_plan_destroy(plan);
        return;
    }
    const int64_t items = items_of(agi_cpu_plan_of(plan), x->map);
    CHECK(items == x->items, "'%s' %s, flags %d: %d work items, but docs/design.md says %d", x->text,
          names[x->map], (int)x->flags, (int)items, (int)x->items);
    ag_plan_destroy(plan);
}

static void is_chained(const char *text, uint32_t flags)
{
    ag_plan *plan = make_plan(text, AG_ISA_AUTO, flags);
    const agi_backward_schedule *schedules = agi_cpu_plan_of(plan)->backward;
    CHECK(schedules[AGI_VJP].chained, "'%s': vjp is not chained", text);
    CHECK(schedules[AGI_VJP_JVP].chained, "'%s': vjp_jvp is not chained", text);
    ag_plan_destroy(plan);
}

int main(void)
{
    for (size_t n = 0; n < sizeof chained / sizeof chained[0]; n++) {
        is_chained(chained[n], 0);
    }
    for (size_t n = 0; n < sizeof invariant_chained / sizeof invariant_chained[0]; n++) {
        is_chained(invariant_chained[n], AG_INVARIANT);
    }
    for (size_t n = 0; n < sizeof texts / sizeof texts[0]; n++) {
        count_items(texts[n], AG_ISA_AUTO, 0);
        count_items(texts[n], AG_ISA_SCALAR, 0);
    }
    for (size_t n = 0; n < sizeof invariant_texts / sizeof invariant_texts[0]; n++) {
        count_items(invariant_texts[n], AG_ISA_AUTO, AG_INVARIANT);
        count_items(invariant_texts[n], AG_ISA_SCALAR, AG_INVARIANT);
    }
    for (size_t n = 0; n < sizeof exceptions / sizeof exceptions[0]; n++) {
        count_exception(&exceptions[n]);
    }
    return test_summary();
}
