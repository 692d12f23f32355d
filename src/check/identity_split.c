/* The results of two parts of the keys, merged, equal the result of the whole, in all four maps. The keys are
 * cut at a random place; the second part starts at k_offset + cut; the sink belongs to the first part.
 * forward and jvp of the parts are combined by ag_merge. vjp and vjp_jvp run on each part with the O, L (tO,
 * mu) of the whole; then outputs with a row or column per key are concatenated, and all others added. */
#include "check/identities.h"

#include "check/rng.h"

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
    y->args.k_offset = s->x->args.k_offset + (n == 0 ? 0 : s->cut);
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

static ag_status merge(struct split *s, int tangents)
{
    const ag_args *a = &s->part[0].args, *b = &s->part[1].args, *m = &s->merged.args;
    ag_merge_args args = {.struct_size = sizeof args, .o1 = a->o, .lse1 = a->lse, .o2 = b->o, .lse2 = b->lse};
    args.o = m->o;
    args.lse = m->lse;
    if (tangents) {
        args.to1 = a->to;
        args.mu1 = a->mu;
        args.to2 = b->to;
        args.mu2 = b->mu;
        args.to = m->to;
        args.mu = m->mu;
    }
    return ag_merge(s->merged.plan, &args, NULL);
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

static ag_status run_parts(struct split *s, uint32_t map)
{
    ag_status status = AG_OK;
    int linear = map == AG_MAP_VJP || map == AG_MAP_VJP_JVP;
    for (int n = 0; n < 2 && status == AG_OK; n++) {
        struct arrays *y = &s->part[n];
        if (linear) {
            y->args.o = s->x->args.o;
            y->args.lse = s->x->args.lse;
            y->args.to = s->x->args.to;
            y->args.mu = s->x->args.mu;
        }
        status = agc_arrays_run(y, map);
    }
    if (status == AG_OK && !linear) {
        return merge(s, map == AG_MAP_JVP);
    }
    for (enum tensor t = 0; t < T_COUNT && status == AG_OK; t++) {
        if ((agc_tensor_info[t].writers & map) && s->x->data[t] != NULL) {
            assemble(s, t);
        }
    }
    return status;
}

static const struct {
    uint32_t map;
    const char *name;
} maps[] = {
    {AG_MAP_FORWARD, "split and merge: forward"},
    {AG_MAP_JVP, "split and merge: jvp"},
    {AG_MAP_VJP, "split and merge: vjp"},
    {AG_MAP_VJP_JVP, "split and merge: vjp_jvp"},
};

static ag_status compare_maps(struct identity *id, struct split *s)
{
    for (int n = 0; n < 4; n++) {
        struct worst worst = WORST_NONE;
        ag_status status = run_parts(s, maps[n].map);
        if (status != AG_OK) {
            return status;
        }
        for (enum tensor t = 0; t < T_COUNT; t++) {
            if ((agc_tensor_info[t].writers & maps[n].map) && id->x->data[t] != NULL) {
                const double *got = agc_arrays_f64(&s->merged, t), *wanted = agc_arrays_f64(id->x, t);
                agc_note_differences(&worst, &id->bounds, t, got, wanted, id->x->count[t]);
            }
        }
        agc_results_add_worst(id->results, id->x, &worst, IDENTITY_LIMIT, "%s", maps[n].name);
    }
    return AG_OK;
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
        for (int n = 0; n < 4; n++) {
            agc_results_not_applicable(id->results, "bottom-right with several shifts", maps[n].name);
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
