/* Numbers the sets of rows by the axes of the variable: see disjoint_rows.h. */
#include "check/disjoint_rows.h"

#include <stdlib.h>

/* The axes of a variable; those of one sequence if it is packed. */
struct axes {
    int64_t size[4];
    int keys; /* is it k or v? then all positions of a sequence reach the same rows */
};

static struct axes axes_of(const struct arrays *x, enum tensor t)
{
    struct axes a = {{x->size[t][0], x->size[t][1], x->size[t][2], x->size[t][3]}, 0};
    enum tensor_shape shape = agc_tensor_info[t].shape;
    a.keys = shape == SHAPE_K || shape == SHAPE_V;
    if (shape <= SHAPE_ROW) {
        a.size[0] = x->p->batch;
        a.size[2] = a.keys ? x->p->kv_len : x->p->q_len;
    }
    return a;
}

/* Number of positions that sequence b has in the variable. */
static int64_t positions(const struct arrays *x, const struct axes *a, enum tensor t, int64_t b)
{
    if ((x->p->flags & AG_PACKED) == 0 || agc_tensor_info[t].shape > SHAPE_ROW) {
        return a->size[2];
    }
    return a->keys ? agc_arrays_k_length(x, b) : agc_arrays_q_length(x, b);
}

static void number_elements(struct disjoint_rows *g, const struct arrays *x, const struct axes *a,
                            enum tensor t)
{
    const int64_t *n = a->size;
    for (int64_t b = 0; b < n[0]; b++) {
        for (int64_t h = 0; h < n[1]; h++) {
            for (int64_t i = 0; i < positions(x, a, t, b); i++) {
                for (int64_t c = 0; c < n[3]; c++) {
                    int64_t e = agc_arrays_index(x, t, b, h, i, c);
                    g->set[e] = a->keys ? b * n[1] + h : (b * n[1] + h) * n[2] + i;
                    g->slot[e] = a->keys ? i * n[3] + c : c;
                }
            }
        }
    }
}

static int64_t set_of_row(const struct arrays *x, const struct axes *a, int64_t b, int64_t h, int64_t i)
{
    const int64_t *n = a->size;
    b = n[0] > 1 ? b : 0;
    if (a->keys) {
        return b * n[1] + h / (x->p->heads / x->p->kv_heads);
    }
    return (b * n[1] + (n[1] > 1 ? h : 0)) * n[2] + (n[2] > 1 ? i : 0);
}

static void number_rows(struct disjoint_rows *g, const struct arrays *x, const struct axes *a)
{
    struct axes rows = axes_of(x, T_LSE);
    for (int64_t b = 0; b < x->p->batch; b++) {
        for (int64_t h = 0; h < x->p->heads; h++) {
            for (int64_t i = 0; i < positions(x, &rows, T_LSE, b); i++) {
                g->row_set[agc_arrays_index(x, T_LSE, b, h, i, 0)] = set_of_row(x, a, b, h, i);
            }
        }
    }
}

/* NULL if there is no memory. */
static int64_t *minus_ones(int64_t count)
{
    int64_t *values = agc_alloc("numbers of disjoint rows", count, sizeof *values);
    for (int64_t n = 0; values != NULL && n < count; n++) {
        values[n] = -1;
    }
    return values;
}

ag_status agc_disjoint_rows_create(struct disjoint_rows *g, const struct arrays *x, enum tensor variable)
{
    struct axes a = axes_of(x, variable);
    g->sets = a.size[0] * a.size[1] * (a.keys ? 1 : a.size[2]);
    g->slots = a.size[3] * (a.keys ? a.size[2] : 1);
    g->set = minus_ones(x->count[variable]);
    g->slot = minus_ones(x->count[variable]);
    g->row_set = minus_ones(x->count[T_LSE]);
    if (g->set == NULL || g->slot == NULL || g->row_set == NULL) {
        agc_disjoint_rows_destroy(g);
        return AG_NO_MEMORY;
    }
    number_elements(g, x, &a, variable);
    number_rows(g, x, &a);
    return AG_OK;
}

void agc_disjoint_rows_destroy(struct disjoint_rows *g)
{
    free(g->set);
    free(g->slot);
    free(g->row_set);
}
