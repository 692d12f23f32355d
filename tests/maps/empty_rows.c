/* Nothing to attend to: empty batches, no queries, no keys, and rows that see no key, masked in every
 * way there is, with and without a sink. Such a row gives O = 0, tO = 0, and lse = -inf, mu = 0 or, with
 * a sink, lse = s_h, mu = ts_h; through it only the sink has derivatives. Nothing may become NaN, even
 * if the queries, cotangents and tangents of such rows, the keys and values that no query sees and
 * the biases of masked pairs are all NaN; nor if the o, to, mu and smu that a map is given are NaN in such rows. */
#include "check/error_rule.h"
#include "device.h"
#include "visible.h"

/* ---- Who sees, and who is seen ---------------------------------------------------------------------- */

static int row_sees(const struct arrays *x, int64_t b, int64_t h, int64_t i)
{
    for (int64_t j = 0; j < x->p->kv_len; j++) {
        if (visible(x, b, h, i, j)) {
            return 1;
        }
    }
    return 0;
}

static int key_is_seen(const struct arrays *x, int64_t b, int64_t kv_head, int64_t j)
{
    const int64_t group = x->p->heads / x->p->kv_heads;
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
        for (int64_t i = 0; i < x->p->q_len; i++) {
            if (visible(x, b, h, i, j)) {
                return 1;
            }
        }
    }
    return 0;
}

/* ---- Poison ------------------------------------------------------------------------------------- */

static void poison(struct arrays *x, enum tensor t, int64_t b, int64_t h, int64_t i)
{
    const double nan = (double)NAN;
    for (int64_t c = 0; c < x->size[t][3]; c++) {
        const size_t at = (size_t)agc_arrays_index(x, t, b, h, i, c) * element_size(x, t);
        ag_convert((char *)x->data[t] + at, x->dtype[t], &nan, AG_F64, 1);
    }
}

/* With a sink, the cotangent of lse has an effect in rows inside the sequence: there it is left alone. */
static void poison_row(struct arrays *x, int64_t b, int64_t h, int64_t i)
{
    static const enum tensor used[] = {T_Q, T_D_O, T_TQ, T_TD_O, T_SQ}, of_lse[] = {T_D_LSE, T_TD_LSE};
    for (int n = 0; n < 5; n++) {
        poison(x, used[n], b, h, i);
    }
    for (int n = 0; n < 2 && (i >= agc_arrays_q_length(x, b) || !(x->p->flags & AG_SINK)); n++) {
        poison(x, of_lse[n], b, h, i);
    }
}

/* The maps that are given what others wrote, and what they are given of a row. */
enum { GIVEN_MAPS = AG_MAP_VJP | AG_MAP_VJP_JVP | AG_MAP_JVP_JVP };

static void poison_given(struct arrays *x, int64_t b, int64_t h, int64_t i)
{
    static const enum tensor given[] = {T_O, T_TO, T_MU, T_SMU, T_O_LOW, T_TO_LOW};
    for (int n = 0; n < 6; n++) {
        if (x->data[given[n]] != NULL) {
            poison(x, given[n], b, h, i);
        }
    }
}

static void poison_unseen_rows(struct arrays *x,
                               void (*poison_one)(struct arrays *x, int64_t b, int64_t h, int64_t i))
{
    for (int64_t b = 0; b < x->p->batch; b++) {
        for (int64_t h = 0; h < x->p->heads; h++) {
            for (int64_t i = 0; i < x->p->q_len; i++) {
                if (!row_sees(x, b, h, i)) {
                    poison_one(x, b, h, i);
                }
            }
        }
    }
}

static void poison_unseen_keys(struct arrays *x)
{
    static const enum tensor of_keys[] = {T_K, T_V, T_TK, T_TV, T_SK, T_SV};
    for (int64_t b = 0; b < x->p->batch; b++) {
        for (int64_t h = 0; h < x->p->kv_heads; h++) {
            for (int64_t j = 0; j < x->p->kv_len; j++) {
                const int seen = key_is_seen(x, b, h, j);
                for (int n = 0; n < 6 && !seen; n++) {
                    poison(x, of_keys[n], b, h, j);
                }
            }
        }
    }
}

/* The bias has an element for each pair here. It becomes NaN for pairs that something else masks; its tangents become
 * NaN for all masked pairs. */
static void poison_masked_biases(struct arrays *x)
{
    const double nan = (double)NAN;
    for (int64_t e = 0; e < x->count[T_BIAS]; e++) {
        const int64_t j = e % x->p->kv_len, i = e / x->p->kv_len % x->p->q_len;
        const int64_t h = e / (x->p->kv_len * x->p->q_len) % x->p->heads;
        const int64_t b = e / (x->p->kv_len * x->p->q_len * x->p->heads);
        const size_t at = (size_t)e * element_size(x, T_BIAS);
        if (!visible(x, b, h, i, j)) {
            ag_convert((char *)x->data[T_TBIAS] + at, x->dtype[T_BIAS], &nan, AG_F64, 1);
            ag_convert((char *)x->data[T_SBIAS] + at, x->dtype[T_BIAS], &nan, AG_F64, 1);
        }
        if (!visible_before_bias(x, b, h, i, j)) {
            ag_convert((char *)x->data[T_BIAS] + at, x->dtype[T_BIAS], &nan, AG_F64, 1);
        }
    }
}

/* ---- Checks ------------------------------------------------------------------------------------- */

static void no_output_is_nan(const struct arrays *x, const char *text)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        for (int64_t n = 0; is_output(x, t, ALL_MAPS) && n < x->count[t]; n++) {
            const double value =
                element_value(x, t, (const char *)x->data[t] + (size_t)n * element_size(x, t));
            CHECK(isfinite(value) || (t == T_LSE && value == -(double)INFINITY),
                  "'%s': %s element %lld is %g", text, agc_tensor_info[t].name, (long long)n, value);
        }
    }
}

static void check_value(const struct arrays *x, enum tensor t, const int64_t at[4], double wanted,
                        const char *text)
{
    for (int64_t c = 0; c < x->size[t][3]; c++) {
        const double value = value_at(x, t, at[0], at[1], at[2], c);
        CHECK(value == wanted, "'%s': %s[%d][%d][%d][%d] is %g instead of %g", text, agc_tensor_info[t].name,
              (int)at[0], (int)at[1], (int)at[2], (int)c, value, wanted);
    }
}

/* Every row that sees nothing and every key that is not seen; returns how many rows there were. */
static int check_unseen(const struct arrays *x, const char *text)
{
    static const enum tensor zero_rows[] = {T_O, T_TO, T_DQ, T_TDQ, T_STO, T_NU},
                             zero_keys[] = {T_DK, T_DV, T_TDK, T_TDV};
    int rows = 0;
    for (int64_t b = 0; b < x->p->batch; b++) {
        for (int64_t h = 0; h < x->p->heads; h++) {
            for (int64_t i = 0; i < x->p->q_len; i++) {
                const int64_t at[4] = {b, h, i, 0};
                const int sinks = (x->p->flags & AG_SINK) && i < agc_arrays_q_length(x, b);
                if (row_sees(x, b, h, i)) {
                    continue;
                }
                rows++;
                check_value(x, T_LSE, at, sinks ? value_at(x, T_SINK, 0, h, 0, 0) : -(double)INFINITY, text);
                check_value(x, T_MU, at, sinks ? value_at(x, T_TSINK, 0, h, 0, 0) : 0, text);
                for (int n = 0; n < 6; n++) {
                    check_value(x, zero_rows[n], at, 0, text);
                }
            }
        }
        for (int64_t h = 0; h < x->p->kv_heads; h++) {
            for (int64_t j = 0; j < x->p->kv_len; j++) {
                const int64_t at[4] = {b, h, j, 0};
                const int seen = key_is_seen(x, b, h, j);
                for (int n = 0; n < 4 && !seen; n++) {
                    check_value(x, zero_keys[n], at, 0, text);
                }
            }
        }
    }
    return rows;
}

/* ---- Rows that see nothing ---------------------------------------------------------------------- */

/* Every third row of the bias masks all its keys. */
static void mask_rows_by_bias(struct arrays *x)
{
    const double masked = -(double)INFINITY;
    for (int64_t e = 0; e < x->count[T_BIAS]; e++) {
        if (e / x->size[T_BIAS][3] % 3 == 1) {
            ag_convert((char *)x->data[T_BIAS] + (size_t)e * element_size(x, T_BIAS), x->dtype[T_BIAS],
                       &masked, AG_F64, 1);
        }
    }
}

static void check_same(const struct arrays *x, void *const wanted[T_COUNT], uint32_t maps, const char *text)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (wanted[t] != NULL && is_output(x, t, maps)) {
            same_tensor(x, t, x->data[t], wanted[t], text);
        }
    }
}

static void check_poisoned_inputs(struct arrays *x, void *const wanted[T_COUNT], const char *text)
{
    const ag_problem *p = x->p;
    poison_unseen_rows(x, poison_row);
    poison_unseen_keys(x);
    if ((p->flags & AG_BIAS) && x->count[T_BIAS] == p->batch * p->heads * p->q_len * p->kv_len) {
        poison_masked_biases(x);
    }
    CHECK_OK(agc_arrays_run_all(x));
    check_same(x, wanted, ALL_MAPS, text);
}

/* Also the o that jvp is given; its results may have other bits in other rows. */
static void check_poisoned_given(struct arrays *x, void *const wanted[T_COUNT], const char *text)
{
    for (int map = 0; map < MAPS; map++) { /* each is given what the map before it wrote */
        CHECK_OK(agc_arrays_run(x, map_bit[map]));
        poison_unseen_rows(x, poison_given);
    }
    check_same(x, wanted, GIVEN_MAPS, text);
    run_given_jvp(x);
    memcpy(x->data[T_O], wanted[T_O], tensor_bytes(x, T_O));
    check_unseen(x, text);
}

/* Poisoned or not, the outputs are the same bits. */
static void check_rows(const char *text, const int64_t *q_lengths, const int64_t *kv_lengths,
                       int64_t q_offset)
{
    struct arrays x;
    void *wanted[T_COUNT];
    make_arrays(&x, text, NULL, 13);
    CHECK_OK(agc_arrays_add_low_halves(&x));
    if (q_lengths != NULL) {
        CHECK_OK(agc_arrays_random_lengths(&x));
        for (int64_t b = 0; b < x.p->batch; b++) {
            x.q_lengths[b] = q_lengths[b];
            x.kv_lengths[b] = kv_lengths[b] < x.p->kv_len ? kv_lengths[b] : x.p->kv_len;
        }
    }
    if (x.p->flags & AG_BIAS) {
        mask_rows_by_bias(&x);
    }
    x.args.q_offset = q_offset;
    CHECK_OK(agc_arrays_run_all(&x));
    no_output_is_nan(&x, text);
    CHECK(check_unseen(&x, text) > 0, "'%s' has no row that sees nothing: it tests nothing", text);
    keep_outputs(&x, wanted);
    check_poisoned_inputs(&x, wanted, text);
    check_poisoned_given(&x, wanted, text);
    free_outputs(wanted);
    agc_arrays_destroy(&x);
}

/* The size at which each way to hide rows is tested. */
struct hidden_size {
    const char *base, *keys, *few_keys; /* few_keys: fewer than queries */
    int64_t q_lengths[3], kv_lengths[3], q_offset;
};

static void hide_rows(const struct hidden_size *z, const char *dtype)
{
    static const char *const hidden[] = {
        "causal window=-1,-1", /* with the offset, which puts the first rows before every key */
        "window=0,0",
        "mask=b1qk",
        "mask=11q1 bias",
        "bias=b1q1",
        "causal bias mask softcap=2 dropout=0.2 table=3",
        "causal align=bottom-right",
        "causal align=bottom-right window=2,-1 alibi",
    };
    for (size_t n = 0; n < sizeof hidden / sizeof hidden[0]; n++) {
        char text[256];
        const int64_t offset = n < 2 ? z->q_offset : 0;
        snprintf(text, sizeof text, "b3 h4 kv2 %s %s %s %s", z->base, n == 6 ? z->few_keys : z->keys,
                 hidden[n], dtype);
        check_rows(text, z->q_lengths, z->kv_lengths, offset);
        if (n != 7) { /* bottom-right, full lengths, more keys than queries: all rows see some */
            check_rows(text, NULL, NULL, offset);
        }
    }
}

static void rows_that_see_nothing(void)
{
    static const struct hidden_size small = {"q6 d4 dv3", "k7", "k2", {4, 0, 6}, {7, 5, 0}, -2};
    static const char *const dtypes[] = {"f64", "f64 sink", "f32 sink", "bf16", "f16 sink"};
    for (size_t n = 0; n < sizeof dtypes / sizeof dtypes[0]; n++) {
        hide_rows(&small, dtypes[n]);
    }
}

/* Enough keys for AMX, in several of its tiles. Where everything is slow one dtype of the three. */
static void tiles_that_see_nothing(void)
{
    static const struct hidden_size large = {"q40 d12 dv6", "k70", "k30", {37, 0, 40}, {70, 33, 0}, -35};
    hide_rows(&large, "bf16 sink");
    if (test_is_slow()) {
        return;
    }
    hide_rows(&large, "bf16");
    hide_rows(&large, "bf16 out=f32");
}

/* ---- Sizes of zero ------------------------------------------------------------------------------ */

/* No pair is visible: all but lse, mu and dsink is zero. */
static void check_nothing(const char *text)
{
    struct arrays x;
    make_arrays(&x, text, NULL, 3);
    CHECK(agc_arrays_run_all(&x) == AG_OK, "'%s': %s", text, ag_last_message());
    no_output_is_nan(&x, text);
    for (enum tensor t = 0; t < T_COUNT; t++) {
        const int only_zeros = t != T_LSE && t != T_MU && agc_tensor_info[t].shape != SHAPE_SINK;
        for (int64_t e = 0; only_zeros && is_output(&x, t, ALL_MAPS) && e < x.count[t]; e++) {
            const double value =
                element_value(&x, t, (const char *)x.data[t] + (size_t)e * element_size(&x, t));
            CHECK(value == 0, "'%s': %s element %d is %g", text, agc_tensor_info[t].name, (int)e, value);
        }
    }
    agc_arrays_destroy(&x);
}

static void sizes_of_zero(void)
{
    static const int shapes[][3] = {{0, 1, 1}, {2, 0, 1}, {2, 1, 0}, {2, 0, 0}, {0, 0, 0}};
    static const struct {
        int queries, keys;
        const char *rest;
    } sizes[] = {{3, 4, "d3 dv2 f64"}, {100, 130, "d40 dv24 bf16"}};
    static const char *const features[] = {
        "",          "sink", "causal align=bottom-right sink bias mask table=2 alibi",
        "bias sink", "mask", "bias=1111 mask=1111 dropout=0.5 softcap=2 table=1,shared window=1,1"};
    enum { N_SHAPES = sizeof shapes / sizeof shapes[0], N_FEATURES = sizeof features / sizeof features[0] };
    for (int n = 0; n < 2 * 2 * N_SHAPES * N_FEATURES; n++) {
        const int *shape = shapes[n / 4 % N_SHAPES], size = n & 1;
        const int queries = shape[1] * sizes[size].queries, keys = shape[2] * sizes[size].keys;
        char packed[32] = "", text[256];
        if (n & 2) {
            snprintf(packed, sizeof packed, "packed=%d,%d", 2 * queries, 2 * keys);
        }
        snprintf(text, sizeof text, "b%d h2 q%d k%d %s %s %s", shape[0], queries, keys, sizes[size].rest,
                 packed, features[n / 4 / N_SHAPES]);
        check_nothing(text);
    }
}

/* Without keys all weight is the sink's: dsink = sum dL and tdsink = sum tdL over the rows of a head. */
static void without_keys_the_sink_takes_all(void)
{
    struct arrays x;
    make_arrays(&x, "b3 h2 q5 k0 d3 f64 sink", NULL, 17);
    CHECK_OK(agc_arrays_random_lengths(&x));
    CHECK_OK(agc_arrays_run_all(&x));
    for (int64_t h = 0; h < 2; h++) {
        double dsink = 0, tdsink = 0;
        for (int64_t b = 0; b < 3; b++) {
            for (int64_t i = 0; i < agc_arrays_q_length(&x, b); i++) {
                dsink += value_at(&x, T_D_LSE, b, h, i, 0);
                tdsink += value_at(&x, T_TD_LSE, b, h, i, 0);
            }
        }
        const double got = value_at(&x, T_DSINK, 0, h, 0, 0), tgot = value_at(&x, T_TDSINK, 0, h, 0, 0);
        CHECK(fabs(got - dsink) < 1e-14 * 15, "dsink[%d] is %.17g instead of %.17g", (int)h, got, dsink);
        CHECK(fabs(tgot - tdsink) < 1e-14 * 15, "tdsink[%d] is %.17g instead of %.17g", (int)h, tgot, tdsink);
    }
    agc_arrays_destroy(&x);
}

/* A sink of minus infinity is no sink: it takes no weight, and no row becomes NaN by it. */
static void a_sink_that_takes_nothing(void)
{
    struct arrays with, without;
    make_arrays(&without, "b2 h2 q4 k5 d3 f64 causal mask", NULL, 19);
    make_arrays(&with, "b2 h2 q4 k5 d3 f64 causal mask sink", NULL, 19);
    for (int h = 0; h < 2; h++) {
        agc_arrays_f64(&with, T_SINK)[h] = -INFINITY;
    }
    CHECK_OK(agc_arrays_run(&without, AG_MAP_FORWARD));
    CHECK_OK(agc_arrays_run(&with, AG_MAP_FORWARD));
    same_tensor(&with, T_O, with.data[T_O], without.data[T_O], "sink -inf");
    same_tensor(&with, T_LSE, with.data[T_LSE], without.data[T_LSE], "sink -inf");
    agc_arrays_destroy(&with);
    agc_arrays_destroy(&without);
}

/* Minus infinity in a table hides the pairs at its distances: here those of a query and the key at its own position,
 * the only one that the first query sees if causal. */
static void a_table_that_hides(const char *text)
{
    struct error_entry entries[T_COUNT];
    struct arrays x;
    int count = 0;
    make_arrays(&x, text, NULL, 23);
    double *table = test_read(&x, T_TABLE);
    for (int64_t e = 0; e < x.count[T_TABLE]; e++) {
        const int64_t column = e % x.size[T_TABLE][3];
        const int64_t own = x.buckets != NULL ? x.buckets[x.p->table_radius] : x.p->table_radius;
        table[e] = column == own ? -INFINITY : table[e];
    }
    agc_arrays_write(&x, T_TABLE, table);
    free(table);
    CHECK_OK(agc_arrays_run_all(&x));
    no_output_is_nan(&x, text);
    CHECK(check_unseen(&x, text) > 0, "'%s' has no row that sees nothing: it tests nothing", text);
    CHECK_OK(agc_arrays_run(&x, AG_MAP_FORWARD)); /* jvp wrote lse and o last */
    check_unseen(&x, text);
    CHECK_OK(agc_error_rule(&x, 1, entries, &count));
    for (int n = 0; n < count; n++) {
        CHECK(agc_error_entry_passed(&entries[n]), "'%s': %s: error %.2e of %.2e", text,
              agc_tensor_info[entries[n].t].name, entries[n].error, entries[n].limit);
    }
    agc_arrays_destroy(&x);
}

static void tables_that_hide(void)
{
    a_table_that_hides("b2 h2 q6 k7 d4 dv3 f64 causal table=2");
    a_table_that_hides("b2 h4 kv2 q20 k30 d16 f32 window=0,0 table=3 sink");
    a_table_that_hides("b2 h2 q40 k70 d32 bf16 causal table=9,shared");
    a_table_that_hides("b2 h4 kv2 q70 k90 d64 bf16 causal table=40 sink");
    a_table_that_hides("h2 q150 k140 d128 f16 causal alibi table=200");
    a_table_that_hides("h2 q1 k300 d64 bf16 causal table=4 sink");
}

int main(void)
{
    tables_that_hide();
    rows_that_see_nothing();
    tiles_that_see_nothing();
    sizes_of_zero();
    without_keys_the_sink_takes_all();
    a_sink_that_takes_nothing();
    return test_maps_summary();
}
