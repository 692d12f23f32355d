/* Random cases: each feature is on with some probability, each field is drawn from its whole range. */
#include "check/random_case.h"

#include "check/rng.h"

#include <inttypes.h>
#include <stdio.h>

static void draw_dtypes(ag_problem *p, struct rng *r)
{
    static const ag_dtype dtypes[] = {AG_F64, AG_F64, AG_F32, AG_F16, AG_BF16};
    p->dtype = dtypes[agc_rng_range(r, 0, 4)];
    if (p->dtype == AG_F16 || p->dtype == AG_BF16) {
        p->out_dtype = agc_rng_chance(r, 0.3) ? AG_F32 : 0;
        p->grad_dtype = agc_rng_chance(r, 0.3) ? AG_F32 : 0;
        p->aux_dtype = agc_rng_chance(r, 0.3) ? AG_F32 : 0;
    }
}

/* The ranges that a size class draws from. Large cases have few sequences and heads, so that one takes about a
 * second. */
struct sizes {
    int64_t batch, kv_heads, group;          /* maxima; group: query heads per kv head */
    int64_t q, k;                            /* maxima */
    int64_t usual_d, max_d;                  /* channels: usually up to usual_d, otherwise up to max_d */
    double unusual;                          /* the probability of up to max_d */
    int64_t window, radius, buckets, offset; /* maxima */
};

/* With more channels than this, sequences are shortened to a quarter, for the same reason. */
enum { WIDE_CHANNELS = 160 };

/* The largest offset of a sequence, if each has its own: less than the lengths of most cases. */
enum { MAX_SEQUENCE_OFFSET = 10 };

static const struct sizes small = {3, 3, 3, 12, 12, 8, 24, 0.2, 6, 6, 9, 20};
static const struct sizes large = {2, 2, 2, 420, 700, 64, 512, 0.15, 250, 150, 40, 300};

/* Number of rows of a packed array: at least those of the longest sequence, and perhaps some at the end that
 * no sequence has. */
static int64_t draw_total(struct rng *r, int64_t batch, int64_t longest)
{
    return agc_rng_range(r, longest, (batch > 1 ? batch : 1) * longest + 2);
}

static int64_t draw_channels(struct rng *r, const struct sizes *max)
{
    return agc_rng_chance(r, max->unusual) ? agc_rng_range(r, max->usual_d + 1, max->max_d)
                                           : agc_rng_range(r, 1, max->usual_d);
}

static void draw_sizes(ag_problem *p, struct rng *r, const struct sizes *max)
{
    p->batch = agc_rng_chance(r, 0.02) ? 0 : agc_rng_range(r, 1, max->batch);
    p->kv_heads = agc_rng_range(r, 1, max->kv_heads);
    p->heads = p->kv_heads * agc_rng_range(r, 1, max->group);
    p->q_len = agc_rng_chance(r, 0.03) ? 0 : agc_rng_range(r, 1, max->q);
    p->kv_len = agc_rng_chance(r, 0.03) ? 0 : agc_rng_range(r, 1, max->k);
    p->dim_qk = draw_channels(r, max);
    p->dim_v = agc_rng_chance(r, 0.3) ? 0 : draw_channels(r, max);
    if (p->dim_qk > WIDE_CHANNELS || p->dim_v > WIDE_CHANNELS) {
        p->q_len = (p->q_len + 3) / 4;
        p->kv_len = (p->kv_len + 3) / 4;
    }
    if (agc_rng_chance(r, 0.2)) {
        p->flags |= AG_PACKED;
        p->q_total = draw_total(r, p->batch, p->q_len);
        p->kv_total = draw_total(r, p->batch, p->kv_len);
    }
}

static void draw_visibility(ag_problem *p, struct rng *r, const struct sizes *max)
{
    if (agc_rng_chance(r, 0.3)) {
        p->flags |= AG_CAUSAL;
    }
    if (agc_rng_chance(r, 0.3)) {
        p->flags |= AG_WINDOW;
        p->window_left = agc_rng_range(r, -1, max->window);
        p->window_right = agc_rng_range(r, -1, max->window);
    }
    p->align = agc_rng_chance(r, 0.3) ? AG_ALIGN_BOTTOM_RIGHT : AG_ALIGN_TOP_LEFT;
}

static void draw_scores(ag_problem *p, struct rng *r)
{
    if (agc_rng_chance(r, 0.3)) {
        p->flags |= AG_SCALE;
        p->scale = agc_rng_chance(r, 0.2) ? -0.5 : 0.1 + agc_rng_uniform(r);
        if (p->dim_qk > small.max_d) { /* keep scores of about the same size as with fewer channels */
            p->scale /= 4;
        }
    }
    if (agc_rng_chance(r, 0.3)) {
        p->softcap = agc_rng_chance(r, 0.5) ? 0.5 + agc_rng_uniform(r) : 30;
    }
    if (agc_rng_chance(r, 0.3)) {
        p->dropout = agc_rng_chance(r, 0.2) ? 0.9 : 0.5 * agc_rng_uniform(r);
    }
    if (agc_rng_chance(r, 0.3)) {
        p->flags |= AG_SINK;
    }
}

/* [1|B, 1|H, 1|Nq, 1|Nk] */
static void draw_broadcast(const ag_problem *p, struct rng *r, int64_t size[4])
{
    const int64_t full[4] = {p->batch, p->heads, p->q_len, p->kv_len};
    for (int axis = 0; axis < 4; axis++) {
        size[axis] = agc_rng_chance(r, 0.4) ? 1 : full[axis];
    }
}

static void draw_biases(ag_problem *p, struct rng *r, const struct sizes *max)
{
    if (agc_rng_chance(r, 0.3)) {
        p->flags |= AG_BIAS;
        draw_broadcast(p, r, p->bias_size);
    }
    if (agc_rng_chance(r, 0.3)) {
        p->flags |= AG_MASK;
        draw_broadcast(p, r, p->mask_size);
    }
    if (agc_rng_chance(r, 0.3)) {
        p->flags |= AG_TABLE;
        p->table_radius = agc_rng_range(r, 0, max->radius);
        p->table_buckets = agc_rng_chance(r, 0.5) ? 0 : agc_rng_range(r, 1, max->buckets);
        p->table_heads = agc_rng_chance(r, 0.3) ? 1 : 0;
    }
    p->head_offset = agc_rng_chance(r, 0.1) ? agc_rng_range(r, 1, 40) : 0;
    if (agc_rng_chance(r, 0.3)) {
        p->flags |= agc_rng_chance(r, 0.5) || p->head_offset != 0 ? AG_SLOPES : AG_ALIBI;
    }
}

/* Offsets about as large as the sequences, so that causal and window cut through them. */
static void draw_call(ag_check_case *s, struct rng *r, const struct sizes *max)
{
    s->seed = agc_rng_next(r) >> 40; /* short enough to type */
    s->lengths = (s->problem.flags & AG_PACKED) == 0 && agc_rng_chance(r, 0.3);
    s->batch_offset = agc_rng_chance(r, 0.1) ? agc_rng_range(r, 1, 1000) : 0;
    s->q_offset = s->k_offset = 0;
    if (s->problem.align == AG_ALIGN_TOP_LEFT && agc_rng_chance(r, 0.3)) {
        s->q_offset = agc_rng_range(r, -max->offset / 2, max->offset);
        s->k_offset = agc_rng_range(r, 0, max->offset);
    }
    const int narrow = ag_dtype_size(s->problem.dtype) == 2 && s->problem.out_dtype == 0;
    s->low_halves = narrow && agc_rng_chance(r, 0.5);
    s->offsets = s->problem.align == AG_ALIGN_TOP_LEFT && s->q_offset == 0 && s->k_offset == 0 &&
                 agc_rng_chance(r, 0.2);
}

void ag_check_random(ag_check_case *c, uint64_t seed, uint64_t number, ag_check_size size)
{
    const struct sizes *max = size == AG_CHECK_LARGE ? &large : &small;
    ag_problem problem = AG_PROBLEM_INIT;
    struct rng r;
    agc_rng_init(&r, seed, number);
    draw_dtypes(&problem, &r);
    draw_sizes(&problem, &r, max);
    draw_visibility(&problem, &r, max);
    draw_scores(&problem, &r);
    draw_biases(&problem, &r, max);
    c->problem = problem;
    draw_call(c, &r, max);
}

ag_status agc_arrays_of_case(struct arrays *x, const ag_check_case *s, const ag_options *options)
{
    ag_status status = agc_arrays_create(x, &s->problem, options, s->seed);
    if (status != AG_OK) {
        return status;
    }
    x->args.q_offset = s->q_offset;
    x->args.k_offset = s->k_offset;
    x->args.batch_offset = s->batch_offset;
    status = s->lengths ? agc_arrays_random_lengths(x) : AG_OK;
    status = status == AG_OK && s->offsets ? agc_arrays_random_offsets(x, MAX_SEQUENCE_OFFSET) : status;
    status = status == AG_OK && s->low_halves ? agc_arrays_add_low_halves(x) : status;
    if (status == AG_OK && agc_plan_has_jvp_jvp(x->plan)) {
        status = agc_arrays_add_second_direction(x);
    }
    if (status != AG_OK) {
        agc_arrays_destroy(x);
    }
    return status;
}

void ag_check_command(const ag_check_case *s, char *text, size_t size)
{
    char problem[512] = "?";
    char offsets[128];
    int length = 0;
    offsets[0] = '\0';
    ag_problem_format(&s->problem, problem, sizeof problem, NULL);
    const struct {
        const char *name;
        int64_t value;
    } options[] = {{"q-offset", s->q_offset}, {"k-offset", s->k_offset}, {"batch-offset", s->batch_offset}};
    for (int n = 0; n < 3; n++) {
        if (options[n].value != 0) {
            length += snprintf(offsets + length, sizeof offsets - (size_t)length, " --%s %" PRId64,
                               options[n].name, options[n].value);
        }
    }
    snprintf(text, size, "\"%s\" --seed %" PRIu64 "%s%s%s%s", problem, s->seed, offsets,
             s->lengths ? " --lengths" : "", s->low_halves ? " --low-halves" : "",
             s->offsets ? " --offsets" : "");
}
