/* Collects the numbers of a page's variables: statistics, all of them or blocks and a window, and along the tangent. */
#include "view/page.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void agv_copy_text(char *to, const char *text)
{
    static const char ellipsis[] = "\xE2\x80\xA6";
    size_t length = strlen(text);
    if (length >= AGV_LINE_SIZE) {
        length = AGV_LINE_SIZE - sizeof ellipsis;
        while (length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80) { /* inside a character */
            length--;
        }
        memcpy(to + length, ellipsis, sizeof ellipsis);
    } else {
        to[length] = '\0';
    }
    memcpy(to, text, length);
}

void agv_add_line(agv_lines *lines, const char *format, ...)
{
    char line[4 * AGV_LINE_SIZE];
    va_list values;
    if (lines->count == AGV_MAX_LINES) {
        return;
    }
    va_start(values, format);
    vsnprintf(line, sizeof line, format, values);
    va_end(values);
    agv_copy_text(lines->lines[lines->count++], line);
}

agv_variable *agv_add_variable(agv_list *list, const char *name, const char *axes, int64_t rows,
                               int64_t columns)
{
    agv_variable *v = &list->items[list->count++];
    memset(v, 0, sizeof *v);
    snprintf(v->name, sizeof v->name, "%s", name);
    snprintf(v->axes, sizeof v->axes, "%s", axes);
    v->shape[0] = rows;
    v->shape[1] = columns;
    v->stats.min = INFINITY;
    v->stats.max = -INFINITY;
    return v;
}

agv_variable *agv_find_variable(agv_list *list, const char *name)
{
    for (int n = 0; n < list->count; n++) {
        if (strcmp(list->items[n].name, name) == 0) {
            return &list->items[n];
        }
    }
    return NULL;
}

/* ---- Room ---- */

static int64_t block_size(const agv_variable *v, const agv_extent *e, int axis)
{
    return v->axes[axis] == 'i' ? e->pool[0] : v->axes[axis] == 'j' ? e->pool[1] : 1;
}

static int64_t blocks(const agv_variable *v, const agv_extent *e, int axis)
{
    int64_t size = block_size(v, e, axis);
    return (v->shape[axis] + size - 1) / size;
}

/* The part [from, to) of an axis that a window of queries and keys has. */
static void window_of(const agv_variable *v, const int64_t window[4], int axis, int64_t *from, int64_t *to)
{
    int first = v->axes[axis] == 'i' ? 0 : v->axes[axis] == 'j' ? 2 : -1;
    *from = first < 0 ? 0 : window[first];
    *to = first < 0 ? v->shape[axis] : window[first + 1];
}

int64_t agv_count_in(const agv_variable *v, const int64_t window[4])
{
    int64_t from[2], to[2];
    window_of(v, window, 0, &from[0], &to[0]);
    window_of(v, window, 1, &from[1], &to[1]);
    return (to[0] - from[0]) * (to[1] - from[1]);
}

static bool make_array(agv_array *array, int64_t count, int width)
{
    array->values = calloc((size_t)(count > 0 ? count : 1), sizeof array->values[0]);
    array->count = count;
    array->width = width;
    return array->values != NULL;
}

ag_status agv_make_room(agv_variable *v, const agv_extent *e)
{
    const int width = v->is_flag ? 1 : e->width;
    if (e->is_full) {
        return make_array(&v->full, v->shape[0] * v->shape[1], width) ? AG_OK : AG_NO_MEMORY;
    }
    const int64_t count = blocks(v, e, 0) * blocks(v, e, 1);
    if (e->window[0] > e->window[1] || e->window[2] > e->window[3]) {
        return AG_INVALID_ARGUMENT;
    }
    v->pooled = calloc((size_t)(count > 0 ? count : 1), sizeof v->pooled[0]);
    bool made = v->pooled != NULL && make_array(&v->mean, count, 4) && make_array(&v->peak, count, 4) &&
                make_array(&v->window, agv_count_in(v, e->window), width);
    return made ? AG_OK : AG_NO_MEMORY;
}

/* ---- Rows ---- */

/* Squares of numbers beyond these limits may overflow or underflow: they are summed after scaling by the other one. */
static const double LARGE = 0x1p500, SMALL = 0x1p-500;

static void add_square(agv_stats *s, double x)
{
    if (fabs(x) > LARGE) {
        s->squares[2] += x * SMALL * (x * SMALL);
    } else if (fabs(x) < SMALL) {
        s->squares[0] += x * LARGE * (x * LARGE);
    } else {
        s->squares[1] += x * x;
    }
}

double agv_norm(const agv_stats *s)
{
    if (s->squares[2] > 0) {
        return sqrt(s->squares[2] + s->squares[1] * SMALL * SMALL) * LARGE;
    }
    return s->squares[1] > 0 ? sqrt(s->squares[1]) : sqrt(s->squares[0]) * SMALL;
}

static void add_to_stats(agv_stats *s, double x)
{
    if (isnan(x)) {
        s->nan++;
    } else if (isinf(x)) {
        s->infinite++;
    } else {
        s->finite++;
        s->sum += x;
        add_square(s, x);
        s->min = x < s->min ? x : s->min;
        s->max = x > s->max ? x : s->max;
    }
}

static bool is_hidden(const double *hidden, int64_t n)
{
    return hidden != NULL && hidden[n] != 0;
}

static void collect_stats(agv_stats *stats, int64_t count, const double *values, const double *hidden)
{
    agv_stats s = *stats; /* in registers */
    for (int64_t n = 0; n < count; n++) {
        if (is_hidden(hidden, n)) {
            s.hidden++;
        } else {
            add_to_stats(&s, values[n]);
        }
    }
    *stats = s;
}

/* Adds numbers first .. end - 1 of a row to a block. */
static void pool_numbers(agv_variable *v, int64_t block, int64_t first, int64_t end, const double *values,
                         const double *hidden)
{
    double sum = 0, peak = v->peak.values[block];
    int64_t count = 0;
    for (int64_t n = first; n < end; n++) {
        if (is_hidden(hidden, n)) {
            continue;
        }
        count++;
        sum += values[n];
        if (!(fabs(values[n]) <= fabs(peak)) && !isnan(peak)) { /* a NaN stays, and is seen */
            peak = values[n];
        }
    }
    v->pooled[block] += count;
    v->mean.values[block] += sum;
    v->peak.values[block] = peak;
}

static void pool_row(agv_variable *v, const agv_extent *e, int64_t row, const double *values,
                     const double *hidden)
{
    const int64_t width = block_size(v, e, 1), first = row / block_size(v, e, 0) * blocks(v, e, 1);
    for (int64_t n = 0; n < v->shape[1]; n += width) {
        const int64_t end = n + width < v->shape[1] ? n + width : v->shape[1];
        pool_numbers(v, first + n / width, n, end, values, hidden);
    }
}

/* Copies what a window has of a row to its place in `kept`, the numbers of the window. */
static void keep_row(const agv_variable *v, const int64_t window[4], int64_t row, const double *values,
                     double *kept)
{
    int64_t from[2], to[2];
    window_of(v, window, 0, &from[0], &to[0]);
    window_of(v, window, 1, &from[1], &to[1]);
    if (row >= from[0] && row < to[0] && to[1] > from[1]) {
        size_t width = (size_t)(to[1] - from[1]);
        memcpy(kept + (row - from[0]) * (int64_t)width, values + from[1], width * sizeof values[0]);
    }
}

void agv_collect(agv_variable *v, const agv_extent *e, int64_t row0, int64_t rows, const double *values,
                 const double *hidden)
{
    const int64_t width = v->shape[1];
    collect_stats(&v->stats, rows * width, values, hidden);
    if (v->full.values != NULL) {
        memcpy(v->full.values + row0 * width, values, (size_t)(rows * width) * sizeof values[0]);
        return;
    }
    for (int64_t r = 0; r < rows; r++) {
        pool_row(v, e, row0 + r, values + r * width, hidden != NULL ? hidden + r * width : NULL);
        keep_row(v, e->window, row0 + r, values + r * width, v->window.values);
    }
}

void agv_finish(agv_variable *v)
{
    const bool is_scores =
        strcmp(v->name, "S") == 0; /* a block without a visible pair is hidden like a pair */
    for (int64_t n = 0; v->pooled != NULL && n < v->mean.count; n++) {
        if (v->pooled[n] > 0) {
            v->mean.values[n] /= (double)v->pooled[n];
        } else if (is_scores) {
            v->mean.values[n] = v->peak.values[n] = -INFINITY;
        }
    }
    free(v->pooled);
    v->pooled = NULL;
}

/* ---- Along the tangent ---- */

ag_status agv_collect_along(const agv_page *page, agv_variable *v, const int64_t part[4], int step,
                            int64_t row0, int64_t rows, const double *values)
{
    const int64_t count = agv_count_in(v, part);
    const int width = count > AGV_DOUBLE_ALONG ? 4 : 8;
    if (v->along.values == NULL && !make_array(&v->along, count * page->n_steps, width)) {
        return AG_NO_MEMORY;
    }
    for (int64_t r = 0; r < rows; r++) {
        keep_row(v, part, row0 + r, values + r * v->shape[1], v->along.values + step * count);
    }
    return AG_OK;
}

/* ---- The end ---- */

static void free_list(agv_list *list)
{
    for (int n = 0; n < list->count; n++) {
        agv_variable *v = &list->items[n];
        double *const memory[] = {v->full.values, v->mean.values, v->peak.values, v->window.values,
                                  v->along.values};
        for (size_t m = 0; m < sizeof memory / sizeof memory[0]; m++) {
            free(memory[m]);
        }
        free(v->pooled);
    }
}

void agv_page_free(agv_page *page)
{
    for (int64_t n = 0; n < page->n_heads && page->heads != NULL; n++) {
        free_list(&page->heads[n].variables);
    }
    free(page->heads);
    free_list(&page->layer);
    memset(page, 0, sizeof *page);
}
