/* Memory: if any one allocation of plan creation fails, the plan is refused without a leak; all memory comes
 * from the given allocator and goes back to it; the maps, the merge and the trace allocate nothing, neither
 * by that allocator nor by malloc. */
#include "outputs.h"

/* ---- The given allocator ------------------------------------------------------------------------ */

struct counts {
    int allocations, releases, held;
    int fail_at; /* number of the allocation that fails; 0: none */
    size_t bytes;
};

/* A header keeps each block's owner, so that a release of foreign memory is seen. */
union header {
    struct counts *owner;
    max_align_t alignment;
};

static void *counted_alloc(void *ctx, size_t size)
{
    struct counts *c = ctx;
    if (++c->allocations == c->fail_at) {
        return NULL;
    }
    union header *h = malloc(sizeof *h + size);
    test_need(h != NULL, "memory");
    memset(h, 0xA5, sizeof *h + size); /* nothing may rely on zeros */
    h->owner = c;
    c->held++;
    c->bytes += size;
    return h + 1;
}

static void counted_release(void *ctx, void *memory)
{
    struct counts *c = ctx;
    union header *h = (union header *)memory - 1;
    CHECK(memory != NULL, "NULL is released");
    CHECK(h->owner == c, "memory of another owner is released");
    c->releases++;
    c->held--;
    free(h);
}

static ag_options counted(struct counts *c)
{
    ag_options options = AG_OPTIONS_INIT;
    options.alloc_ctx = c;
    options.alloc = counted_alloc;
    options.release = counted_release;
    options.threads = 2;
    return options;
}

/* ---- Failing allocations ------------------------------------------------------------------------ */

static const char *const problems[] = {"q4 d4 f32", EVERY_FEATURE "f16", EVERY_FEATURE_PACKED "f64",
                                       "h5 q4 d4 f32 alibi", "h5 q4 d4 f32 table=100,7,shared"};

static ag_problem with_arrays(const char *text)
{
    static const int32_t buckets[201];
    static const double slopes[5];
    ag_problem p = AG_PROBLEM_INIT;
    CHECK_OK(ag_problem_parse(text, &p));
    p.buckets = buckets;
    p.alibi_slopes = slopes;
    return p;
}

/* What there is no memory for, and how much it would be. */
static int names_what_is_missing(const char *message)
{
    static const char *const all[] = {"no memory for the plan: 1 MiB", "no memory for buckets: 1 MiB",
                                      "no memory for alibi_slopes: 1 MiB"};
    int any = 0;
    for (size_t n = 0; n < sizeof all / sizeof all[0]; n++) {
        any = any || strcmp(message, all[n]) == 0;
    }
    return any;
}

static void each_allocation_fails(const char *text)
{
    const ag_problem p = with_arrays(text);
    struct counts c = {0, 0, 0, 0, 0};
    ag_options options = counted(&c);
    ag_plan *plan = NULL;
    CHECK_OK(ag_plan_create(&plan, &p, &options));
    const int allocations = c.allocations;
    CHECK(allocations >= 1 && c.held == allocations, "'%s': %d allocations, %d held", text, allocations,
          c.held);
    ag_plan_destroy(plan);
    CHECK(c.held == 0 && c.releases == allocations, "'%s': %d held after destroy", text, c.held);
    for (int n = 1; n <= allocations; n++) {
        c = (struct counts){0, 0, 0, n, 0};
        plan = (ag_plan *)(void *)&c;
        CHECK_STATUS(ag_plan_create(&plan, &p, &options), AG_NO_MEMORY);
        CHECK(plan == NULL, "'%s': allocation %d failed and the plan is not NULL", text, n);
        CHECK_INT(c.held, 0);
        CHECK(names_what_is_missing(ag_last_message()), "the message is '%s'", ag_last_message());
        CHECK(ag_last_field()[0] == '\0', "a lack of memory is blamed on '%s'", ag_last_field());
    }
}

/* A refused problem holds nothing. */
static void refused_problems_hold_nothing(void)
{
    struct counts c = {0, 0, 0, 0, 0};
    ag_options options = counted(&c);
    ag_problem p = with_arrays(EVERY_FEATURE "f32");
    ag_plan *plan = NULL;
    options.backend = INT32_MAX; /* no backend */
    CHECK_STATUS(ag_plan_create(&plan, &p, &options), AG_UNSUPPORTED);
    options.backend = AG_BACKEND_AUTO;
    p.dropout = 2;
    CHECK_STATUS(ag_plan_create(&plan, &p, &options), AG_INVALID_PROBLEM);
    CHECK_INT(c.held, 0);
}

/* The plan copies what the problem points to: the caller's arrays may change and go. */
static void arrays_are_copied(void)
{
    struct arrays x;
    void *wanted[T_COUNT];
    make_arrays(&x, EVERY_FEATURE "f64", NULL, 301);
    CHECK_OK(agc_arrays_run_all(&x));
    keep_outputs(&x, wanted);
    for (int n = 0; n < 9; n++) {
        CHECK_INT(x.p->buckets[n], x.buckets[n]);
        x.buckets[n] = INT32_MAX;
        CHECK(x.p->buckets[n] < 3, "the plan's buckets are the caller's");
    }
    for (int h = 0; h < 4; h++) {
        CHECK(x.p->alibi_slopes[h] == x.slopes[h], "slope %g became %g", x.slopes[h], x.p->alibi_slopes[h]);
        x.slopes[h] = 1e300;
        CHECK(x.p->alibi_slopes[h] < 1e300, "the plan's slopes are the caller's");
    }
    CHECK_OK(agc_arrays_run_all(&x));
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (wanted[t] != NULL) {
            same_tensor(&x, t, x.data[t], wanted[t], "the caller's arrays changed");
        }
    }
    free_outputs(wanted);
    agc_arrays_destroy(&x);
}

/* ---- No allocation by malloc -------------------------------------------------------------------- */

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define OWN_MALLOC 0
#endif
#endif
#if !defined(OWN_MALLOC) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) &&                          \
    !defined(__SANITIZE_THREAD__)
#define OWN_MALLOC 1
#endif

static atomic_int mallocs;

#if defined(OWN_MALLOC) && OWN_MALLOC
/* These take the place of the C library's for the whole program and count. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size)
{
    atomic_fetch_add(&mallocs, 1);
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    atomic_fetch_add(&mallocs, 1);
    return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    atomic_fetch_add(&mallocs, 1);
    return __libc_realloc(memory, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    atomic_fetch_add(&mallocs, 1);
    return __libc_memalign(alignment, size);
}
#endif

static int mallocs_are_counted(void)
{
    const int before = atomic_load(&mallocs);
    void *volatile memory = malloc(10);
    free(memory);
    return atomic_load(&mallocs) > before;
}

static void call_everything(struct arrays *x, double *S)
{
    const ag_trace_args trace = {sizeof trace, 0, 0, 0, .S = S};
    for (int map = 0; map < MAPS; map++) {
        CHECK_OK(call_map(map, x->plan, &x->args, NULL, x->workspace, x->workspace_bytes));
        if (S != NULL) {
            CHECK_OK(ag_trace(x->plan, map_bit[map], &x->args, &trace, x->workspace, x->workspace_bytes));
        }
        CHECK_STATUS(call_map(map, x->plan, &x->args, NULL, x->workspace, 0), AG_WORKSPACE);
    }
}

/* The reference's trace too; the fused backend has none. */
static void maps_allocate_nothing(const char *text, ag_backend backend)
{
    struct counts c = {0, 0, 0, 0, 0};
    struct arrays x;
    ag_options options = counted(&c);
    options.backend = backend;
    options.threads = 3;
    make_arrays(&x, text, &options, 303);
    const int traced = backend == AG_BACKEND_REFERENCE;
    double *S = traced ? test_alloc(x.p->q_len * x.p->kv_len, sizeof *S) : NULL;
    CHECK_OK(agc_arrays_run_along_s(&x));       /* jvp_jvp reads its smu */
    ag_tensor o2 = x.args.to, lse2 = x.args.mu; /* any values will do */
    const ag_merge_args merge = {.struct_size = sizeof merge,
                                 .o1 = x.args.o,
                                 .lse1 = x.args.lse,
                                 .o2 = o2,
                                 .lse2 = lse2,
                                 .o = x.args.o,
                                 .lse = x.args.lse};
    call_everything(&x, S);
    const int counted_before = c.allocations, before = atomic_load(&mallocs);
    for (int n = 0; n < 20; n++) {
        call_everything(&x, S);
        CHECK_OK(ag_merge(x.plan, &merge, NULL));
    }
    const int after = atomic_load(&mallocs);
    CHECK(after == before, "'%s': %d allocations by malloc in 20 rounds of calls", text, after - before);
    CHECK(c.allocations == counted_before, "'%s': %d allocations of the plan's allocator in calls", text,
          c.allocations - counted_before);
    free(S);
    agc_arrays_destroy(&x);
    CHECK_INT(c.held, 0);
}

int main(void)
{
    for (size_t n = 0; n < sizeof problems / sizeof problems[0]; n++) {
        each_allocation_fails(problems[n]);
    }
    refused_problems_hold_nothing();
    arrays_are_copied();
    if (!mallocs_are_counted()) {
        printf("malloc is not counted here (a sanitizer, valgrind or another C library has its own): "
               "only the given allocator is\n");
    }
    for (size_t n = 0; n < sizeof problems / sizeof problems[0]; n++) {
        maps_allocate_nothing(problems[n], AG_BACKEND_REFERENCE);
        maps_allocate_nothing(problems[n], AG_BACKEND_CPU);
    }
    return test_summary();
}
