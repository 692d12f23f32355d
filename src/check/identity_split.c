/* The results of two parts of the keys, merged, equal the result of the whole, in all maps. The keys are
 * cut at a random place; the second part starts at k_offset + cut; the sink belongs to the first part.
 * forward, jvp and jvp_jvp of the parts are combined by ag_merge. vjp, vjp_jvp and, once more, jvp_jvp run on each
 * part with the O, L (tO, mu, smu) of the whole; then outputs with a row or column per key are concatenated, and all
 * others added. */
#include "check/identities.h"

#include "check/rng.h"
#include "check/stage.h"

#include <stdlib.h>
#include <string.h>

struct split {
    const struct arrays *x;
    int64_t cut;
    struct arrays part[2], merged;
};

/* ---- Making the parts -------------------------------------------------------------------------- */

static int64_t part_length(const struct split *s, int n, int64_t keys)
{
    int64_t first = keys < s->cut ? keys : s->cut;
    return n == 0 ? first : keys - first;
}

/* Finds the longest sequence of a part, and the total number of its keys. */
static void part_keys(const struct split *s, int n, int64_t *longest, int64_t *total)
{
    *longest = *total = 0;
    for (int64_t b = 0; b < s->x->p->batch; b++) {
        int64_t length = part_length(s, n, agc_arrays_k_length(s->x, b));
        *longest = length > *longest ? length : *longest;
        *total += length;
    }
}

static ag_problem part_problem(const struct split *s, int n)
{
    const ag_problem *p = s->x->p;
    ag_problem part = s->x->given;
    if (p->flags & AG_PACKED) {
        part_keys(s, n, &part.kv_len, &part.kv_total);
    } else {
        part.kv_len = part_length(s, n, p->kv_len);
    }
    part.flags &= ~(uint32_t)(n == 1 ? AG_SINK : 0);
    part.align = AG_ALIGN_TOP_LEFT;
    part.bias_size[3] = p->bias_size[3] == 1 ? 1 : part.kv_len;
    part.mask_size[3] = p->mask_size[3] == 1 ? 1 : part.kv_len;
    return part;
}

/* Sets the lengths of the part's keys, and the positions of queries and keys. */
static ag_status set_positions(struct split *s, int n, int64_t shift)
{
    struct arrays *y = &s->part[n];
    int64_t batch = s->x->p->batch;
    int64_t *lengths = agc_alloc("lengths", batch + 1, sizeof *lengths);
    int packed = (s->x->p->flags & AG_PACKED) != 0;
    if (lengths == NULL) {
        return AG_NO_MEMORY;
    }
    lengths[0] = 0;
    for (int64_t b = 0; b < batch; b++) {
        int64_t length = part_length(s, n, agc_arrays_k_length(s->x, b));
        lengths[packed ? b + 1 : b] = packed ? lengths[b] + length : length;
    }
    free(y->kv_lengths);
    free(y->k_packed);
    y->args.k_packed = y->k_packed = packed ? lengths : NULL;
    y->args.kv_lengths = y->kv_lengths = packed ? NULL : lengths;
    const int64_t first = n == 0 ? 0 : s->cut;
    for (int64_t b = 0; b < batch && y->k_offsets != NULL; b++) {
        y->k_offsets[b] += first;
    }
    y->args.k_offset = s->x->args.k_offset + (y->k_offsets == NULL ? first : 0);
    y->args.q_offset = s->x->args.q_offset + shift;
    return AG_OK;
}

/* Does the tensor have a row or column for each key, and is not broadcast over them? */
static int has_keys(const struct arrays *x, enum tensor t)
{
    enum tensor_shape shape = agc_tensor_info[t].shape;
    return shape == SHAPE_K || shape == SHAPE_V ||
           ((shape == SHAPE_BIAS || shape == SHAPE_MASK) && x->size[t][3] != 1);
}

/* Copies the values of the part's keys of one tensor from the memory of the whole or, if `back`, into it. */
static void copy_keys(const struct split *s, int n, enum tensor t, char *whole, int back)
{
    const struct arrays *x = s->x, *part = &s->part[n];
    const size_t bytes = t == T_MASK ? 1 : sizeof(double);
    int columns = agc_tensor_info[t].shape == SHAPE_BIAS || agc_tensor_info[t].shape == SHAPE_MASK;
    int64_t first = n == 0 ? 0 : s->cut;
    for (int64_t b = 0; b < (columns ? x->size[t][0] : x->p->batch); b++) {
        int64_t positions = columns ? part->size[t][2] : agc_arrays_k_length(part, b);
        for (int64_t h = 0; h < x->size[t][1]; h++) {
            for (int64_t i = 0; i < positions; i++) {
                for (int64_t c = 0; c < part->size[t][3]; c++) {
                    int64_t index =
                        agc_arrays_index(x, t, b, h, columns ? i : i + first, columns ? c + first : c);
                    char *of_part =
                        (char *)part->data[t] + (size_t)agc_arrays_index(part, t, b, h, i, c) * bytes;
                    char *of_whole = whole + (size_t)index * bytes;
                    memcpy(back ? of_whole : of_part, back ? of_part : of_whole, bytes);
                }
            }
        }
    }
}

static ag_status make_part(struct split *s, const struct identity *id, int n, int64_t shift)
{
    ag_problem problem = part_problem(s, n);
    ag_status status = agc_arrays_like(&s->part[n], s->x, &problem, id->options);
    status = status == AG_OK ? set_positions(s, n, shift) : status;
    if (status != AG_OK) {
        return status;
    }
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (s->part[n].data[t] != NULL && agc_tensor_info[t].role != ROLE_OUTPUT && has_keys(s->x, t)) {
            copy_keys(s, n, t, s->x->data[t], 0);
        }
    }
    return AG_OK;
}

/* ---- Running and comparing --------------------------------------------------------------------- */

/* A map, and how the results of the parts become that of the whole: by ag_merge, or assembled from parts that are given
 * the results of the whole. */
struct split_map {
    uint32_t map;
    int assembled;
    const char *name;
};

static const struct split_map maps[] = {
    {AG_MAP_FORWARD, 0, "split and merge: forward"}, {AG_MAP_JVP, 0, "split and merge: jvp"},
    {AG_MAP_JVP_JVP, 0, "split and merge: jvp_jvp"}, {AG_MAP_VJP, 1, "split and merge: vjp"},
    {AG_MAP_VJP_JVP, 1, "split and merge: vjp_jvp"}, {AG_MAP_JVP_JVP, 1, "split and add: jvp_jvp"},
};
enum { SPLIT_MAPS = sizeof maps / sizeof maps[0] };

static void set_second(ag_merge_args *args, struct split *s)
{
    const struct arrays *a = &s->part[0], *b = &s->part[1], *m = &s->merged;
    args->so1 = agc_tensor_view(a->p, T_STO, a->so);
    args->so2 = agc_tensor_view(b->p, T_STO, b->so);
    args->so = agc_tensor_view(m->p, T_STO, m->so);
    args->smu1 = a->args.smu, args->smu2 = b->args.smu, args->smu = m->args.smu;
    args->sto1 = a->args.sto, args->sto2 = b->args.sto, args->sto = m->args.sto;
    args->nu1 = a->args.nu, args->nu2 = b->args.nu, args->nu = m->args.nu;
}

static ag_status merge(struct split *s, uint32_t map)
{
    const ag_args *a = &s->part[0].args, *b = &s->part[1].args, *m = &s->merged.args;
    ag_merge_args args = {.struct_size = sizeof args, .o1 = a->o, .lse1 = a->lse, .o2 = b->o, .lse2 = b->lse};
    args.o = m->o;
    args.lse = m->lse;
    if (map != AG_MAP_FORWARD) {
        args.to1 = a->to;
        args.mu1 = a->mu;
        args.to2 = b->to;
        args.mu2 = b->mu;
        args.to = m->to;
        args.mu = m->mu;
    }
    if (map == AG_MAP_JVP_JVP) {
        set_second(&args, s);
    }
    return agc_run_merge(s->merged.plan, &args);
}

/* Combines the gradients dX of the parts into that of the whole. */
static void assemble(struct split *s, enum tensor t)
{
    double *whole = agc_arrays_f64(&s->merged, t);
    for (int64_t e = 0; e < s->merged.count[t]; e++) {
        whole[e] = 0;
    }
    for (int n = 0; n < 2; n++) {
        const double *part = agc_arrays_f64(&s->part[n], t);
        if (has_keys(s->x, t)) {
            copy_keys(s, n, t, s->merged.data[t], 1);
            continue;
        }
        for (int64_t e = 0; part != NULL && e < s->merged.count[t]; e++) {
            whole[e] += part[e];
        }
    }
}

static void give_whole(struct arrays *y, const struct arrays *whole)
{
    y->args.o = whole->args.o;
    y->args.lse = whole->args.lse;
    y->args.to = whole->args.to;
    y->args.mu = whole->args.mu;
    y->args.smu = whole->args.smu;
}

static ag_status run_parts(struct split *s, const struct split_map *m)
{
    ag_status status = AG_OK;
    for (int n = 0; n < 2 && status == AG_OK; n++) {
        struct arrays *y = &s->part[n];
        if (m->assembled) {
            give_whole(y, s->x);
        } else if (m->map == AG_MAP_JVP_JVP) {
            status = agc_arrays_run_along_s(y);
        }
        status = status == AG_OK ? agc_arrays_run(y, m->map) : status;
    }
    if (status == AG_OK && !m->assembled) {
        return merge(s, m->map);
    }
    for (enum tensor t = 0; t < T_COUNT && status == AG_OK; t++) {
        if ((agc_tensor_info[t].writers & m->map) && s->x->data[t] != NULL) {
            assemble(s, t);
        }
    }
    return status;
}

static void note(struct worst *worst, const struct identity *id, const struct split *s, enum tensor t)
{
    agc_note_differences(worst, &id->bounds, t, agc_arrays_f64(&s->merged, t), agc_arrays_f64(id->x, t),
                         id->x->count[t]);
}

/* so is no tensor of ag_args: it is noted as `to`, which is not compared in the same result. */
static void note_so(struct worst *worst, const struct identity *id, const struct split *s)
{
    struct bounds along_s = id->bounds;
    along_s.unit[T_TO] = along_s.unit[T_O] * along_s.second_rate;
    agc_note_differences(worst, &along_s, T_TO, s->merged.so, id->x->so, id->x->count[T_TO]);
}

static ag_status compare_map(struct identity *id, struct split *s, const struct split_map *m)
{
    struct worst worst = WORST_NONE;
    const ag_status status = run_parts(s, m);
    if (status != AG_OK) {
        return status;
    }
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if ((agc_tensor_info[t].writers & m->map) && id->x->data[t] != NULL) {
            note(&worst, id, s, t);
        }
    }
    if (m->map == AG_MAP_JVP_JVP && !m->assembled) {
        note(&worst, id, s, T_SMU);
        note_so(&worst, id, s);
    }
    agc_results_add_worst(id->results, id->x, &worst, IDENTITY_LIMIT, "%s", m->name);
    return AG_OK;
}

static int has_map(const struct arrays *x, const struct split_map *m)
{
    return m->map != AG_MAP_JVP_JVP || agc_arrays_has_second_direction(x);
}

static ag_status compare_maps(struct identity *id, struct split *s)
{
    ag_status status = AG_OK;
    for (int n = 0; n < SPLIT_MAPS && status == AG_OK; n++) {
        status = has_map(id->x, &maps[n]) ? compare_map(id, s, &maps[n]) : AG_OK;
    }
    return status;
}

/* Finds the shift of bottom-right alignment, which a part gets as q_offset: it must be the same for all sequences. */
static int common_shift(const struct arrays *x, int64_t *shift)
{
    *shift = 0;
    for (int64_t b = 0; b < x->p->batch && x->p->align == AG_ALIGN_BOTTOM_RIGHT; b++) {
        int64_t own = agc_arrays_k_length(x, b) - agc_arrays_q_length(x, b);
        if (b > 0 && own != *shift) {
            return 0;
        }
        *shift = own;
    }
    return 1;
}

ag_status agc_identity_split(struct identity *id)
{
    struct rng r;
    struct split s;
    int64_t shift;
    if (!common_shift(id->x, &shift)) {
        for (int n = 0; n < SPLIT_MAPS; n++) {
            if (has_map(id->x, &maps[n])) {
                agc_results_not_applicable(id->results, "bottom-right with several shifts", maps[n].name);
            }
        }
        return AG_OK;
    }
    memset(&s, 0, sizeof s);
    s.x = id->x;
    agc_rng_init(&r, id->x->seed, 3 * T_FREE_STREAM + 2);
    s.cut = agc_rng_range(&r, 0, id->x->p->kv_len);
    ag_status status = agc_arrays_clone_as(&s.merged, id->x, AG_F64, id->options);
    for (int n = 0; n < 2 && status == AG_OK; n++) {
        status = make_part(&s, id, n, shift);
    }
    if (status == AG_OK) {
        status = compare_maps(id, &s);
    }
    agc_arrays_destroy(&s.part[0]);
    agc_arrays_destroy(&s.part[1]);
    agc_arrays_destroy(&s.merged);
    return status;
}
