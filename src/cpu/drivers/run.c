/* The maps, as the backend calls them, and the rows of packed arrays that belong to no sequence. */
#include <math.h>

#include "cpu/drivers/backward.h"
#include "cpu/drivers/given.h"
#include "cpu/drivers/rows.h"

/* ---- Rows of packed arrays after the last sequence: -infinity in lse, zero elsewhere ---- */

static void fill_tail(const agi_call *call, const ag_tensor *t, agi_shape shape, ag_dtype dtype,
                      bool accumulate)
{
    const ag_problem *p = &call->plan->p;
    const bool keys = shape == AGI_SHAPE_K || shape == AGI_SHAPE_V;
    int64_t size[4];
    agi_shape_of(p, shape, size);
    const int64_t end = (keys ? call->a.k_packed : call->a.q_packed)[p->batch];
    for (int64_t h = 0; h < size[1]; h++) {
        const agi_slice slice = {t, dtype, 0, h, 0, size[3]};
        agi_store_rows(agi_cpu_plan_of(call->plan)->k, slice, end, size[2] - end, accumulate, 1, NULL, 0);
    }
}

static void fill_lse_tail(const agi_call *call)
{
    const ag_problem *p = &call->plan->p;
    const ag_tensor *t = &call->a.lse;
    for (int64_t h = 0; h < p->heads && t->data != NULL; h++) {
        for (int64_t i = call->a.q_packed[p->batch]; i < p->q_total; i++) {
            double *to = (double *)t->data + h * t->strides[1] + i * t->strides[2];
            *to = call->a.accumulate & AG_ACC_LSE ? *to - INFINITY : -INFINITY;
        }
    }
}

static void fill_tails(const agi_call *call)
{
    const ag_args *a = &call->a;
    const ag_dtype out = call->plan->p.out_dtype, grad = call->plan->p.grad_dtype;
    const uint32_t acc = a->accumulate;
    switch (call->map) {
    case AGI_JVP_JVP:
        fill_tail(call, &a->sto, AGI_SHAPE_O, out, (acc & AG_ACC_STO) != 0);
        fill_tail(call, &a->nu, AGI_SHAPE_ROW, AG_F64, (acc & AG_ACC_NU) != 0);
        break;
    case AGI_JVP:
        fill_tail(call, &a->to, AGI_SHAPE_O, out, (acc & AG_ACC_TO) != 0);
        fill_tail(call, &a->to_low, AGI_SHAPE_O, out, false);
        fill_tail(call, &a->mu, AGI_SHAPE_ROW, AG_F64, (acc & AG_ACC_MU) != 0);
        if (agi_given_o(call)) {
            break;
        }
        /* fall through */
    case AGI_FORWARD:
        fill_tail(call, &a->o, AGI_SHAPE_O, out, (acc & AG_ACC_O) != 0);
        fill_tail(call, &a->o_low, AGI_SHAPE_O, out, false);
        fill_lse_tail(call);
        break;
    case AGI_VJP:
        fill_tail(call, &a->dq, AGI_SHAPE_Q, grad, (acc & AG_ACC_DQ) != 0);
        fill_tail(call, &a->dk, AGI_SHAPE_K, grad, (acc & AG_ACC_DK) != 0);
        fill_tail(call, &a->dv, AGI_SHAPE_V, grad, (acc & AG_ACC_DV) != 0);
        break;
    default:
        fill_tail(call, &a->tdq, AGI_SHAPE_Q, grad, (acc & AG_ACC_TDQ) != 0);
        fill_tail(call, &a->tdk, AGI_SHAPE_K, grad, (acc & AG_ACC_TDK) != 0);
        fill_tail(call, &a->tdv, AGI_SHAPE_V, grad, (acc & AG_ACC_TDV) != 0);
        break;
    }
}

/* ---- What the backend calls ---- */

static size_t row_bytes(const ag_plan *plan, agi_map map)
{
    agi_arena arena = agi_arena_begin(NULL);
    agi_row_job w;
    REAL(agi_row_lay_out)(&w, &arena, plan, map);
    return agi_arena_bytes(&arena);
}

static size_t backward_bytes(const ag_plan *plan, agi_map map)
{
    agi_arena arena = agi_arena_begin(NULL);
    agi_backward_layout y;
    REAL(agi_backward_lay_out)(&y, &arena, plan, map);
    return agi_arena_bytes(&arena);
}

static size_t given_bytes(const ag_plan *plan, agi_map map)
{
    agi_arena arena = agi_arena_begin(NULL);
    agi_given_job w;
    REAL(agi_given_lay_out)(&w, &arena, plan, map);
    return agi_arena_bytes(&arena);
}

size_t REAL(agi_cpu_workspace)(const ag_plan *plan, agi_map map)
{
    switch (map) {
    case AGI_FORWARD: return row_bytes(plan, map);
    case AGI_JVP: { /* a call may have AG_GIVEN_O or not */
        const size_t rows = row_bytes(plan, map), given = given_bytes(plan, map);
        return rows > given ? rows : given;
    }
    case AGI_JVP_JVP: return given_bytes(plan, map);
    default: return backward_bytes(plan, map);
    }
}

static ag_status run(const agi_call *call, void *workspace)
{
    if (agi_is_given(call)) {
        return REAL(agi_given_run)(call, workspace);
    }
    return call->map == AGI_FORWARD || call->map == AGI_JVP ? REAL(agi_row_run)(call, workspace)
                                                            : REAL(agi_backward_run)(call, workspace);
}

ag_status REAL(agi_cpu_run)(const agi_call *call, void *workspace)
{
    const ag_status status = run(call, workspace);
    if (status == AG_OK && agi_has(&call->plan->p, AG_PACKED)) {
        fill_tails(call);
    }
    return status;
}
