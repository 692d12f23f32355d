/* Identities of jvp_jvp, and of a jvp that is given o and lse. */
#include "check/identities.h"

/* Makes y: x's call, with x's own o, lse, mu and smu as inputs. */
static ag_status clone_given(struct arrays *y, const struct identity *id)
{
    const ag_status status = agc_arrays_clone_as(y, id->x, AG_F64, id->options);
    if (status == AG_OK) {
        y->args.o = id->x->args.o;
        y->args.lse = id->x->args.lse;
        y->args.mu = id->x->args.mu;
        y->args.smu = id->x->args.smu;
    }
    return status;
}

static void compare(struct identity *id, const struct arrays *y, enum tensor a, enum tensor b,
                    const char *name)
{
    struct worst worst = WORST_NONE;
    agc_note_differences(&worst, &id->bounds, a, agc_arrays_f64(y, a), agc_arrays_f64(id->x, a), y->count[a]);
    agc_note_differences(&worst, &id->bounds, b, agc_arrays_f64(y, b), agc_arrays_f64(id->x, b), y->count[b]);
    agc_results_add_worst(id->results, y, &worst, IDENTITY_LIMIT, "%s", name);
}

/* A jvp that is given o and lse computes the same tangents. */
ag_status agc_identity_given_o(struct identity *id)
{
    static const char name[] = "to, mu of jvp given o";
    struct arrays y;
    ag_status status = clone_given(&y, id);
    if (status != AG_OK) {
        return status;
    }
    y.args.mu = agc_tensor_view(y.p, T_MU, y.data[T_MU]);
    y.args.flags = AG_GIVEN_O;
    status = agc_arrays_run(&y, AG_MAP_JVP);
    if (status == AG_OK) {
        compare(id, &y, T_TO, T_MU, name);
    } else if (status == AG_UNSUPPORTED) {
        agc_results_not_applicable(id->results, "the backend has no AG_GIVEN_O", name);
        status = AG_OK;
    }
    agc_arrays_destroy(&y);
    return status;
}

/* jvp_jvp(t, s) = jvp_jvp(s, t). */
static ag_status symmetry(struct identity *id)
{
    struct arrays y;
    ag_status status = clone_given(&y, id);
    if (status != AG_OK) {
        return status;
    }
    const ag_args a = y.args;
    ag_args *b = &y.args;
    b->tq = a.sq, b->tk = a.sk, b->tv = a.sv, b->tbias = a.sbias, b->ttable = a.stable, b->tsink = a.ssink;
    b->sq = a.tq, b->sk = a.tk, b->sv = a.tv, b->sbias = a.tbias, b->stable = a.ttable, b->ssink = a.tsink;
    b->mu = a.smu, b->smu = a.mu;
    status = agc_arrays_run(&y, AG_MAP_JVP_JVP);
    if (status == AG_OK) {
        compare(id, &y, T_STO, T_NU, "symmetry of jvp_jvp");
    }
    agc_arrays_destroy(&y);
    return status;
}

static void compare_with_hessian(struct identity *id, const struct arrays *y)
{
    struct sum s = {0, 0};
    const struct arrays *x = id->x;
    agc_sum_add(&s, 1, agc_arrays_f64(x, T_D_O), agc_arrays_f64(x, T_STO), x->count[T_STO]);
    agc_sum_add(&s, 1, agc_arrays_f64(x, T_D_LSE), agc_arrays_f64(x, T_NU), x->count[T_NU]);
    for (int f = 0; f < FAMILY_VARIABLES; f++) {
        const struct family *m = &agc_families[f];
        agc_sum_add(&s, -1, agc_arrays_f64(x, m->t), agc_arrays_f64(y, m->td), x->count[m->x]);
    }
    agc_results_add(id->results, agc_sum_imbalance(id, &s), IDENTITY_LIMIT, "jvp_jvp and vjp_jvp");
}

/* <dO, stO> + <dL, nu> = <t, vjp_jvp along s with tdO = tdL = 0>. */
static ag_status hessian(struct identity *id)
{
    struct arrays y;
    ag_status status = clone_given(&y, id);
    if (status != AG_OK) {
        return status;
    }
    ag_args *a = &y.args;
    a->tq = a->sq, a->tk = a->sk, a->tv = a->sv, a->tbias = a->sbias, a->ttable = a->stable;
    a->tsink = a->ssink;
    a->to = agc_tensor_view(id->x->p, T_TO, id->x->so);
    a->mu = a->smu;
    a->td_o.data = a->td_lse.data = NULL;
    status = agc_arrays_run(&y, AG_MAP_VJP_JVP);
    if (status == AG_OK) {
        compare_with_hessian(id, &y);
    }
    agc_arrays_destroy(&y);
    return status;
}

ag_status agc_identity_second(struct identity *id)
{
    if (!agc_arrays_has_second_direction(id->x)) {
        agc_results_not_applicable(id->results, "the backend has no jvp_jvp", "jvp_jvp");
        return AG_OK;
    }
    const ag_status status = symmetry(id);
    return status == AG_OK ? hessian(id) : status;
}
