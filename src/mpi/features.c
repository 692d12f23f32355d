/* Features in a ring: see features.h. */
#include "mpi/features.h"

#include <string.h>

bool agi_mpi_is_feature(const agi_tensor_info *f)
{
    return f->feature != 0;
}

bool agi_mpi_is_matrix(const agi_tensor_info *f)
{
    return f->shape == AGI_SHAPE_BIAS || f->shape == AGI_SHAPE_MASK;
}

void agi_mpi_feature_size(const ag_mpi_plan *plan, const agi_tensor_info *f, int64_t size[4])
{
    agi_shape_of(plan->cut.p, f->shape, size);
    if (agi_mpi_is_matrix(f) && agi_mpi_has_rows(&plan->cut, size)) {
        size[2] = agi_mpi_rows(&plan->cut, AGI_MPI_QUERIES, plan->comm.t.rank);
    }
}

/* Is the gradient complete on each rank, for its own rows? If not, it is a sum over the ranks. */
static bool has_own_rows(const ag_mpi_plan *plan, const agi_mpi_feature *x)
{
    int64_t size[4];
    agi_shape_of(plan->cut.p, x->f->shape, size);
    return agi_mpi_is_matrix(x->f) && agi_mpi_has_rows(&plan->cut, size);
}

/* ---- Layout ---- */

static void *take_dense(agi_arena *arena, const int64_t size[4], ag_dtype dtype)
{
    return agi_take(arena, agi_count(size), agi_mpi_element_bytes(dtype));
}

/* The rectangles of the longest chunks. */
static void *take_rectangles(agi_arena *arena, const ag_mpi_plan *plan, const agi_tensor_info *f,
                             ag_dtype dtype)
{
    const ag_plan *longest =
        agi_mpi_pair_plan_of(plan, agi_mpi_max_rows(&plan->cut, AGI_MPI_QUERIES),
                             agi_mpi_max_rows(&plan->cut, AGI_MPI_KEYS), false, AGI_MPI_WIDE_OUT);
    int64_t size[4];
    agi_shape_of(ag_plan_problem(longest), f->shape, size);
    return take_dense(arena, size, dtype);
}

static agi_mpi_array dense(void *data, const int64_t size[4], ag_dtype dtype)
{
    return (agi_mpi_array){ag_bhnd(data, size[1], size[2], size[3]), dtype};
}

static void add_feature(agi_mpi_feature *x, agi_arena *arena, const ag_mpi_plan *plan, agi_map map,
                        const agi_tensor_info *f, const ag_args *a)
{
    const ag_problem *p = plan->cut.p;
    const ag_dtype given = agi_mpi_dtype_of(p, f->element);
    const bool wide = agi_mpi_kind_of(map) == AGI_MPI_WIDE_GRADS && f->element == AGI_AUX_DTYPE;
    const bool output = agi_is_output(f->role[map]);
    memset(x, 0, sizeof *x);
    x->f = f;
    agi_mpi_feature_size(plan, f, x->size);
    const ag_dtype dtype = wide ? agi_mpi_wide(p) : given;
    x->is_callers = dtype == given && (!output || has_own_rows(plan, x));
    x->in_rectangles = agi_mpi_is_matrix(f) && agi_has(p, AG_PACKED) && (x->size[2] != 1 || x->size[3] != 1);
    if (x->is_callers) {
        x->x.dtype = dtype;
        x->x.t = a != NULL ? agi_mpi_tensor_of(a, f) : (ag_tensor){.data = NULL};
    } else {
        x->x = dense(take_dense(arena, x->size, dtype), x->size, dtype);
    }
    x->rectangles = x->in_rectangles ? take_rectangles(arena, plan, f, dtype) : NULL;
}

void agi_mpi_features_lay_out(agi_mpi_features *x, agi_arena *arena, const ag_mpi_plan *plan, agi_map map,
                              const ag_args *a)
{
    int64_t largest = 0;
    x->n_in = x->n_sums = 0;
    for (int n = 0; n < AGI_N_TENSORS; n++) {
        const agi_tensor_info *f = &agi_tensors[n];
        const bool exists = agi_mpi_is_feature(f) && agi_has(plan->cut.p, f->feature);
        if (!exists || f->role[map] == AGI_NONE || (a != NULL && agi_mpi_tensor_of(a, f).data == NULL)) {
            continue;
        }
        if (agi_mpi_is_input(f->role[map])) {
            add_feature(&x->in[x->n_in++], arena, plan, map, f, a);
        } else {
            agi_mpi_feature *sum = &x->sums[x->n_sums++];
            add_feature(sum, arena, plan, map, f, a);
            const int64_t count = has_own_rows(plan, sum) ? 0 : agi_count(sum->size);
            largest = count > largest ? count : largest;
        }
    }
    x->room = agi_take(arena, largest, ag_dtype_size(agi_mpi_wide(plan->cut.p)));
}

void agi_mpi_features_begin(agi_mpi_features *x, const agi_mpi_call *call)
{
    for (int n = 0; n < x->n_in; n++) {
        const agi_mpi_feature *in = &x->in[n];
        if (!in->is_callers) {
            const ag_dtype dtype = agi_mpi_dtype_of(call->plan->cut.p, in->f->element);
            agi_mpi_copy(in->x, (agi_mpi_array){agi_mpi_tensor_of(&call->a, in->f), dtype}, in->size,
                         AGI_MPI_SET);
        }
    }
    for (int n = 0; n < x->n_sums; n++) {
        const agi_mpi_feature *sum = &x->sums[n];
        if (!sum->is_callers || (call->a.accumulate & sum->f->accumulate) == 0) {
            agi_mpi_fill(sum->x, sum->size, 0);
        }
    }
}

/* ---- A pair ---- */

/* The part of a bias or mask of a padded problem. */
static ag_tensor part_of(const agi_mpi_feature *x, const agi_mpi_call *call, const agi_mpi_feature_pair *pair)
{
    ag_tensor t = x->x.t;
    if (agi_mpi_is_matrix(x->f)) {
        int64_t whole[4];
        agi_shape_of(call->plan->cut.p, x->f->shape, whole);
        t = whole[2] != 1 ? agi_mpi_shift(t, x->x.dtype, 2, pair->q->local) : t;
        t = whole[3] != 1 ? agi_mpi_shift(t, x->x.dtype, 3, pair->k->start) : t;
    }
    return t;
}

/* Copies the part of each sequence into its rectangle, or adds its rectangle to the sum. */
typedef enum { TO_RECTANGLES, FROM_RECTANGLES } direction;

static void move_rectangle(const agi_mpi_feature *x, const agi_mpi_call *call,
                           const agi_mpi_feature_pair *pair, direction way, int64_t b)
{
    const agi_mpi_cut *cut = &call->plan->cut;
    const agi_mpi_part q = agi_mpi_part_of(cut, &call->a, AGI_MPI_QUERIES, pair->q, b);
    const agi_mpi_part k = agi_mpi_part_of(cut, &call->a, AGI_MPI_KEYS, pair->k, b);
    int64_t size[4];
    agi_shape_of(ag_plan_problem(pair->plan), x->f->shape, size);
    agi_mpi_array rectangle = dense(x->rectangles, size, x->x.dtype), whole = x->x;
    rectangle.t = agi_mpi_shift(rectangle.t, x->x.dtype, 0, b);
    whole.t = x->size[0] != 1 ? agi_mpi_shift(whole.t, x->x.dtype, 0, b) : whole.t;
    whole.t = x->size[2] != 1 ? agi_mpi_shift(whole.t, x->x.dtype, 2, q.first) : whole.t;
    whole.t = x->size[3] != 1 ? agi_mpi_shift(whole.t, x->x.dtype, 3, k.first) : whole.t;
    const int64_t part[4] = {1, x->size[1], x->size[2] != 1 ? q.rows : 1, x->size[3] != 1 ? k.rows : 1};
    if (way == TO_RECTANGLES) {
        agi_mpi_copy(rectangle, whole, part, AGI_MPI_SET);
    } else {
        agi_mpi_copy(whole, rectangle, part, AGI_MPI_ADD);
    }
}

static void move_rectangles(const agi_mpi_feature *x, const agi_mpi_call *call,
                            const agi_mpi_feature_pair *pair, direction way)
{
    for (int64_t b = 0; b < call->plan->cut.p->batch; b++) {
        move_rectangle(x, call, pair, way, b);
    }
}

static ag_tensor rectangles_of(const agi_mpi_feature *x, const agi_mpi_feature_pair *pair)
{
    int64_t size[4];
    agi_shape_of(ag_plan_problem(pair->plan), x->f->shape, size);
    return dense(x->rectangles, size, x->x.dtype).t;
}

static bool takes_part(const agi_mpi_feature *x, bool sink)
{
    return x->f->shape != AGI_SHAPE_SINK || sink;
}

bool agi_mpi_features_has_sums(const agi_mpi_features *x, bool sink)
{
    bool any = false;
    for (int n = 0; n < x->n_sums; n++) {
        any |= takes_part(&x->sums[n], sink);
    }
    return any;
}

void agi_mpi_features_set(agi_mpi_features *x, const agi_mpi_call *call, const agi_mpi_feature_pair *pair,
                          ag_args *args)
{
    for (int n = 0; n < x->n_in; n++) {
        const agi_mpi_feature *in = &x->in[n];
        if (takes_part(in, pair->sink) && in->in_rectangles) {
            move_rectangles(in, call, pair, TO_RECTANGLES);
            *agi_mpi_tensor(args, in->f) = rectangles_of(in, pair);
        } else if (takes_part(in, pair->sink)) {
            *agi_mpi_tensor(args, in->f) = part_of(in, call, pair);
        }
    }
    for (int n = 0; n < x->n_sums; n++) {
        const agi_mpi_feature *sum = &x->sums[n];
        if (takes_part(sum, pair->sink) && sum->in_rectangles) {
            *agi_mpi_tensor(args, sum->f) = rectangles_of(sum, pair);
        } else if (takes_part(sum, pair->sink)) {
            *agi_mpi_tensor(args, sum->f) = part_of(sum, call, pair);
            args->accumulate |= sum->f->accumulate;
        }
    }
}

void agi_mpi_features_collect(agi_mpi_features *x, const agi_mpi_call *call, const agi_mpi_feature_pair *pair)
{
    for (int n = 0; n < x->n_sums; n++) {
        if (x->sums[n].in_rectangles) {
            move_rectangles(&x->sums[n], call, pair, FROM_RECTANGLES);
        }
    }
}

/* ---- After the last pair ---- */

ag_status agi_mpi_features_sum(agi_mpi_features *x, agi_mpi_call *call)
{
    ag_status status = AG_OK;
    for (int n = 0; n < x->n_sums && status == AG_OK; n++) {
        const agi_mpi_feature *sum = &x->sums[n];
        if (!has_own_rows(call->plan, sum)) {
            status = agi_mpi_sum(call->comm, sum->x.t.data, x->room, agi_count(sum->size), sum->x.dtype);
        }
    }
    return status;
}

void agi_mpi_features_store(agi_mpi_features *x, const agi_mpi_call *call)
{
    for (int n = 0; n < x->n_sums; n++) {
        const agi_mpi_feature *sum = &x->sums[n];
        if (!sum->is_callers) {
            const ag_dtype dtype = agi_mpi_dtype_of(call->plan->cut.p, sum->f->element);
            const bool add = (call->a.accumulate & sum->f->accumulate) != 0;
            agi_mpi_copy((agi_mpi_array){agi_mpi_tensor_of(&call->a, sum->f), dtype}, sum->x, sum->size,
                         add ? AGI_MPI_ADD : AGI_MPI_SET);
        }
    }
}
