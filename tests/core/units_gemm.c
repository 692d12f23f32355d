/* Matrix products against plain loops in float64: every dtype, transposition and stride, accumulated or not, padding
 * rows, several products in a sum, several sums in a call; for each instruction set that this processor has
 * and for the portable implementation. Any number of threads gives the same bits; no byte outside C is written, none
 * after the end of an operand is read. May include private headers. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "amx/amx_instructions.h"
#include "core/cpu_info.h"
#include "core/number.h"
#include "check/rng.h"
#include "gemm/gemm.h"
#include "test.h"

enum { MAX_MAPS = 64, GUARD = 64, GUARD_BYTE = 0xa5 };

/* ---- Memory that ends at a page that may not be read ---- */

static struct {
    void *memory;
    size_t bytes;
} maps[MAX_MAPS];
static int n_maps;

/* Memory whose last byte is the last of a page; any access to the next page is a fault. */
static void *page_end_memory(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page * page;
    char *memory = mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    test_need(memory != MAP_FAILED && n_maps < MAX_MAPS, "memory");
    test_need(mprotect(memory + pages, page, PROT_NONE) == 0, "a page that may not be read");
    maps[n_maps].memory = memory;
    maps[n_maps++].bytes = pages + page;
    return memory + pages - bytes;
}

static void free_maps(void)
{
    while (n_maps > 0) {
        n_maps--;
        munmap(maps[n_maps].memory, maps[n_maps].bytes);
    }
}

/* ---- Random sums ---- */

typedef struct {
    agi_gemm_op op;
    char *before;                 /* C and its guards, as they were before the call */
    size_t bytes;                 /* of C */
    double *expected, *magnitude; /* per element: the sum, and the sum of its terms' absolute values */
    int64_t depth;
} sum;

typedef struct {
    const char *name;
    ag_dtype a, b, c;
} kind;

/* The dtypes of all A, all B, and C of an op. */
static const kind kinds[] = {
    {"f64", AG_F64, AG_F64, AG_F64},
    {"f32", AG_F32, AG_F32, AG_F32},
    {"bf16", AG_BF16, AG_BF16, AG_BF16},
    {"bf16 to f32", AG_BF16, AG_BF16, AG_F32},
    {"f16", AG_F16, AG_F16, AG_F16},
    {"f16 to f32", AG_F16, AG_F16, AG_F32},
    {"bf16 f32", AG_BF16, AG_F32, AG_F32},
    {"f32 bf16 to bf16", AG_F32, AG_BF16, AG_BF16},
    {"f32 f16 to f16", AG_F32, AG_F16, AG_F16},
};

/* Which rows are valid: NULL (all), or one length per group. */
static const int64_t *draw_lengths(struct rng *r, agi_matrix *x)
{
    if (!agc_rng_chance(r, 0.3)) {
        return NULL;
    }
    x->group = agc_rng_range(r, 1, x->rows);
    const int64_t groups = (x->rows + x->group - 1) / x->group;
    int64_t *lengths = page_end_memory((size_t)groups * sizeof *lengths);
    for (int64_t g = 0; g < groups; g++) {
        lengths[g] = agc_rng_range(r, 0, x->group);
    }
    return lengths;
}

/* What may not be read is NaN: padding rows, gaps between rows and between elements. */
static agi_matrix draw_matrix(struct rng *r, ag_dtype dtype, int64_t rows, int64_t cols, bool transposed)
{
    agi_matrix x = {.dtype = dtype, .rows = rows, .cols = cols, .transposed = transposed};
    x.col_stride = agc_rng_chance(r, 0.2) ? 2 : 1;
    x.row_stride = cols * x.col_stride + (agc_rng_chance(r, 0.5) ? agc_rng_range(r, 0, 9) : 0);
    x.lengths = draw_lengths(r, &x);
    const int64_t n = (rows - 1) * x.row_stride + (cols - 1) * x.col_stride + 1;
    char *data = page_end_memory((size_t)n * ag_dtype_size(dtype));
    for (int64_t i = 0; i < n; i++) {
        agi_store(dtype, data, i, NAN);
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols && agi_row_is_valid(&x, i); j++) {
            agi_store(dtype, data, i * x.row_stride + j * x.col_stride, agc_rng_normal(r));
        }
    }
    x.data = data;
    return x;
}

/* A column of ones, all at one address: the layer adds biases and sums rows with it. */
static agi_matrix draw_ones(struct rng *r, ag_dtype dtype, int64_t rows, bool transposed)
{
    agi_matrix x = {.dtype = dtype, .rows = rows, .cols = 1, .col_stride = 1, .transposed = transposed};
    x.lengths = draw_lengths(r, &x);
    void *one = page_end_memory(ag_dtype_size(dtype));
    agi_store(dtype, one, 0, 1);
    x.data = one;
    return x;
}

static double element(const agi_matrix *x, int64_t row, int64_t col)
{
    const int64_t i = x->transposed ? col : row, j = x->transposed ? row : col;
    return agi_row_is_valid(x, i) ? agi_load(x->dtype, x->data, i * x->row_stride + j * x->col_stride) : 0;
}

static agi_product draw_product(struct rng *r, const kind *t, int64_t m, int64_t n, int64_t k)
{
    const bool ta = agc_rng_chance(r, 0.5), tb = agc_rng_chance(r, 0.5);
    agi_product p = {.b = draw_matrix(r, t->b, tb ? n : k, tb ? k : n, tb)};
    if ((ta ? m : k) == 1) {
        p.a = draw_ones(r, t->a, ta ? k : m, ta);
    } else {
        p.a = draw_matrix(r, t->a, ta ? k : m, ta ? m : k, ta);
    }
    return p;
}

/* A matrix after transposition, in float64. */
static double *dense(const agi_matrix *x, int64_t rows, int64_t cols)
{
    double *values = malloc((size_t)(rows * cols) * sizeof *values);
    test_need(values != NULL, "memory");
    for (int64_t i = 0; i < rows * cols; i++) {
        values[i] = element(x, i / cols, i % cols);
    }
    return values;
}

static void add_expected(sum *s, const agi_product *p)
{
    const int64_t m = s->op.m, n = s->op.n, depth = agi_depth(p);
    double *a = dense(&p->a, m, depth), *b = dense(&p->b, depth, n);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t k = 0; k < depth; k++) {
            for (int64_t j = 0; j < n; j++) {
                const double term = a[i * depth + k] * b[k * n + j];
                s->expected[i * n + j] += term;
                s->magnitude[i * n + j] += fabs(term);
            }
        }
    }
    s->depth += depth;
    free(a);
    free(b);
}

static void expect(sum *s)
{
    const agi_gemm_op *op = &s->op;
    for (int64_t e = 0; e < op->m * op->n; e++) {
        const double old = op->accumulate ? agi_load(op->dtype, s->before + GUARD, e) : 0;
        s->expected[e] = old;
        s->magnitude[e] = fabs(old);
    }
    for (int p = 0; p < op->n_products; p++) {
        add_expected(s, &op->products[p]);
    }
}

static int64_t draw_depth(struct rng *r, bool large)
{
    return agc_rng_chance(r, 0.2) ? 1 : large ? agc_rng_range(r, 300, 2400) : agc_rng_range(r, 1, 70);
}

static void draw_sum(struct rng *r, sum *s, const kind *t, bool large)
{
    *s = (sum){.op = {.dtype = t->c, .accumulate = agc_rng_chance(r, 0.3)}};
    agi_gemm_op *op = &s->op;
    op->m = agc_rng_chance(r, 0.1) ? 1 : agc_rng_range(r, 1, large ? 90 : 70);
    op->n = agc_rng_range(r, 1, large ? 300 : 70);
    op->n_products = (int)agc_rng_range(r, large ? 1 : 0, large ? 2 : 3);
    for (int p = 0; p < op->n_products; p++) {
        op->products[p] = draw_product(r, t, op->m, op->n, draw_depth(r, large));
    }
    s->bytes = (size_t)(op->m * op->n) * ag_dtype_size(t->c);
    s->before = malloc(s->bytes + 2 * GUARD);
    s->expected = calloc((size_t)(op->m * op->n), sizeof *s->expected);
    s->magnitude = calloc((size_t)(op->m * op->n), sizeof *s->magnitude);
    op->c = malloc(s->bytes + 2 * GUARD);
    test_need(s->before != NULL && s->expected != NULL && s->magnitude != NULL && op->c != NULL, "memory");
    memset(s->before, GUARD_BYTE, s->bytes + 2 * GUARD);
    for (int64_t e = 0; e < op->m * op->n; e++) {
        /* C may hold anything if it is not accumulated */
        agi_store(t->c, s->before + GUARD, e, op->accumulate ? agc_rng_normal(r) : NAN);
    }
    op->c = (char *)op->c + GUARD;
    expect(s);
}

static void free_sum(sum *s)
{
    free(s->before);
    free(s->expected);
    free(s->magnitude);
    free((char *)s->op.c - GUARD);
}

/* ---- One call ---- */

typedef struct {
    const char *name;
    ag_backend backend;
    ag_isa isa;
} variant;

static const variant variants[] = {
    {"reference", AG_BACKEND_REFERENCE, AG_ISA_AUTO},
    {"scalar", AG_BACKEND_CPU, AG_ISA_SCALAR},
    {"avx2", AG_BACKEND_CPU, AG_ISA_AVX2},
    {"avx512", AG_BACKEND_CPU, AG_ISA_AVX512},
    {"amx", AG_BACKEND_CPU, AG_ISA_AMX},
    {"neon", AG_BACKEND_CPU, AG_ISA_NEON},
};

static ag_plan *plan_for(const variant *v, const kind *t, int threads)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_plan *plan = NULL;
    options.backend = v->backend;
    options.isa = v->isa;
    options.threads = threads;
    char text[32];
    snprintf(text, sizeof text, "q1 d1 %s", t->c == AG_F64 ? "f64" : t->a == AG_BF16 ? "bf16" : "f32");
    test_need(ag_problem_parse(text, &p) == AG_OK && ag_plan_create(&plan, &p, &options) == AG_OK,
              "a plan for each instruction set that this processor has");
    return plan;
}

static void run(sum *sums, int n, const ag_plan *plan)
{
    agi_gemm_op ops[AGI_MAX_OPS];
    agi_gemm_space space;
    agi_arena arena = agi_arena_begin(NULL);
    agi_exec exec;
    CHECK_OK(agi_exec_begin(&exec, plan, NULL));
    agi_gemm_lay_out(&space, &arena, plan);
    void *memory = malloc(agi_arena_bytes(&arena));
    test_need(memory != NULL, "memory");
    arena = agi_arena_begin(memory);
    agi_gemm_lay_out(&space, &arena, plan);
    for (int i = 0; i < n; i++) {
        memcpy((char *)sums[i].op.c - GUARD, sums[i].before, sums[i].bytes + 2 * GUARD);
        ops[i] = sums[i].op;
    }
    CHECK_OK(agi_gemm(ops, n, plan, &exec, &space));
    free(memory);
}

static bool guards_hold(const sum *s)
{
    const unsigned char *c = s->op.c;
    bool hold = true;
    for (size_t i = 0; i < GUARD; i++) {
        hold &= c[s->bytes + i] == GUARD_BYTE && c[-(ptrdiff_t)i - 1] == GUARD_BYTE;
    }
    return hold;
}

/* The error may be half a unit in the last place of C (in float16 at least 2^-25, half of its smallest number), and the
 * rounding errors of the accumulator. */
static void check_sum(const sum *s, const variant *v, const kind *t, int seed)
{
    static const double unit[] = {0, 0x1p-53, 0x1p-24, 0x1p-11, 0x1p-8};
    const agi_gemm_op *op = &s->op;
    const double accumulator = (double)(s->depth + 2) * (t->c == AG_F64 ? unit[AG_F64] : unit[AG_F32]);
    int64_t wrong = -1;
    for (int64_t e = 0; e < op->m * op->n; e++) {
        const double got = agi_load(op->dtype, op->c, e), bound = accumulator * s->magnitude[e];
        const double rounding = unit[t->c] * (fabs(s->expected[e]) + bound) + 0x1p-25 * (t->c == AG_F16);
        if (!(fabs(got - s->expected[e]) <= bound + rounding)) {
            wrong = e;
        }
    }
    CHECK(wrong < 0, "%s %s seed %d, %lldx%lld, %d products, depth %lld: element %lld is %g instead of %g",
          v->name, t->name, seed, (long long)op->m, (long long)op->n, op->n_products, (long long)s->depth,
          (long long)wrong, wrong < 0 ? 0 : agi_load(op->dtype, op->c, wrong),
          wrong < 0 ? 0 : s->expected[wrong]);
    CHECK(guards_hold(s), "%s %s seed %d: bytes outside C were written", v->name, t->name, seed);
}

/* ---- Checks ---- */

enum { N_THREADS = 4 };
static const int threads[N_THREADS] = {1, 2, 3, 8};

/* Up to three ops in one call, for each number of threads. */
static void check_random(ag_plan *const plans[N_THREADS], const variant *v, const kind *t, int seed,
                         bool large)
{
    struct rng r;
    sum sums[3];
    char *bits[3];
    agc_rng_init(&r, (uint64_t)seed, large);
    const int n = large ? 1 : (int)agc_rng_range(&r, 1, 3);
    for (int i = 0; i < n; i++) {
        draw_sum(&r, &sums[i], t, large);
        bits[i] = malloc(sums[i].bytes);
        test_need(bits[i] != NULL, "memory");
    }
    for (int k = 0; k < N_THREADS; k++) {
        run(sums, n, plans[k]);
        for (int i = 0; i < n; i++) {
            if (k == 0) {
                check_sum(&sums[i], v, t, seed);
                memcpy(bits[i], sums[i].op.c, sums[i].bytes);
            }
            CHECK(memcmp(bits[i], sums[i].op.c, sums[i].bytes) == 0,
                  "%s %s seed %d: other bits on %d threads", v->name, t->name, seed, threads[k]);
        }
    }
    for (int i = 0; i < n; i++) {
        free_sum(&sums[i]);
        free(bits[i]);
    }
    free_maps();
}

static void check_kind(const variant *v, const kind *t)
{
    ag_plan *plans[N_THREADS];
    for (int k = 0; k < N_THREADS; k++) {
        plans[k] = plan_for(v, t, threads[k]);
    }
    /* if AG_TEST_COUNT is set, every path with fewer draws */
    const int all = test_count(1000) == 1000, small = all ? 50 : 20, large = all ? 3 : 2;
    for (int seed = 0; seed < test_count(small); seed++) {
        check_random(plans, v, t, seed, false);
    }
    for (int seed = 0; seed < large; seed++) {
        check_random(plans, v, t, seed, true);
    }
    for (int k = 0; k < N_THREADS; k++) {
        ag_plan_destroy(plans[k]);
    }
}

/* A product restores the caller's configuration of AMX tiles. */
static void check_tile_state(const variant *v)
{
#if defined(__x86_64__)
    struct rng r;
    sum s;
    unsigned char ours[64] = {1}, after[64];
    for (int t = 0; t < 3; t++) { /* three tiles of 8 rows of 32 bytes */
        ours[16 + 2 * t] = 32;
        ours[48 + t] = 8;
    }
    agc_rng_init(&r, 3, 0);
    draw_sum(&r, &s, &kinds[2], false);
    ag_plan *plan = plan_for(v, &kinds[2], 1);
    amx_here->load_config(ours);
    run(&s, 1, plan);
    amx_here->store_config(after);
    amx_here->release();
    CHECK(memcmp(ours, after, sizeof ours) == 0, "a product changed the caller's configuration of tiles");
    check_sum(&s, v, &kinds[2], 3);
    ag_plan_destroy(plan);
    free_sum(&s);
    free_maps();
#else
    (void)v;
#endif
}

int main(void)
{
    for (size_t n = 0; n < sizeof variants / sizeof variants[0]; n++) {
        const variant *v = &variants[n];
        if (!agi_cpu_supports(v->isa)) {
            printf("%s: not tested, this processor cannot run it\n", v->name);
            continue;
        }
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            check_kind(v, &kinds[k]);
        }
        if (v->isa == AG_ISA_AMX) {
            check_tile_state(v);
        }
    }
    return test_summary();
}
