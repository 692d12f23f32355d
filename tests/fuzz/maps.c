/* Fuzzes plan creation and the maps. The bytes choose a problem, mostly a sensible one with sizes up to 6, sometimes
 * with a field of any 64 bits, and the options of its plan. If a plan is made and its sizes are small, all maps run:
 * they must neither fail nor touch memory that is not theirs, also jvp that is given o and lse, a merge, and all maps
 * after a call that a poll has cancelled. If a plan is refused, there must be a message. */
#include <attngrad.h>
#include "check/arrays.h"
#include <string.h>

#include "target.h"

/* A legal problem may need more memory than there is, for example the slopes of 2^32 heads. */
static void *small_alloc(void *ctx, size_t size)
{
    (void)ctx;
    return size > (size_t)1 << 26 ? NULL : malloc(size);
}

static void release(void *ctx, void *memory)
{
    (void)ctx;
    free(memory);
}

static void choose_sizes(struct bytes *in, ag_problem *p)
{
    static const ag_dtype dtypes[] = {AG_F64, AG_F32, AG_F16, AG_BF16};
    p->dtype = dtypes[next_below(in, 4)];
    p->batch = next_below(in, 4);
    p->kv_heads = 1 + next_below(in, 2);
    p->heads = p->kv_heads * (1 + next_below(in, 3));
    p->q_len = next_below(in, 6);
    p->kv_len = next_below(in, 6);
    p->dim_qk = 1 + next_below(in, 4);
    p->dim_v = next_below(in, 4);
    if (next_bit(in) && p->dtype != AG_F64)
        p->out_dtype = p->grad_dtype = p->aux_dtype = AG_F32;
}

static int64_t full_or_one(struct bytes *in, int64_t full)
{
    return next_bit(in) ? 1 : full;
}

static void choose_broadcast(struct bytes *in, const ag_problem *p, int64_t size[4])
{
    size[0] = full_or_one(in, p->batch);
    size[1] = full_or_one(in, p->heads);
    size[2] = full_or_one(in, p->q_len);
    size[3] = full_or_one(in, p->kv_len);
}

static void choose_features(struct bytes *in, ag_problem *p)
{
    static const double values[] = {0, 1, 0.5, 30, 1e-3, 1e300};
    p->flags = (uint32_t)(next_byte(in) | next_byte(in) << 8) & (AG_PACKED * 2 - 1);
    p->align = (ag_align)next_below(in, 2);
    p->scale = values[next_below(in, 6)];
    p->softcap = values[next_below(in, 6)];
    p->dropout = next_bit(in) ? 0.25 : 0;
    p->window_left = next_below(in, 5) - 1;
    p->window_right = next_below(in, 5) - 1;
    choose_broadcast(in, p, p->bias_size);
    choose_broadcast(in, p, p->mask_size);
    p->table_radius = next_below(in, 4);
    p->table_buckets = next_below(in, 4);
    p->table_heads = next_bit(in);
    p->q_total = p->batch * p->q_len + next_below(in, 3);
    p->kv_total = p->batch * p->kv_len + next_below(in, 3);
    p->head_offset = next_below(in, 2);
}

/* Writes any 64 bits over any field but the pointers and struct_size, which the caller must set correctly. */
static void overwrite_field(struct bytes *in, ag_problem *p)
{
    size_t from = offsetof(ag_problem, flags);
    size_t fields = (offsetof(ag_problem, buckets) - from) / sizeof(uint32_t) - 1;
    size_t at = from + sizeof(uint32_t) * (size_t)next_below(in, (int64_t)fields);
    uint64_t word = next_word(in);
    memcpy((char *)p + at, &word, sizeof word);
}

/* Can arrays of this problem be made? After overwrite_field it may be valid and huge, or invalid. */
static int is_small(const ag_problem *p)
{
    const int64_t sizes[] = {p->batch,        p->heads,         p->kv_heads, p->q_len,   p->kv_len,
                             p->table_radius, p->table_buckets, p->q_total,  p->kv_total};
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
        if (sizes[n] < 0 || sizes[n] > 32)
            return 0;
    }
    return 1;
}

static void check_plan(const ag_problem *p, const ag_options *options)
{
    ag_plan *plan = NULL;
    size_t bytes = 0;
    ag_status status = ag_plan_create(&plan, p, options);
    FUZZ_REQUIRE((status == AG_OK) == (plan != NULL));
    FUZZ_REQUIRE(status == AG_OK || ag_last_message()[0] != '\0');
    if (status == AG_OK) {
        status = ag_plan_workspace(plan, AG_MAP_FORWARD, &bytes);
        FUZZ_REQUIRE(status == AG_OK || ag_last_message()[0] != '\0');
    }
    ag_plan_destroy(plan);
}

static int32_t cancel_at_zero(void *ctx)
{
    return (*(int64_t *)ctx)-- == 0;
}

static void run_in_order(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    (void)ctx;
    for (int64_t n = 0; n < n_tasks; n++)
        task(arg, n);
}

typedef ag_status (*map_function)(const ag_plan *, const ag_args *, const ag_exec *, void *, size_t);

/* A call that may be cancelled; afterwards plan and workspace can be used again. */
static void run_cancelled(struct arrays *x, struct bytes *in)
{
    static const map_function maps[] = {ag_vjp_jvp, ag_forward, ag_vjp, ag_jvp, ag_jvp_jvp};
    int64_t polls = next_below(in, 3);
    const map_function map = maps[next_below(in, agc_arrays_has_second_direction(x) ? 5 : 4)];
    ag_exec exec = AG_EXEC_INIT;
    exec.ctx = &polls;
    exec.poll = cancel_at_zero;
    exec.run = next_bit(in) ? run_in_order : NULL;
    const ag_status status = map(x->plan, &x->args, &exec, x->workspace, x->workspace_bytes);
    FUZZ_REQUIRE(status == (polls < 0 ? AG_CANCELLED : AG_OK));
    FUZZ_REQUIRE(agc_arrays_run_all(x) == AG_OK);
}

static void run_given(struct arrays *x)
{
    x->args.flags |= AG_GIVEN_O;
    FUZZ_REQUIRE(ag_jvp(x->plan, &x->args, NULL, x->workspace, x->workspace_bytes) == AG_OK);
    x->args.flags &= ~(uint32_t)AG_GIVEN_O;
}

/* Merges the outputs of orders 0 to `order` with other rows, in place. */
static void run_merge(struct arrays *x, int64_t order)
{
    const ag_args *a = &x->args;
    ag_merge_args m = {.struct_size = sizeof m, .o1 = a->o, .lse1 = a->lse, .o2 = a->d_o, .lse2 = a->d_lse};
    m.o_low1 = a->o_low;
    if (order > 0) {
        m.to1 = a->to, m.mu1 = a->mu;
        m.to2 = a->td_o, m.mu2 = a->td_lse;
        m.to_low1 = a->to_low;
    }
    if (order > 1 && agc_arrays_has_second_direction(x)) {
        m.so1 = agc_tensor_view(x->p, T_STO, x->so), m.smu1 = a->smu;
        m.so2 = a->d_o, m.smu2 = a->d_lse;
        m.sto1 = a->sto, m.nu1 = a->nu;
        m.sto2 = a->td_o, m.nu2 = a->td_lse;
    }
    m.o = m.o1, m.lse = m.lse1, m.to = m.to1, m.mu = m.mu1, m.o_low = m.o_low1, m.to_low = m.to_low1;
    m.so = m.so1, m.smu = m.smu1, m.sto = m.sto1, m.nu = m.nu1;
    FUZZ_REQUIRE(ag_merge(x->plan, &m, NULL) == AG_OK);
}

static void run_maps(const ag_problem *p, const ag_options *options, struct bytes *in)
{
    struct arrays arrays;
    if (agc_arrays_create(&arrays, p, options, next_byte(in)) != AG_OK)
        return;
    if (!(p->flags & AG_PACKED) && next_bit(in))
        FUZZ_REQUIRE(agc_arrays_random_lengths(&arrays) == AG_OK);
    if (next_bit(in))
        FUZZ_REQUIRE(agc_arrays_add_low_halves(&arrays) == AG_OK);
    if (agc_plan_has_jvp_jvp(arrays.plan))
        FUZZ_REQUIRE(agc_arrays_add_second_direction(&arrays) == AG_OK);
    if (p->align != AG_ALIGN_BOTTOM_RIGHT && next_bit(in)) {
        FUZZ_REQUIRE(agc_arrays_random_offsets(&arrays, next_below(in, 9)) == AG_OK);
    } else if (p->align != AG_ALIGN_BOTTOM_RIGHT) {
        arrays.args.q_offset = next_below(in, 9) - 4;
        arrays.args.k_offset = next_below(in, 9) - 4;
    }
    FUZZ_REQUIRE(agc_arrays_run_all(&arrays) == AG_OK);
    run_given(&arrays);
    run_cancelled(&arrays, in);
    run_merge(&arrays, next_below(in, 3));
    agc_arrays_destroy(&arrays);
}

/* AG_ROUND_INTERMEDIATES is the reference's alone. */
static void choose_options(struct bytes *in, ag_options *options)
{
    const uint32_t choice = next_byte(in);
    options->threads = 1;
    options->alloc = small_alloc;
    options->release = release;
    options->flags = (choice & 1 ? AG_ROUND_INTERMEDIATES : 0) | (choice & 2 ? AG_INVARIANT : 0);
    options->backend = choice & 1 ? AG_BACKEND_REFERENCE : AG_BACKEND_AUTO;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes in = {data, size};
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    choose_options(&in, &options);
    choose_sizes(&in, &p);
    choose_features(&in, &p);
    if (next_below(&in, 4) == 3)
        overwrite_field(&in, &p);
    if (is_small(&p))
        run_maps(&p, &options, &in);
    else
        check_plan(&p, &options);
    return 0;
}
