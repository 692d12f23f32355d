/* Compares packed sequences with the same sequences padded, bit for bit: the maps with every feature,
 * with empty sequences, and with NaN in all rows that belong to no sequence. Such rows become zero, with lse
 * minus infinity. */
#include "device.h"
#include "outputs.h"

#include <math.h>

enum { BATCH = 5 };

static const struct {
    const char *name;
    int64_t q[BATCH], k[BATCH];
} lengths[] = {
    {"all full", {6, 6, 6, 6, 6}, {8, 8, 8, 8, 8}},
    {"different", {1, 6, 3, 2, 5}, {8, 1, 4, 7, 2}},
    {"some empty", {0, 6, 0, 4, 0}, {3, 0, 8, 2, 0}},
    {"first and last empty", {0, 2, 6, 1, 0}, {0, 8, 3, 6, 0}},
    {"all empty", {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}},
    {"no keys", {6, 1, 2, 3, 4}, {0, 0, 0, 0, 0}},
};

static int has_key_rows(enum tensor t)
{
    return agc_tensor_info[t].shape == SHAPE_K || agc_tensor_info[t].shape == SHAPE_V;
}

static int has_rows(enum tensor t)
{
    return agc_tensor_info[t].shape <= SHAPE_ROW;
}

static int64_t rows_of(const struct arrays *x, enum tensor t, int64_t b)
{
    return has_key_rows(t) ? agc_arrays_k_length(x, b) : agc_arrays_q_length(x, b);
}

/* q_times, k_times: a sequence has so many times the listed lengths; q_times 0: one query, unless it has none. */
static void set_lengths(struct arrays *packed, struct arrays *padded, size_t n, int64_t q_times,
                        int64_t k_times)
{
    padded->args.q_lengths = padded->q_lengths = test_alloc(BATCH, sizeof(int64_t));
    padded->args.kv_lengths = padded->kv_lengths = test_alloc(BATCH, sizeof(int64_t));
    for (int b = 0; b < BATCH; b++) {
        padded->q_lengths[b] = q_times == 0 ? lengths[n].q[b] > 0 : q_times * lengths[n].q[b];
        padded->kv_lengths[b] = k_times * lengths[n].k[b];
        packed->q_packed[b + 1] = packed->q_packed[b] + padded->q_lengths[b];
        packed->k_packed[b + 1] = packed->k_packed[b] + padded->kv_lengths[b];
    }
}

static void fill_with_nan(struct arrays *x, enum tensor t)
{
    for (int64_t n = 0; n < x->count[t]; n++) {
        const double nan = (double)NAN;
        ag_convert((char *)x->data[t] + (size_t)n * element_size(x, t), x->dtype[t], &nan, AG_F64, 1);
    }
}

static char *at(const struct arrays *x, enum tensor t, int64_t b, int64_t h, int64_t i)
{
    return (char *)x->data[t] + (size_t)agc_arrays_index(x, t, b, h, i, 0) * element_size(x, t);
}

/* The packed inputs become those of the padded form; rows of no sequence become NaN in both. */
static void share_inputs(struct arrays *packed, struct arrays *padded)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (packed->data[t] == NULL || agc_tensor_info[t].writers != 0) {
            continue;
        }
        if (!has_rows(t)) {
            memcpy(packed->data[t], padded->data[t], tensor_bytes(padded, t));
            continue;
        }
        const size_t row = (size_t)padded->size[t][3] * element_size(padded, t);
        fill_with_nan(packed, t);
        for (int64_t b = 0; b < BATCH; b++) {
            for (int64_t h = 0; h < padded->size[t][1]; h++) {
                for (int64_t i = 0; i < rows_of(padded, t, b); i++) {
                    memcpy(at(packed, t, b, h, i), at(padded, t, b, h, i), row);
                }
            }
        }
        fill_with_nan(padded, t);
        for (int64_t b = 0; b < BATCH; b++) {
            for (int64_t h = 0; h < padded->size[t][1]; h++) {
                for (int64_t i = 0; i < rows_of(padded, t, b); i++) {
                    memcpy(at(padded, t, b, h, i), at(packed, t, b, h, i), row);
                }
            }
        }
    }
}

/* A row of no sequence: zero, but minus infinity in lse. */
static void check_unused_row(const struct arrays *x, enum tensor t, const char *row, const char *label)
{
    for (int64_t c = 0; c < x->size[t][3]; c++) {
        const double value = element_value(x, t, row + (size_t)c * element_size(x, t));
        CHECK(value == (t == T_LSE ? -(double)INFINITY : 0), "%s: %s of a row of no sequence is %g", label,
              agc_tensor_info[t].name, value);
    }
}

static void compare(const struct arrays *packed, const struct arrays *padded, enum tensor t,
                    const char *label)
{
    const int64_t *size = padded->size[t];
    const size_t row = (size_t)size[3] * element_size(padded, t);
    for (int64_t b = 0; b < BATCH; b++) {
        for (int64_t h = 0; h < size[1]; h++) {
            for (int64_t i = 0; i < size[2]; i++) {
                if (i >= rows_of(padded, t, b)) {
                    check_unused_row(padded, t, at(padded, t, b, h, i), label);
                    continue;
                }
                const char *got = at(packed, t, b, h, i), *wanted = at(padded, t, b, h, i);
                CHECK(memcmp(got, wanted, row) == 0,
                      "%s: %s[%d][%d][%d] begins with %.17g packed, %.17g padded", label,
                      agc_tensor_info[t].name, (int)b, (int)h, (int)i, element_value(packed, t, got),
                      element_value(padded, t, wanted));
            }
        }
    }
    const int64_t used = has_key_rows(t) ? packed->k_packed[BATCH] : packed->q_packed[BATCH];
    for (int64_t h = 0; h < size[1]; h++) {
        for (int64_t i = used; i < packed->size[t][2]; i++) {
            check_unused_row(packed, t, at(packed, t, 0, h, i), label);
        }
    }
}

/* q_times, k_times: as in set_lengths. */
static void check_case(const char *heads, const char *features, const char *dtype, size_t n, int q_times,
                       int k_times)
{
    const int longest_q = q_times == 0 ? 1 : 6 * q_times, longest_k = 8 * k_times;
    struct arrays packed, padded;
    char text[256], label[320];
    snprintf(text, sizeof text, "b5 %s q%d k%d %s %s", heads, longest_q, longest_k, features, dtype);
    make_arrays(&padded, text, NULL, 77 + n);
    snprintf(text, sizeof text, "b5 %s q%d k%d packed=%d,%d %s %s", heads, longest_q, longest_k,
             BATCH * longest_q + 3, BATCH * longest_k + 3, features, dtype);
    make_arrays(&packed, text, NULL, 77 + n);
    snprintf(label, sizeof label, "'%s', lengths %s", text, lengths[n].name);
    CHECK_OK(agc_arrays_add_low_halves(&packed));
    CHECK_OK(agc_arrays_add_low_halves(&padded));
    set_lengths(&packed, &padded, n, q_times, k_times);
    share_inputs(&packed, &padded);
    padded.args.batch_offset = packed.args.batch_offset = 3;
    CHECK_OK(agc_arrays_run_all(&packed));
    CHECK_OK(agc_arrays_run_all(&padded));
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(&padded, t, ALL_MAPS)) {
            if (has_rows(t)) {
                compare(&packed, &padded, t, label);
            } else {
                same_tensor(&padded, t, packed.data[t], padded.data[t], label);
            }
        }
    }
    agc_arrays_destroy(&padded);
    agc_arrays_destroy(&packed);
}

int main(void)
{
    static const char *const features[] = {
        "",
        "causal",
        "causal align=bottom-right window=3,-1",
        "dropout=0.3",
        "alibi",
        "table=4",
        "bias",
        "bias=b1q1 mask=1h1k",
        "sink softcap=2 causal",
        "align=bottom-right window=5,0 softcap=3 dropout=0.2 sink bias=1hqk mask=b1qk table=4,3 alibi",
        "window=2,2 sink bias=b11k mask dropout=0.5 table=2 alibi=slopes head_offset=3",
    };
    static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};
    const int several_tiles = test_count(1000) >= 500;
    if (!several_tiles) {
        printf("sequences of several tiles: not run, AG_TEST_COUNT asks for little\n");
    }
    for (size_t f = 0; f < sizeof features / sizeof features[0]; f++) {
        for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
            check_case("h4 kv2 d5 dv3", features[f], dtypes[(f + n) % 4], n, 1, 1);
            if (several_tiles) {
                check_case("h2 kv1 d5 dv3", features[f], dtypes[(f + n) % 4], n, 30, 30);
            }
        }
    }
    /* Small heads: a sequence without padding takes the small-head path, a padded one does not. */
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
        check_case("h3 d16 dv32", "", "f32", n, 1, 1);
        check_case("h3 d16 dv32", "", "f64", n, 1, 1);
    }
    /* One query and many keys: GPU kernels split the keys, whose number may end inside a split. */
    for (size_t n = 0; n < 4; n++) {
        check_case("h2 kv1 d8", n == 2 ? "causal align=bottom-right sink" : "", dtypes[(n + 2) % 4], n, 0,
                   65);
    }
    return test_maps_summary();
}
