/* Attention does not depend on the order of its rows: a permutation of the keys (and of V, the bias and the
 * mask with them) permutes dK, dV and dB and leaves the rest; a permutation of the queries permutes
 * everything that has query rows. Holds if nothing depends on positions: no causal, window, ALiBi, table,
 * dropout, and full lengths. */
#include "check/identities.h"

#include "check/rng.h"

#include <stdlib.h>
#include <string.h>

enum order { KEYS, QUERIES };

/* The axis of a tensor that counts keys or queries, or -1. */
static int axis_of(enum tensor t, enum order order)
{
    switch (agc_tensor_info[t].shape) {
    case SHAPE_Q:
    case SHAPE_O:
    case SHAPE_ROW: return order == QUERIES ? 2 : -1;
    case SHAPE_K:
    case SHAPE_V: return order == KEYS ? 2 : -1;
    case SHAPE_BIAS:
    case SHAPE_MASK: return order == KEYS ? 3 : 2;
    default: return -1;
    }
}

/* Returns x's tensor with entry permutation[n] of the axis moved to n, to be freed; NULL if there is no memory. */
static double *permuted(const struct arrays *x, enum tensor t, enum order order, const int64_t *permutation)
{
    double *from = agc_arrays_read_new(x, t);
    int axis = axis_of(t, order);
    if (from == NULL || axis < 0 || x->size[t][axis] == 1) {
        return from;
    }
    double *to = agc_alloc(agc_tensor_info[t].name, x->count[t], sizeof *to);
    int64_t n = x->size[t][axis], inner = axis == 2 ? x->size[t][3] : 1;
    for (int64_t e = 0; to != NULL && e < x->count[t]; e++) {
        int64_t outer = e / (n * inner), along = e / inner % n;
        to[e] = from[(outer * n + permutation[along]) * inner + e % inner];
    }
    free(from);
    return to;
}

/* NULL if there is no memory. */
static int64_t *random_permutation(uint64_t seed, int64_t n)
{
    struct rng r;
    int64_t *p = agc_alloc("a permutation", n, sizeof *p);
    agc_rng_init(&r, seed, 3 * T_FREE_STREAM + 1);
    for (int64_t i = 0; p != NULL && i < n; i++) {
        int64_t j = agc_rng_range(&r, 0, i);
        p[i] = p[j];
        p[j] = i;
    }
    return p;
}

/* Writes x's permuted inputs, tangents and cotangents to y. */
static ag_status permute_inputs(const struct arrays *x, struct arrays *y, enum order order,
                                const int64_t *permutation)
{
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (x->data[t] == NULL || agc_tensor_info[t].role == ROLE_OUTPUT) {
            continue;
        }
        double *values = permuted(x, t, order, permutation);
        if (values == NULL) {
            return AG_NO_MEMORY;
        }
        agc_arrays_write(y, t, values);
        free(values);
    }
    return AG_OK;
}

/* Compares y's outputs with x's permuted ones. */
static ag_status compare_outputs(const struct identity *id, const struct arrays *y, enum order order,
                                 const int64_t *permutation, struct worst *worst)
{
    const struct arrays *x = id->x;
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (x->data[t] == NULL || agc_tensor_info[t].role != ROLE_OUTPUT) {
            continue;
        }
        double *values = permuted(x, t, order, permutation);
        if (values == NULL) {
            return AG_NO_MEMORY;
        }
        agc_note_differences(worst, &id->bounds, t, agc_arrays_f64(y, t), values, x->count[t]);
        free(values);
    }
    return AG_OK;
}

static ag_status permute_run_compare(const struct identity *id, struct arrays *y, enum order order,
                                     struct worst *worst)
{
    const struct arrays *x = id->x;
    int64_t *permutation = random_permutation(x->seed, order == KEYS ? x->p->kv_len : x->p->q_len);
    ag_status status = permutation != NULL ? permute_inputs(x, y, order, permutation) : AG_NO_MEMORY;
    status = status == AG_OK ? agc_arrays_run_all(y) : status;
    status = status == AG_OK ? compare_outputs(id, y, order, permutation, worst) : status;
    free(permutation);
    return status;
}

static const char *why_not(const struct arrays *x)
{
    uint32_t flags = x->p->flags;
    return flags & AG_CAUSAL                ? "causal"
           : flags & AG_WINDOW              ? "window"
           : flags & (AG_ALIBI | AG_SLOPES) ? "alibi"
           : flags & AG_TABLE               ? "table"
           : flags & AG_PACKED              ? "packed"
           : x->p->dropout > 0              ? "dropout"
           : x->q_lengths != NULL           ? "lengths"
                                            : NULL;
}

ag_status agc_identity_permutations(struct identity *id)
{
    static const char *const names[] = {[KEYS] = "permutation of keys", [QUERIES] = "permutation of queries"};
    const char *reason = why_not(id->x);
    ag_status status = AG_OK;
    for (int order = KEYS; order <= QUERIES && status == AG_OK; order++) {
        struct arrays y;
        struct worst worst = WORST_NONE;
        if (reason != NULL) {
            agc_results_not_applicable(id->results, reason, names[order]);
            continue;
        }
        status = agc_arrays_clone_as(&y, id->x, AG_F64, id->options);
        if (status == AG_OK) {
            status = permute_run_compare(id, &y, (enum order)order, &worst);
            if (status == AG_OK) {
                agc_results_add_worst(id->results, &y, &worst, IDENTITY_LIMIT, "%s", names[order]);
            }
            agc_arrays_destroy(&y);
        }
    }
    return status;
}
