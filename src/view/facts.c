/* What the head of a page says about the call: sizes, dtype and features, in words. */
#include "view/text.h"
#include "view/view.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* For a line that is put together from parts; what does not fit is cut. */
static void append(char line[AGV_LINE_SIZE], const char *format, ...) AGV_PRINTF(2, 3);

static void append(char line[AGV_LINE_SIZE], const char *format, ...)
{
    const size_t used = strlen(line);
    va_list values;
    va_start(values, format);
    vsnprintf(line + used, AGV_LINE_SIZE - used, format, values);
    va_end(values);
}

/* "1 head", "4 heads" */
static void append_count(char line[AGV_LINE_SIZE], int64_t count, const char *what, const char *plural)
{
    append(line, "%lld %s", (long long)count, count == 1 ? what : plural);
}

static void add_lengths(agv_lines *facts, const ag_problem *p, const ag_args *args)
{
    const bool varies = (p->flags & AG_PACKED) != 0 || args->q_lengths != NULL || args->kv_lengths != NULL;
    char line[AGV_LINE_SIZE] = "";
    if (p->batch > 1) {
        append(line, "%lld sequences of ", (long long)p->batch);
    }
    append(line, "%s", varies ? "up to " : "");
    append_count(line, p->q_len, "query", "queries");
    append(line, " and ");
    append_count(line, p->kv_len, "key", "keys");
    agv_add_line(facts, "%s", line);
}

static void add_heads(agv_lines *facts, const ag_problem *p)
{
    char line[AGV_LINE_SIZE] = "";
    append_count(line, p->heads, "head", "heads");
    if (p->kv_heads != p->heads) {
        append(line, " of Q and %lld of K and V,", (long long)p->kv_heads);
    }
    append(line, " of ");
    append_count(line, p->dim_qk, "channel", "channels");
    if (p->dim_v != p->dim_qk) {
        append(line, ", %lld in V", (long long)p->dim_v);
    }
    if (p->head_offset != 0) {
        append(line, ", the first is head %lld of its layer", (long long)p->head_offset);
    }
    agv_add_line(facts, "%s", line);
}

static const char *dtype_word(ag_dtype dtype)
{
    switch (dtype) {
    case AG_F64: return "float64";
    case AG_F32: return "float32";
    case AG_F16: return "float16";
    default: return "bfloat16";
    }
}

static void add_dtypes(agv_lines *facts, const ag_problem *p)
{
    const struct {
        const char *what;
        ag_dtype dtype;
    } others[] = {{"outputs", p->out_dtype}, {"gradients", p->grad_dtype}, {"biases", p->aux_dtype}};
    char line[AGV_LINE_SIZE] = "";
    append(line, "%s", dtype_word(p->dtype));
    for (int n = 0; n < 3; n++) {
        if (others[n].dtype != p->dtype) {
            append(line, ", %s %s", others[n].what, dtype_word(others[n].dtype));
        }
    }
    agv_add_line(facts, "%s", line);
}

/* How many keys of a window are on one side; negative: all. */
static void append_side(char line[AGV_LINE_SIZE], int64_t keys, const char *side)
{
    if (keys < 0) {
        append(line, "all keys");
    } else {
        append_count(line, keys, "key", "keys");
    }
    append(line, " %s", side);
}

static void add_visibility(agv_lines *facts, const ag_problem *p)
{
    char line[AGV_LINE_SIZE] = "window of ";
    if (p->flags & AG_CAUSAL) {
        agv_add_line(facts, "causal");
    }
    if (p->flags & AG_WINDOW) {
        append_side(line, p->window_left, "before a query");
        append(line, " and ");
        append_side(line, p->window_right, "after it");
        agv_add_line(facts, "%s", line);
    }
    if (p->align == AG_ALIGN_BOTTOM_RIGHT) {
        agv_add_line(facts, "the last query is at the last key");
    }
}

static void add_scores(agv_lines *facts, const ag_problem *p)
{
    if (p->flags & AG_SCALE) {
        agv_add_line(facts, "scale %g", p->scale);
    }
    if (p->softcap > 0) {
        agv_add_line(facts, "softcap %g", p->softcap);
    }
}

/* "mask per query and key": the axes along which it is not the same. */
static void add_array(agv_lines *facts, const char *name, const int64_t size[4])
{
    static const char *const axes[] = {"sequence", "head", "query", "key"};
    char line[AGV_LINE_SIZE] = "";
    int last = -1;
    for (int axis = 0; axis < 4; axis++) {
        last = size[axis] > 1 ? axis : last;
    }
    append(line, "%s", name);
    for (int axis = 0, n = 0; axis < 4; axis++) {
        if (size[axis] > 1) {
            append(line, "%s%s", n == 0 ? " per " : axis == last ? " and " : ", ", axes[axis]);
            n++;
        }
    }
    agv_add_line(facts, "%s%s", line, last < 0 ? ", the same for all pairs" : "");
}

static void add_biases(agv_lines *facts, const ag_problem *p)
{
    if (p->flags & AG_BIAS) {
        add_array(facts, "bias", p->bias_size);
    }
    if (p->flags & AG_MASK) {
        add_array(facts, "mask", p->mask_size);
    }
    if (p->flags & AG_TABLE) {
        agv_add_line(facts, "bias per distance up to %lld, %lld numbers%s", (long long)p->table_radius,
                     (long long)p->table_buckets, p->table_heads < p->heads ? " for all heads" : " per head");
    }
    if (p->flags & (AG_ALIBI | AG_SLOPES)) {
        agv_add_line(facts, p->flags & AG_SLOPES ? "ALiBi with given slopes" : "ALiBi");
    }
}

void agv_add_facts(agv_lines *facts, const ag_problem *p, const ag_args *args)
{
    add_lengths(facts, p, args);
    add_heads(facts, p);
    add_dtypes(facts, p);
    add_visibility(facts, p);
    add_scores(facts, p);
    add_biases(facts, p);
    if (p->flags & AG_SINK) {
        agv_add_line(facts, "sink");
    }
    if (p->dropout > 0) {
        agv_add_line(facts, "dropout %g, seed %llu", p->dropout, (unsigned long long)args->seed);
    }
}
