/* Shared by the tests of whole maps: calling a map by its index, making arrays from a text, comparing outputs
 * bit by bit. A plan on a GPU runs on copies of the arrays. */
#ifndef AG_TEST_OUTPUTS_H
#define AG_TEST_OUTPUTS_H

#include "check/stage.h"
#include "test.h"

enum { ALL_MAPS = AG_MAP_FORWARD | AG_MAP_VJP | AG_MAP_JVP | AG_MAP_VJP_JVP | AG_MAP_JVP_JVP, MAPS = 5 };

/* In the order in which the later maps read what the earlier ones wrote. */
static const uint32_t map_bit[MAPS] = {AG_MAP_FORWARD, AG_MAP_VJP, AG_MAP_JVP, AG_MAP_VJP_JVP,
                                       AG_MAP_JVP_JVP};
static const char *const map_name[MAPS] = {"forward", "vjp", "jvp", "vjp_jvp", "jvp_jvp"};

static inline ag_status call_map(int map, const ag_plan *plan, const ag_args *args, const ag_exec *exec,
                                 void *workspace, size_t bytes)
{
    static ag_status (*const maps[MAPS])(const ag_plan *, const ag_args *, const ag_exec *, void *,
                                         size_t) = {ag_forward, ag_vjp, ag_jvp, ag_vjp_jvp, ag_jvp_jvp};
    return exec == NULL ? agc_run_map(plan, map_bit[map], args, workspace, bytes)
                        : maps[map](plan, args, exec, workspace, bytes);
}

/* Makes the arrays of a problem in text form; ends the test program if it cannot. */
static inline void make_arrays(struct arrays *x, const char *text, const ag_options *options, uint64_t seed)
{
    ag_problem p = AG_PROBLEM_INIT;
    if (ag_problem_parse(text, &p) != AG_OK || agc_arrays_create(x, &p, options, seed) != AG_OK ||
        agc_arrays_add_second_direction(x) != AG_OK) {
        printf("'%s': %s\n", text, ag_last_message());
        exit(1);
    }
}

/* The values of a tensor, to be freed by free(); never NULL. */
static inline double *test_read(const struct arrays *x, enum tensor t)
{
    double *values = agc_arrays_read_new(x, t);
    test_need(values != NULL, "no memory");
    return values;
}

static inline size_t element_size(const struct arrays *x, enum tensor t)
{
    return agc_element_size(x, t);
}

static inline size_t tensor_bytes(const struct arrays *x, enum tensor t)
{
    return (size_t)x->count[t] * element_size(x, t);
}

/* Does the problem have this tensor, and does one of these maps write it? */
static inline int is_output(const struct arrays *x, enum tensor t, uint32_t maps)
{
    return (agc_tensor_info[t].writers & maps) != 0 && x->data[t] != NULL && x->count[t] > 0;
}

static inline double element_value(const struct arrays *x, enum tensor t, const void *at)
{
    double value = 0;
    ag_convert(&value, AG_F64, at, x->dtype[t], 1);
    return value;
}

/* jvp that is given o and lse, which an earlier map wrote: writes to, its low half and mu. */
static inline void run_given_jvp(struct arrays *x)
{
    static const enum tensor written[] = {T_TO, T_TO_LOW, T_MU};
    for (size_t n = 0; n < sizeof written / sizeof written[0]; n++) {
        if (x->data[written[n]] != NULL) {
            memset(x->data[written[n]], 0xff, tensor_bytes(x, written[n])); /* NaN in every dtype */
        }
    }
    x->args.flags |= AG_GIVEN_O;
    CHECK_OK(agc_run_map(x->plan, AG_MAP_JVP, &x->args, x->workspace, x->workspace_bytes));
    x->args.flags &= ~(uint32_t)AG_GIVEN_O;
}

/* Compares two tensors of the same layout bit by bit; prints one line about the first difference. */
static inline int same_tensor(const struct arrays *x, enum tensor t, const void *got, const void *wanted,
                              const char *label)
{
    const size_t size = element_size(x, t);
    for (int64_t n = 0; n < x->count[t]; n++) {
        const char *a = (const char *)got + (size_t)n * size, *b = (const char *)wanted + (size_t)n * size;
        if (memcmp(a, b, size) != 0) {
            return CHECK(0, "%s: %s element %lld of %lld is %.17g instead of %.17g", label,
                         agc_tensor_info[t].name, (long long)n, (long long)x->count[t],
                         element_value(x, t, a), element_value(x, t, b));
        }
    }
    return CHECK(1, "%s", label);
}

/* Compares all outputs. Both must have the same problem and layout. */
static inline void same_outputs(const struct arrays *got, const struct arrays *wanted, uint32_t maps,
                                const char *label)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(wanted, t, maps)) {
            same_tensor(wanted, t, got->data[t], wanted->data[t], label);
        }
    }
}

/* Copies every output, to compare with later; free each copy. */
static inline void keep_outputs(const struct arrays *x, void *kept[T_COUNT])
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        kept[t] = NULL;
        if (is_output(x, t, ALL_MAPS)) {
            kept[t] = test_alloc(x->count[t], element_size(x, t));
            memcpy(kept[t], x->data[t], tensor_bytes(x, t));
        }
    }
}

static inline void put_back(struct arrays *x, void *kept[T_COUNT])
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (kept[t] != NULL) {
            memcpy(x->data[t], kept[t], tensor_bytes(x, t));
        }
    }
}

static inline void free_outputs(void *kept[T_COUNT])
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        free(kept[t]);
    }
}

/* A problem with every feature, padded or packed; append a dtype. */
#define EVERY_FEATURE                                                                                        \
    "b3 h4 kv2 q7 k9 d5 dv3 window=6,4 softcap=3 dropout=0.2 sink bias=1hqk mask=b1qk table=4,3 "            \
    "alibi=slopes head_offset=2 "
#define EVERY_FEATURE_PACKED                                                                                 \
    "b3 h4 kv2 q7 k9 d5 dv3 packed=15,20 causal align=bottom-right softcap=3 dropout=0.2 sink "              \
    "bias=b11k mask=1hq1 table=4,shared alibi "

#endif
