/* The page of a call: which heads, maps and numbers it shows, and their computation. */
#include "view/view.h"

#include "view/runner.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DOUBLE_LENGTH = 64,      /* sequences up to this long are written in float64 */
    MAX_FULL_HEADS = 64,     /* shown if the caller names none */
    MAX_POOLED_LENGTH = 256, /* blocks along an axis */
    MIN_POOLED_LENGTH = 16,
    MAX_POOLED_LINES = 4, /* notes on sequences that are pooled */
    LONG_PAIRS = 1 << 20  /* from here on: one head and two maps, unless the caller names more */
};

static ag_status fail(char *message, ag_status status, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(message, AGV_LINE_SIZE, format, values);
    va_end(values);
    return status;
}

uint32_t agv_maps_of(const ag_args *a)
{
    const bool second = a->td_o.data != NULL || a->td_lse.data != NULL;
    const bool cotangent = a->d_o.data != NULL || a->d_lse.data != NULL || second;
    const bool tangent = a->tq.data != NULL || a->tk.data != NULL || a->tv.data != NULL ||
                         a->tbias.data != NULL || a->ttable.data != NULL || a->tsink.data != NULL || second;
    return AG_MAP_FORWARD | (cotangent ? (uint32_t)AG_MAP_VJP : 0U) | (tangent ? (uint32_t)AG_MAP_JVP : 0U) |
           (cotangent && tangent ? (uint32_t)AG_MAP_VJP_JVP : 0U);
}

/* ---- How much of it ---- */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The blocks of a variable. */
static double count_blocks(const agv_variable *v, const int64_t pool[2])
{
    double count = 1;
    for (int axis = 0; axis < 2; axis++) {
        const int64_t size = v->axes[axis] == 'i' ? pool[0] : v->axes[axis] == 'j' ? pool[1] : 1;
        count *= (double)ceil_div(v->shape[axis], size);
    }
    return count;
}

double agv_bytes(const agv_head *head, const agv_extent *e)
{
    double bytes = 0;
    for (int n = 0; n < head->variables.count; n++) {
        const agv_variable *v = &head->variables.items[n];
        const double width = v->is_flag ? 1 : e->width;
        if (e->is_full) {
            bytes += width * (double)v->shape[0] * (double)v->shape[1];
        } else {
            bytes += 2 * 4 * count_blocks(v, e->pool) + width * (double)agv_count_in(v, e->window);
        }
    }
    return bytes * 4 / 3 + 600 * head->variables.count; /* base64; and the JSON of each variable */
}

static bool is_long(int64_t n_q, int64_t n_k, int64_t limit)
{
    return n_q > limit || n_k > limit;
}

static double available(const agv_page *page)
{
    return (double)(AGV_MAX_PAGE - AGV_MAX_FRAME) / (double)page->n_heads;
}

/* The part that the caller names, else the first `fallback` ones. */
static void set_window(int64_t window[2], const int64_t asked[2], int64_t fallback, int64_t length)
{
    const int64_t to = asked[1] > 0 ? asked[1] : fallback;
    window[0] = asked[1] > 0 ? asked[0] : 0;
    window[1] = to < length ? to : length;
}

/* Blocks, as many as fit beside a window whose sizes, if the caller names none, are at most `fallback`. */
static bool choose_pool(const agv_page *page, const agv_head *head, const agv_source *s,
                        const agv_request *request, int64_t fallback, agv_extent *e)
{
    set_window(e->window, request->rows, fallback, s->n_q);
    set_window(e->window + 2, request->keys, fallback, s->n_k);
    e->width = is_long(e->window[1] - e->window[0], e->window[3] - e->window[2], DOUBLE_LENGTH) ? 4 : 8;
    for (int64_t length = MAX_POOLED_LENGTH; length >= MIN_POOLED_LENGTH; length /= 2) {
        e->pool[0] = ceil_div(s->n_q, length);
        e->pool[1] = ceil_div(s->n_k, length);
        if (agv_bytes(head, e) <= available(page)) {
            return true;
        }
    }
    return false;
}

/* Every number if they fit; else blocks and a window. */
static ag_status choose_extent(const agv_page *page, agv_head *head, const agv_source *s,
                               const agv_request *request, char *message)
{
    agv_extent *e = &head->extent;
    *e = (agv_extent){.is_full = true, .width = is_long(s->n_q, s->n_k, DOUBLE_LENGTH) ? 4 : 8};
    if (agv_bytes(head, e) <= available(page)) {
        return AG_OK;
    }
    e->is_full = false;
    for (int64_t fallback = AGV_WINDOW_LENGTH; fallback > 0; fallback /= 2) {
        if (choose_pool(page, head, s, request, fallback, e)) {
            return AG_OK;
        }
    }
    return fail(message, AG_INVALID_ARGUMENT,
                "%lld heads with a window of %lld queries and %lld keys do not fit into a page of %d MB: ask "
                "for less",
                (long long)page->n_heads, (long long)(e->window[1] - e->window[0]),
                (long long)(e->window[3] - e->window[2]), AGV_MAX_PAGE / 1000000);
}

/* ---- Which heads and maps ---- */

/* Whether the part that the caller names lies inside a sequence. */
static ag_status check_part(const int64_t asked[2], int64_t length, const char *what, int64_t batch,
                            char *message)
{
    if (asked[1] > 0 && (asked[0] < 0 || asked[0] >= asked[1] || asked[1] > length)) {
        return fail(message, AG_INVALID_ARGUMENT, "%s %lld to %lld: there are %lld of them in sequence %lld",
                    what, (long long)asked[0], (long long)asked[1] - 1, (long long)length, (long long)batch);
    }
    return AG_OK;
}

static ag_status check_window(const agv_source *s, const agv_request *request, char *message)
{
    const ag_status status = check_part(request->rows, s->n_q, "queries", s->batch, message);
    return status == AG_OK ? check_part(request->keys, s->n_k, "keys", s->batch, message) : status;
}

static ag_status check_list(const int64_t *list, int64_t count, int64_t limit, const char *what,
                            char *message)
{
    for (int64_t n = 0; n < count; n++) {
        if (list[n] < 0 || list[n] >= limit) {
            return fail(message, AG_INVALID_ARGUMENT, "%s %lld: there are %lld, from 0", what,
                        (long long)list[n], (long long)limit);
        }
        for (int64_t m = 0; m < n; m++) {
            if (list[m] == list[n]) {
                return fail(message, AG_INVALID_ARGUMENT, "%s %lld is asked for twice", what,
                            (long long)list[n]);
            }
        }
    }
    return AG_OK;
}

/* The first sequence that has queries and keys; -1 if none has. */
static int64_t first_sequence(const ag_plan *plan, const ag_args *args)
{
    const ag_problem *p = ag_plan_problem(plan);
    for (int64_t b = 0; b < p->batch; b++) {
        const agv_source s = agv_source_of(plan, args, b, 0);
        if (s.n_q > 0 && s.n_k > 0) {
            return b;
        }
    }
    return -1;
}

static bool shows_all(const ag_problem *p, const agv_request *request)
{
    const bool asked = request->n_batches > 0 || request->n_heads > 0;
    return !asked && p->batch * p->heads <= MAX_FULL_HEADS &&
           p->q_len * p->kv_len * p->batch * p->heads <= LONG_PAIRS / 4;
}

static ag_status list_heads(agv_page *page, const ag_plan *plan, const ag_args *args,
                            const agv_request *request, char *message)
{
    const ag_problem *p = ag_plan_problem(plan);
    const int64_t first = first_sequence(plan, args);
    if (first < 0) {
        return fail(message, AG_INVALID_ARGUMENT,
                    "no sequence has both queries and keys: there is nothing to show");
    }
    const bool all = shows_all(p, request);
    const int64_t n_b = request->n_batches > 0 ? request->n_batches : all ? p->batch : 1;
    const int64_t n_h = request->n_heads > 0 ? request->n_heads : all ? p->heads : 1;
    page->heads = calloc((size_t)(n_b * n_h), sizeof page->heads[0]);
    if (page->heads == NULL) {
        return fail(message, AG_NO_MEMORY, "out of memory");
    }
    for (int64_t n = 0; n < n_b * n_h; n++) {
        agv_head *head = &page->heads[page->n_heads];
        head->batch = request->n_batches > 0 ? request->batches[n / n_h] : all ? n / n_h : first;
        head->head = request->n_heads > 0 ? request->heads[n % n_h] : all ? n % n_h : 0;
        const agv_source s = agv_source_of(plan, args, head->batch, head->head);
        page->n_heads += s.n_q > 0 && s.n_k > 0;
    }
    return page->n_heads > 0
               ? AG_OK
               : fail(message, AG_INVALID_ARGUMENT, "the sequences asked for have no queries or no keys");
}

static ag_status choose_maps(agv_page *page, const ag_plan *plan, const ag_args *args,
                             const agv_request *request, char *message)
{
    const ag_problem *p = ag_plan_problem(plan);
    const uint32_t possible = agv_maps_of(args);
    page->maps = request->maps != 0 ? request->maps | AG_MAP_FORWARD : possible;
    if (page->maps & AG_MAP_VJP_JVP) {
        page->maps |= AG_MAP_VJP | AG_MAP_JVP;
    }
    if (page->maps & ~possible) {
        return fail(message, AG_INVALID_ARGUMENT,
                    page->maps & ~possible & AG_MAP_VJP ? "vjp and vjp_jvp need a cotangent"
                                                        : "jvp and vjp_jvp need a tangent");
    }
    if (request->maps == 0 && p->q_len * p->kv_len > LONG_PAIRS) {
        page->maps &= possible & AG_MAP_VJP ? AG_MAP_FORWARD | AG_MAP_VJP : AG_MAP_FORWARD | AG_MAP_JVP;
    }
    return AG_OK;
}

/* ---- What the page says about itself ---- */

/* Names of variables for a line. */
typedef struct {
    char text[AGV_LINE_SIZE * 5 / 8];
    int left_out; /* those that there was no room for */
} names;

/* count: how often; 0: not said */
static void add_name(names *list, const char *name, int64_t count)
{
    char item[40];
    const size_t used = strlen(list->text);
    int length = snprintf(item, sizeof item, "%s%s", used > 0 ? ", " : "", name);
    if (count > 0) {
        length += snprintf(item + length, sizeof item - (size_t)length, " %lld", (long long)count);
    }
    if (list->left_out > 0 || used + (size_t)length >= sizeof list->text) {
        list->left_out++;
    } else {
        memcpy(list->text + used, item, (size_t)length + 1);
    }
}

static void add_names(agv_page *page, const char *sentence, const names *list)
{
    char more[32] = "";
    if (list->left_out > 0) {
        snprintf(more, sizeof more, " and %d more", list->left_out);
    }
    if (list->text[0] != '\0') {
        agv_add_line(&page->notes, "%s: %s%s.", sentence, list->text, more);
    }
}

static void add_absent(agv_page *page)
{
    names absent = {"", 0};
    for (int n = 0; n < page->heads[0].variables.count; n++) {
        const agv_variable *v = &page->heads[0].variables.items[n];
        if (v->is_absent) {
            add_name(&absent, v->name, 0);
        }
    }
    add_names(page, "Not given, so zero", &absent);
}

/* NaN and infinities of the nth variable of every head. */
static int64_t count_odd(const agv_page *page, int n)
{
    int64_t count = 0;
    for (int64_t h = 0; h < page->n_heads; h++) {
        const agv_stats *s = &page->heads[h].variables.items[n].stats;
        count += s->nan + s->infinite;
    }
    return count;
}

static void add_odd(agv_page *page)
{
    names odd = {"", 0};
    for (int n = 0; n < page->heads[0].variables.count; n++) {
        const int64_t count = count_odd(page, n);
        if (count > 0) {
            add_name(&odd, page->heads[0].variables.items[n].name, count);
        }
    }
    add_names(page,
              page->n_heads > 1 ? "NaN or infinite, in all heads together, and left out of norms and ranges"
                                : "NaN or infinite, and left out of norms and ranges",
              &odd);
}

static bool is_same(const agv_extent *a, const agv_extent *b)
{
    return a->is_full == b->is_full && memcmp(a->pool, b->pool, sizeof a->pool) == 0 &&
           memcmp(a->window, b->window, sizeof a->window) == 0;
}

/* which: whose matrices they are, as the beginning of a sentence */
static void add_extent(agv_page *page, const char *which, const agv_extent *e)
{
    agv_add_line(&page->notes,
                 "%s too large to show every number: one cell stands for %lld queries and %lld keys. "
                 "Queries %lld to %lld and keys %lld to %lld are there in full, under Numbers.",
                 which, (long long)e->pool[0], (long long)e->pool[1], (long long)e->window[0],
                 (long long)e->window[1] - 1, (long long)e->window[2], (long long)e->window[3] - 1);
}

/* What is shown of matrices that are not shown in full: a line for all, or one per sequence, as the extent depends on
 * the length. Returns the number of sequences. */
static int add_extents(agv_page *page)
{
    bool differs = false;
    int pooled = 0;
    for (int64_t n = 0; n < page->n_heads; n++) {
        differs = differs || !is_same(&page->heads[n].extent, &page->heads[0].extent);
    }
    for (int64_t n = 0; n < page->n_heads; n++) {
        const agv_head *head = &page->heads[n];
        char which[64] = "The matrices are";
        if (head->extent.is_full || (n > 0 && (!differs || head[-1].batch == head->batch))) {
            continue;
        }
        if (differs) {
            snprintf(which, sizeof which, "The matrices of sequence %lld are", (long long)head->batch);
        }
        if (++pooled <= MAX_POOLED_LINES) {
            add_extent(page, which, &head->extent);
        }
    }
    if (pooled > MAX_POOLED_LINES) {
        agv_add_line(&page->notes, "So are those of %d more sequences.", pooled - MAX_POOLED_LINES);
    }
    return pooled;
}

static void add_notes(agv_page *page, const ag_plan *plan, const ag_args *args, const agv_request *request)
{
    const ag_problem *p = ag_plan_problem(plan);
    const uint32_t possible = agv_maps_of(args);
    if ((possible & AG_MAP_VJP) == 0) {
        agv_add_line(&page->notes, "No cotangent was given, so there is no vjp and no vjp_jvp to show.");
    }
    if ((possible & AG_MAP_JVP) == 0) {
        agv_add_line(&page->notes, "No tangent was given, so there is no jvp and no vjp_jvp to show.");
    }
    if (page->maps != possible) {
        agv_add_line(&page->notes, "%s",
                     request->maps != 0
                         ? "The maps that were not asked for are greyed out."
                         : "Of a sequence this long two maps are shown, unless others are asked for.");
    }
    add_absent(page);
    add_odd(page);
    if (page->n_heads < p->batch * p->heads) {
        agv_add_line(&page->notes, "%lld of %lld heads (of all sequences) are shown.",
                     (long long)page->n_heads, (long long)(p->batch * p->heads));
    }
    if (add_extents(page) == 0 && (request->rows[1] > 0 || request->keys[1] > 0)) {
        agv_add_line(&page->notes, "Every number is shown, not only the rows and keys that were asked for.");
    }
    if ((page->maps & AG_MAP_JVP) != 0 && page->along_maps == 0) {
        agv_add_line(&page->notes, "The page has no room left for the slider along the tangent.");
    }
    if (p->kv_heads < p->heads && (page->maps & AG_MAP_VJP)) {
        agv_add_line(&page->notes,
                     "%lld query heads share a head of K and V; dK and dV are the share of the chosen one.",
                     (long long)(p->heads / p->kv_heads));
    }
}

static void describe_page(agv_page *page, const ag_problem *p, const ag_args *args)
{
    page->scale = p->scale;
    page->softcap = p->softcap;
    page->has_dropout = agv_has(p, args, HAS_DROPOUT);
    page->has_bias = agv_has(p, args, HAS_BIAS);
    page->has_alibi = (p->flags & (AG_ALIBI | AG_SLOPES)) != 0;
    page->has_given_bias = (p->flags & (AG_BIAS | AG_TABLE)) != 0;
    page->has_sink = agv_has(p, args, HAS_SINK);
    page->has_dL = agv_has(p, args, HAS_DL);
    page->has_tB = agv_has(p, args, HAS_TB);
    page->has_tdL = agv_has(p, args, HAS_TDL);
    agv_add_facts(&page->facts, p, args);
}

/* ---- All of it ---- */

/* A trace checks its call before its workspace: that there is none is all that it may find wrong. */
static ag_status check_call(const ag_problem *p, const ag_args *args)
{
    const ag_trace_args nothing = {.struct_size = sizeof nothing};
    ag_options options = AG_OPTIONS_INIT;
    ag_plan *plan;
    options.backend = AG_BACKEND_REFERENCE;
    options.threads = 1;
    ag_status status = ag_plan_create(&plan, p, &options);
    if (status == AG_OK && p->batch > 0) {
        status = ag_trace(plan, AG_MAP_FORWARD, args, &nothing, NULL, 0);
        status = status == AG_WORKSPACE ? AG_OK : status;
    }
    ag_plan_destroy(plan);
    return status;
}

static ag_status check_request(const ag_problem *p, const agv_request *request, char *message)
{
    ag_status status = check_list(request->batches, request->n_batches, p->batch, "sequence", message);
    return status == AG_OK ? check_list(request->heads, request->n_heads, p->heads, "head", message) : status;
}

/* Chooses how much of each head is shown. If not all heads fit in full and none were asked for, the first is shown
 * alone. */
static ag_status choose_extents(agv_page *page, const ag_plan *plan, const ag_args *args,
                                const agv_request *request, char *message)
{
    const bool asked = request->n_batches > 0 || request->n_heads > 0;
    bool full = true;
    ag_status status = AG_OK;
    for (int64_t n = 0; n < page->n_heads && status == AG_OK; n++) {
        const agv_source s = agv_source_of(plan, args, page->heads[n].batch, page->heads[n].head);
        status = check_window(&s, request, message);
        status = status == AG_OK ? choose_extent(page, &page->heads[n], &s, request, message) : status;
        full = full && page->heads[n].extent.is_full;
    }
    if (status != AG_OK || full || asked || page->n_heads == 1) {
        return status;
    }
    page->n_heads = 1;
    return choose_extents(page, plan, args, request, message);
}

/* Rows of queries that the maps run over, one after another. */
static double count_rows(const agv_page *page, const ag_plan *plan, const ag_args *args)
{
    double rows = agv_rows_along(page);
    for (int64_t n = 0; n < page->n_heads; n++) {
        rows += (double)agv_source_of(plan, args, page->heads[n].batch, page->heads[n].head).n_q;
    }
    return rows;
}

static ag_status fill_page(agv_page *page, const ag_plan *plan, const ag_args *args,
                           const agv_request *request, char *message)
{
    agv_progress progress = {request, 0, 0};
    for (int64_t n = 0; n < page->n_heads; n++) {
        agv_describe_head(&page->heads[n], plan, args, page->maps);
    }
    ag_status status = choose_extents(page, plan, args, request, message);
    if (status != AG_OK) {
        return status;
    }
    if ((page->maps & AG_MAP_JVP) != 0) {
        agv_choose_along(page, plan, args, request);
    }
    progress.total = count_rows(page, plan, args);
    for (int64_t n = 0; n < page->n_heads && status == AG_OK; n++) {
        status = agv_fill_head(&page->heads[n], plan, args, page->maps, &progress);
    }
    return status == AG_OK ? agv_fill_along(page, plan, args, &progress) : status;
}

ag_status agv_page_of_call(agv_page *page, const ag_plan *plan, const ag_args *args,
                           const agv_request *request, char *message)
{
    const ag_problem *p = ag_plan_problem(plan);
    message[0] = '\0';
    ag_status status = check_call(p, args);
    if (status == AG_OK) {
        status = check_request(p, request, message);
    }
    if (status == AG_OK) {
        status = choose_maps(page, plan, args, request, message);
    }
    if (status == AG_OK) {
        status = list_heads(page, plan, args, request, message);
    }
    if (status == AG_OK) {
        describe_page(page, p, args);
        status = fill_page(page, plan, args, request, message);
    }
    if (status == AG_OK) {
        add_notes(page, plan, args, request);
    } else if (message[0] == '\0') {
        fail(message, status, "%s", status == AG_NO_MEMORY ? "out of memory" : ag_last_message());
    }
    return status;
}
