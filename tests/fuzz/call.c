/* Fuzzes the arguments of a call. The bytes choose one of a few small problems and a map, then drop pointers,
 * misalign them, make tensors overlap, change strides, lengths, offsets and sizes. Each tensor is in the
 * middle of a buffer that its view cannot leave: a call that the library accepts must not touch other memory,
 * and one that it refuses must leave every buffer as it was. */
#include <attngrad.h>
#include "check/arrays.h"
#include <stdbool.h>
#include <string.h>

#include "target.h"

/* No axis below has more than 6 elements and no stride is over 16: a view reaches at most
 * 4 * 5 * 16 * 8 = 2560 bytes to either side. */
enum { MIDDLE = 2560, BUFFER = 2 * MIDDLE + 64, MAX_BATCH = 3, MAX_CHANGES = 12, LISTS = 6 };

static const char *const problems[] = {
    "b2 h2 kv1 q3 k4 d2 dv3 f64 causal",
    "b2 h2 q3 k3 d2 f32 sink bias=1hqk mask=b1qk",
    "b1 h2 q3 k3 d2 bf16 grad=f32 table=2 dropout=0.5",
    "b3 h2 kv1 q2 k3 d2 f16 packed=5,6 alibi softcap=2",
    "b2 h1 q2 k4 d2 f64 causal align=bottom-right window=2,0 sink",
};
enum { PROBLEMS = sizeof problems / sizeof problems[0] };

/* One call: the arguments, the memory they point to, and a copy of it from before the call. */
struct call {
    const ag_plan *plan;
    uint32_t map;
    ag_args args;
    int64_t lengths[LISTS][MAX_BATCH + 1];
    size_t workspace_bytes;
    unsigned char memory[T_COUNT][BUFFER], before[T_COUNT][BUFFER];
};

/* Plans and valid arguments, made once: of the default backend, and of the reference. */
static const struct arrays *valid_arrays(int64_t n, bool reference)
{
    static struct arrays made[PROBLEMS][2];
    struct arrays *x = &made[n][reference];
    if (x->plan == NULL) {
        ag_problem p = AG_PROBLEM_INIT;
        ag_options options = AG_OPTIONS_INIT;
        options.threads = 1;
        options.backend = reference ? AG_BACKEND_REFERENCE : AG_BACKEND_AUTO;
        FUZZ_REQUIRE(ag_problem_parse(problems[n], &p) == AG_OK);
        FUZZ_REQUIRE(agc_arrays_create(x, &p, &options, 1) == AG_OK);
        FUZZ_REQUIRE(agc_arrays_add_low_halves(x) == AG_OK);
        FUZZ_REQUIRE(!agc_plan_has_jvp_jvp(x->plan) || agc_arrays_add_second_direction(x) == AG_OK);
    }
    return x;
}

static ag_tensor *view(struct call *c, int64_t t)
{
    return (ag_tensor *)(void *)((char *)&c->args + agc_tensor_info[t].offset);
}

static void start_valid(struct call *c, struct bytes *in)
{
    const int64_t problem = next_below(in, PROBLEMS);
    const struct arrays *valid = valid_arrays(problem, next_bit(in));
    c->plan = valid->plan;
    c->map = 1U << next_below(in, agc_arrays_has_second_direction(valid) ? 5 : 4);
    c->args = valid->args;
    memset(c->lengths, 0, sizeof c->lengths);
    FUZZ_REQUIRE(ag_plan_workspace(c->plan, c->map, &c->workspace_bytes) == AG_OK);
    /* 0x3c3c...: a small normal number in every dtype. */
    memset(c->memory, 0x3c, sizeof c->memory);
    for (int t = 0; t < T_COUNT; t++) {
        if (valid->data[t] != NULL)
            view(c, t)->data = c->memory[t] + MIDDLE;
    }
}

/* A length or an offset: mostly near the valid ones, sometimes any 64 bits. */
static int64_t some_length(struct bytes *in)
{
    int64_t small = next_below(in, 9) - 1;
    return small == 7 ? (int64_t)next_word(in) : small;
}

static void change_lengths(struct call *c, struct bytes *in)
{
    const int64_t **pointers[] = {&c->args.q_lengths, &c->args.kv_lengths, &c->args.q_packed,
                                  &c->args.k_packed,  &c->args.q_offsets,  &c->args.k_offsets};
    int64_t which = next_below(in, LISTS);
    for (int n = 0; n <= MAX_BATCH; n++)
        c->lengths[which][n] = some_length(in);
    *pointers[which] = next_bit(in) ? c->lengths[which] : NULL;
}

static void change_view(struct call *c, struct bytes *in)
{
    int64_t t = next_below(in, T_COUNT), axis;
    switch (next_below(in, 5)) {
    case 0: view(c, t)->data = NULL; break;
    case 1: view(c, t)->data = c->memory[t] + MIDDLE + next_below(in, 16); break;
    case 2: view(c, t)->data = c->memory[next_below(in, T_COUNT)] + MIDDLE; break;
    default:
        axis = next_below(in, 4);
        view(c, t)->strides[axis] = next_below(in, 33) - 16;
        break;
    }
}

/* As of an older header: a multiple of 8, so that it does not cut a pointer in half. */
static uint32_t some_struct_size(struct bytes *in)
{
    return (uint32_t)(8 * (next_word(in) % (sizeof(ag_args) / 8 + 1)));
}

static void change_number(struct call *c, struct bytes *in)
{
    switch (next_below(in, 9)) {
    case 0: c->args.q_offset = some_length(in); break;
    case 1: c->args.k_offset = some_length(in); break;
    case 2: c->args.batch_offset = some_length(in); break;
    case 3: c->args.seed = next_word(in); break;
    case 4: c->args.accumulate = (uint32_t)next_word(in); break;
    case 5: c->args.struct_size = some_struct_size(in); break;
    case 6: c->args.flags = next_bit(in) ? AG_GIVEN_O : (uint32_t)next_word(in); break;
    case 7: c->args.seed_device = next_bit(in) ? &c->args.seed : NULL; break;
    default: c->workspace_bytes -= c->workspace_bytes > 0 && next_bit(in); break;
    }
}

static void change(struct call *c, struct bytes *in)
{
    switch (next_below(in, 4)) {
    case 0: change_lengths(c, in); break;
    case 1: change_number(c, in); break;
    default: change_view(c, in); break;
    }
}

static ag_status run(struct call *c, void *workspace)
{
    switch (c->map) {
    case AG_MAP_FORWARD: return ag_forward(c->plan, &c->args, NULL, workspace, c->workspace_bytes);
    case AG_MAP_VJP: return ag_vjp(c->plan, &c->args, NULL, workspace, c->workspace_bytes);
    case AG_MAP_JVP: return ag_jvp(c->plan, &c->args, NULL, workspace, c->workspace_bytes);
    case AG_MAP_VJP_JVP: return ag_vjp_jvp(c->plan, &c->args, NULL, workspace, c->workspace_bytes);
    default: return ag_jvp_jvp(c->plan, &c->args, NULL, workspace, c->workspace_bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct call c;
    struct bytes in = {data, size};
    start_valid(&c, &in);
    for (int n = 0; n < MAX_CHANGES && in.left > 0; n++)
        change(&c, &in);
    memcpy(c.before, c.memory, sizeof c.memory);
    /* Of the exact size, so that AddressSanitizer detects an access beyond it. */
    void *workspace = malloc(c.workspace_bytes + (c.workspace_bytes == 0));
    FUZZ_REQUIRE(workspace != NULL);
    if (run(&c, workspace) != AG_OK) {
        FUZZ_REQUIRE(ag_last_message()[0] != '\0');
        FUZZ_REQUIRE(memcmp(c.before, c.memory, sizeof c.memory) == 0);
    }
    free(workspace);
    return 0;
}
