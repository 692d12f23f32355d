/* bfloat16 problems with float32 outputs (out=f32) or gradients (grad=f32). A plan stays on the instruction set of
 * the same problem without them: on AMX, where weights have 16 bits, results keep the error rule, and float32
 * outputs are not rounded to 16 bits. Vector instruction sets, chosen by name (isa=avx512), compute all of it in
 * float32: exact to 1e-5. */
#define _POSIX_C_SOURCE 200809L

#include <math.h>
#include <stdbool.h>

#include "check/error_rule.h"
#include "outputs.h"

static const char *const wider[] = {"out=f32", "grad=f32", "out=f32 grad=f32"};
enum { WIDER = sizeof wider / sizeof wider[0] };

/* Plain and with features, edges of tiles, grouped heads, splits of keys and of queries, packed sequences. */
static const char *const problems[] = {
    "h2 q130 k200 d64 bf16",
    "h2 q70 k300 d128 bf16 causal",
    "h4 kv2 q150 k130 d40 dv72 bf16 window=40,10 softcap=2 dropout=0.2",
    "b2 h2 q100 k90 d33 dv20 bf16 bias=11qk mask=b11k sink table=5",
    "b5 h2 q150 k200 packed=200,300 d64 bf16 causal alibi",
    "h2 q3 k3000 d64 bf16",
    "h1 q900 k100 d32 bf16 sink",
};
enum { PROBLEMS = sizeof problems / sizeof problems[0] };

static bool is_available(ag_isa wanted)
{
    bool available = false;
    for (int32_t n = 0; n < ag_backend_isa_count(AG_BACKEND_CPU); n++) {
        ag_isa_info isa = {.struct_size = sizeof isa};
        CHECK_OK(ag_backend_isa(AG_BACKEND_CPU, n, &isa));
        available = available || (isa.isa == wanted && isa.available);
    }
    return available;
}

static void make_wide(struct arrays *x, const char *problem, const char *words, ag_isa isa, char text[256])
{
    ag_options options = AG_OPTIONS_INIT;
    options.backend = AG_BACKEND_CPU;
    options.isa = isa;
    options.threads = 2;
    snprintf(text, 256, "%s %s", problem, words);
    make_arrays(x, text, &options, 17);
}

/* The instruction set that AG_ISA_AUTO chooses. */
static ag_isa chosen(const char *problem, const char *words)
{
    struct arrays x;
    char text[256];
    ag_plan_info info = {.struct_size = sizeof info};
    make_wide(&x, problem, words, AG_ISA_AUTO, text);
    CHECK_OK(ag_plan_info_get(x.plan, &info));
    agc_arrays_destroy(&x);
    return info.isa;
}

static void choice_is_that_of_16_bits(bool has_amx)
{
    static const char *const few_keys = "h2 q70 k23 d64 bf16";
    for (int w = 0; w < WIDER; w++) {
        for (int n = 0; n < PROBLEMS; n++) {
            const ag_isa narrow = chosen(problems[n], ""), wide = chosen(problems[n], wider[w]);
            CHECK(wide == narrow, "'%s %s' is on isa %d, in 16 bits on isa %d", problems[n], wider[w], wide,
                  narrow);
            CHECK(!has_amx || wide == AG_ISA_AMX, "'%s %s' is on isa %d, not on AMX", problems[n], wider[w],
                  wide);
        }
        CHECK_INT(chosen(few_keys, wider[w]), chosen(few_keys, ""));
    }
}

/* Few elements of a float32 output are bfloat16: it was not rounded to 16 bits on its way. Those of a row that sees one
 * key are elements of V. */
static void has_more_than_16_bits(const struct arrays *x, enum tensor t, const char *text)
{
    int64_t values = 0, narrow = 0;
    for (int64_t n = 0; n < x->count[t] && x->dtype[t] == AG_F32; n++) {
        uint32_t bits;
        memcpy(&bits, (const float *)x->data[t] + n, sizeof bits);
        values += bits != 0;
        narrow += bits != 0 && (bits & 0xffff) == 0;
    }
    CHECK(20 * narrow <= values, "'%s': %lld of %lld elements of %s have 16 bits", text, (long long)narrow,
          (long long)values, agc_tensor_info[t].name);
}

/* The error rule without its middle term, 8 eps A, which in 16 bits may be as large as the result. A sink or a table
 * has few elements, sums over all pairs: for these the whole rule. */
static bool is_within_rule(const struct error_entry *e)
{
    const bool few = e->t == T_DSINK || e->t == T_TDSINK || e->t == T_DTABLE || e->t == T_TDTABLE;
    return few ? agc_error_entry_passed(e) : e->error <= fmax(2 * e->baseline, 4e-3 * e->truth);
}

static void check_on_amx(const char *problem, const char *words)
{
    struct arrays x;
    struct error_entry entries[T_COUNT];
    char text[256];
    int count = 0;
    make_wide(&x, problem, words, AG_ISA_AUTO, text);
    CHECK_OK(agc_arrays_run_all(&x));
    CHECK_OK(agc_error_rule(&x, 2, entries, &count));
    for (int n = 0; n < count; n++) {
        const struct error_entry *e = &entries[n];
        CHECK(is_within_rule(e), "'%s': %s: |x - truth| %g > %g; unfused %g, A %g, |truth| %g", text,
              agc_tensor_info[e->t].name, e->error, e->limit, e->baseline, e->size, e->truth);
        has_more_than_16_bits(&x, e->t, text);
    }
    CHECK(count >= 10, "'%s': %d outputs compared", text, count);
    agc_arrays_destroy(&x);
}

/* dP and D must have the same dO: with V far from zero, D of another one would be far from the mean of dP. */
static void values_far_from_zero(void)
{
    struct arrays x;
    struct error_entry entries[T_COUNT];
    char text[256];
    int count = 0;
    make_wide(&x, "h2 q130 k200 d64 bf16", "out=f32 grad=f32", AG_ISA_AUTO, text);
    double *v = test_read(&x, T_V);
    for (int64_t n = 0; n < x.count[T_V]; n++) {
        v[n] += 30;
    }
    agc_arrays_write(&x, T_V, v);
    free(v);
    CHECK_OK(agc_arrays_run_all(&x));
    CHECK_OK(agc_error_rule(&x, 2, entries, &count));
    for (int n = 0; n < count; n++) {
        const struct error_entry *e = &entries[n];
        CHECK(e->error <= 1e-2 * e->truth, "'%s', V + 30: %s: |x - truth| %g, |truth| %g", text,
              agc_tensor_info[e->t].name, e->error, e->truth);
    }
    agc_arrays_destroy(&x);
}

static double relative_error(const struct arrays *x, const struct arrays *truth, enum tensor t)
{
    double *got = test_read(x, t), *wanted = test_read(truth, t), error = 0, size = 0;
    for (int64_t n = 0; n < x->count[t]; n++) {
        error += (got[n] - wanted[n]) * (got[n] - wanted[n]);
        size += wanted[n] * wanted[n];
    }
    free(got);
    free(wanted);
    return sqrt(error / size);
}

static void vectors_are_exact(const char *problem, const ag_isa_info *isa)
{
    struct arrays x, truth;
    char text[256];
    ag_options reference = AG_OPTIONS_INIT;
    ag_plan_info info = {.struct_size = sizeof info};
    reference.backend = AG_BACKEND_REFERENCE;
    make_wide(&x, problem, "out=f32 grad=f32 aux=f32", isa->isa, text);
    CHECK_OK(ag_plan_info_get(x.plan, &info));
    CHECK_INT(info.isa, isa->isa);
    CHECK_OK(agc_arrays_run_all(&x));
    test_need(agc_arrays_clone_as(&truth, &x, AG_F64, &reference) == AG_OK, "no float64 problem");
    CHECK_OK(agc_arrays_run_all(&truth));
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(&x, t, ALL_MAPS) && t != T_LSE) { /* lse of a row that sees no key is infinite */
            const double error = relative_error(&x, &truth, t);
            CHECK(error <= 1e-5, "'%s' on %s: %s has a relative error of %g", text, isa->name,
                  agc_tensor_info[t].name, error);
        }
    }
    agc_arrays_destroy(&truth);
    agc_arrays_destroy(&x);
}

int main(void)
{
    const bool has_amx = is_available(AG_ISA_AMX);
    unsetenv("ATTNGRAD_ISA"); /* what the library chooses by itself is tested */
    unsetenv("ATTNGRAD_BACKEND");
    choice_is_that_of_16_bits(has_amx);
    /* If AG_TEST_COUNT is set, each problem with one of the wider dtypes in turn. */
    const int all = test_count(1000) == 1000;
    for (int n = 0; n < PROBLEMS * WIDER && has_amx; n++) {
        if (all || n / WIDER % WIDER == n % WIDER) {
            check_on_amx(problems[n / WIDER], wider[n % WIDER]);
        }
    }
    if (has_amx) {
        values_far_from_zero();
    } else {
        printf("results on AMX: not tested, this processor does not have it\n");
    }
    for (int32_t n = 0; n < ag_backend_isa_count(AG_BACKEND_CPU); n++) {
        ag_isa_info isa = {.struct_size = sizeof isa};
        CHECK_OK(ag_backend_isa(AG_BACKEND_CPU, n, &isa));
        if (!isa.available) {
            printf("%s: not tested, this machine or this build does not have it\n", isa.name);
        }
        for (int p = 0; p < PROBLEMS && isa.available && isa.isa != AG_ISA_AMX;
             p += 2) { /* every other one */
            vectors_are_exact(problems[p], &isa);
        }
    }
    return test_summary();
}
