/* Writes a page: the files of page/ with the title, the data and the arrays in their places. The data, a JSON object:
 *
 *     title facts notes version     texts; facts and notes are lists
 *     maps                          the names of the maps that it shows
 *     scale softcap                 numbers
 *     features                      {softcap, dropout, bias, alibi, givenBias, sink, dL, tB, tdL, layer}: what the
 *                                   problem has; bias is alibi, givenBias or both
 *     layer                         null, or {heads}
 *     steps                         null, or the list of e at which variables were computed at x + e tx
 *     variables                     those of the layer
 *     heads                         [{batch, head, slope, first, variables, pool, window, along}]; slope of ALiBi,
 *                                   positions of the first query and key, sizes of blocks, queries and keys in full,
 *                                   queries and keys along the tangent
 *
 * A variable is {name, axes, shape, absent, stats} and its arrays: full, or mean, peak and window; along. An array is
 * {id, type}: the numbers are base64 in the script element of that id, as f32, f64 or u8. absent: an input that was not
 * given, zeros. The variable "hidden" has 1 for pairs of a query and a key that it does not see; it is not shown. */
#include "view/embedded.h"
#include "view/page.h"
#include "view/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The data and the arrays are written side by side, as an array gets its id when its variable is written. */
typedef struct {
    agv_text data, arrays;
    int next_id;
} writer;

static void add_string(agv_text *text, const char *string)
{
    agv_text_add(text, string, strlen(string));
}

static void add_lines(agv_text *text, const char *key, const agv_lines *lines)
{
    agv_text_format(text, "\"%s\":[", key);
    for (int n = 0; n < lines->count; n++) {
        add_string(text, n > 0 ? "," : "");
        agv_text_json(text, lines->lines[n]);
    }
    add_string(text, "],");
}

static void add_numbers(agv_text *text, const char *key, const double *values, int count)
{
    agv_text_format(text, "\"%s\":[", key);
    for (int n = 0; n < count; n++) {
        add_string(text, n > 0 ? "," : "");
        agv_text_number(text, values[n]);
    }
    add_string(text, "]");
}

/* ---- Variables ---- */

static void add_stats(agv_text *text, const agv_stats *s)
{
    const double count = s->finite > 0 ? (double)s->finite : 1;
    const double numbers[] = {agv_norm(s), s->sum / count, s->finite > 0 ? s->min : 0,
                              s->finite > 0 ? s->max : 0};
    static const char *const names[] = {"norm", "mean", "min", "max"};
    add_string(text, "\"stats\":{");
    for (int n = 0; n < 4; n++) {
        agv_text_format(text, "\"%s\":", names[n]);
        agv_text_number(text, numbers[n]);
        add_string(text, ",");
    }
    agv_text_format(text, "\"nan\":%lld,\"infinite\":%lld,\"hidden\":%lld}", (long long)s->nan,
                    (long long)s->infinite, (long long)s->hidden);
}

static void add_array(writer *w, const char *key, const agv_array *array)
{
    if (array->values == NULL) {
        return;
    }
    agv_text_format(&w->data, ",\"%s\":{\"id\":\"a%d\",\"type\":\"%s\"}", key, w->next_id,
                    array->width == 8   ? "f64"
                    : array->width == 4 ? "f32"
                                        : "u8");
    agv_text_format(&w->arrays, "<script type=\"text/plain\" id=\"a%d\">", w->next_id++);
    agv_text_base64(&w->arrays, array->values, array->count, array->width);
    add_string(&w->arrays, "</script>\n");
}

static void add_variable(writer *w, const agv_variable *v)
{
    add_string(&w->data, "{\"name\":");
    agv_text_json(&w->data, v->name);
    agv_text_format(&w->data, ",\"axes\":\"%s\",\"shape\":[%lld,%lld],", v->axes, (long long)v->shape[0],
                    (long long)v->shape[1]);
    add_string(&w->data, v->is_absent ? "\"absent\":true," : "");
    add_stats(&w->data, &v->stats);
    add_array(w, "full", &v->full);
    add_array(w, "mean", &v->mean);
    add_array(w, "peak", &v->peak);
    add_array(w, "window", &v->window);
    add_array(w, "along", &v->along);
    add_string(&w->data, "}");
}

static void add_list(writer *w, const agv_list *list)
{
    add_string(&w->data, "\"variables\":[");
    for (int n = 0; n < list->count; n++) {
        add_string(&w->data, n > 0 ? ",\n" : "\n");
        add_variable(w, &list->items[n]);
    }
    add_string(&w->data, "]");
}

/* ---- The data ---- */

/* Ranges of queries and keys. */
static void add_window(agv_text *text, const char *key, const int64_t window[4])
{
    agv_text_format(text, "\"%s\":{\"queries\":[%lld,%lld],\"keys\":[%lld,%lld]},", key, (long long)window[0],
                    (long long)window[1], (long long)window[2], (long long)window[3]);
}

static void add_head(writer *w, const agv_page *page, const agv_head *head)
{
    const agv_extent *e = &head->extent;
    agv_text_format(&w->data, "{\"batch\":%lld,\"head\":%lld,", (long long)head->batch,
                    (long long)head->head);
    if (page->has_alibi) {
        add_string(&w->data, "\"slope\":");
        agv_text_number(&w->data, head->slope);
        agv_text_format(&w->data, ",\"first\":[%lld,%lld],", (long long)head->first[0],
                        (long long)head->first[1]);
    }
    if (!e->is_full) {
        agv_text_format(&w->data, "\"pool\":{\"queries\":%lld,\"keys\":%lld},", (long long)e->pool[0],
                        (long long)e->pool[1]);
        add_window(&w->data, "window", e->window);
    }
    if (page->n_steps > 0) {
        add_window(&w->data, "along", head->along);
    }
    add_list(w, &head->variables);
    add_string(&w->data, "}");
}

static void add_features(agv_text *text, const agv_page *page)
{
    const struct {
        const char *name;
        bool has;
    } features[] = {{"softcap", page->softcap > 0},
                    {"dropout", page->has_dropout},
                    {"bias", page->has_bias},
                    {"alibi", page->has_alibi},
                    {"givenBias", page->has_given_bias},
                    {"sink", page->has_sink},
                    {"dL", page->has_dL},
                    {"tB", page->has_tB},
                    {"tdL", page->has_tdL},
                    {"layer", page->layer_heads > 0}};
    add_string(text, "\"features\":{");
    for (size_t n = 0; n < sizeof features / sizeof features[0]; n++) {
        agv_text_format(text, "%s\"%s\":%s", n > 0 ? "," : "", features[n].name,
                        features[n].has ? "true" : "false");
    }
    add_string(text, "},");
}

static void add_maps(agv_text *text, uint32_t maps)
{
    static const struct {
        uint32_t map;
        const char *name;
    } names[] = {
        {AG_MAP_FORWARD, "forward"}, {AG_MAP_VJP, "vjp"}, {AG_MAP_JVP, "jvp"}, {AG_MAP_VJP_JVP, "vjp_jvp"}};
    bool first = true;
    add_string(text, "\"maps\":[");
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        if (maps & names[n].map) {
            agv_text_format(text, "%s\"%s\"", first ? "" : ",", names[n].name);
            first = false;
        }
    }
    add_string(text, "],");
}

static void add_page(writer *w, const agv_page *page)
{
    agv_text *text = &w->data;
    add_string(text, "{\"title\":");
    agv_text_json(text, page->title);
    agv_text_format(text, ",\"version\":\"%s\",", ag_version_string());
    add_lines(text, "facts", &page->facts);
    add_lines(text, "notes", &page->notes);
    add_maps(text, page->maps);
    add_string(text, "\"scale\":");
    agv_text_number(text, page->scale);
    add_string(text, ",\"softcap\":");
    agv_text_number(text, page->softcap);
    add_string(text, ",");
    add_features(text, page);
    if (page->layer_heads > 0) {
        agv_text_format(text, "\"layer\":{\"heads\":%lld},", (long long)page->layer_heads);
    } else {
        add_string(text, "\"layer\":null,");
    }
    if (page->n_steps > 0) {
        add_numbers(text, "steps", page->steps, page->n_steps);
        add_string(text, ",");
    } else {
        add_string(text, "\"steps\":null,");
    }
    add_list(w, &page->layer);
    add_string(text, ",\"heads\":[");
    for (int64_t n = 0; n < page->n_heads; n++) {
        add_string(text, n > 0 ? ",\n" : "\n");
        add_head(w, page, &page->heads[n]);
    }
    add_string(text, "]}");
}

/* ---- The file ---- */

static void add_script(agv_text *text)
{
    add_string(text, "\"use strict\";\n");
    for (int n = 0; n < agv_embedded_count; n++) {
        const agv_embedded *file = &agv_embedded_files[n];
        if (strstr(file->name, ".js") != NULL) {
            agv_text_add(text, file->bytes, file->size);
        }
    }
}

static const agv_embedded *find_file(const char *name)
{
    const agv_embedded *file = agv_embedded_files;
    while (strcmp(file->name, name) != 0) {
        file++;
    }
    return file;
}

static void add_place(agv_text *text, const char *place, const writer *w, const agv_page *page)
{
    if (strncmp(place, "@title@", 7) == 0) {
        agv_text_html(text, page->title);
    } else if (strncmp(place, "@style@", 7) == 0) {
        agv_text_add(text, find_file("page.css")->bytes, find_file("page.css")->size);
    } else if (strncmp(place, "@script@", 8) == 0) {
        add_script(text);
    } else if (strncmp(place, "@data@", 6) == 0) {
        agv_text_add(text, w->data.data, w->data.size);
    } else {
        agv_text_add(text, w->arrays.data, w->arrays.size);
    }
}

/* The template with each "@place@" replaced; it has no other @. */
static void add_frame(agv_text *text, const writer *w, const agv_page *page)
{
    const agv_embedded *frame = find_file("page.html");
    const char *at = (const char *)frame->bytes, *end = at + frame->size;
    while (at < end) {
        const char *place = memchr(at, '@', (size_t)(end - at));
        agv_text_add(text, at, (size_t)((place != NULL ? place : end) - at));
        if (place == NULL) {
            return;
        }
        add_place(text, place, w, page);
        at = (const char *)memchr(place + 1, '@', (size_t)(end - place - 1)) + 1;
    }
}

ag_status agv_page_write(const agv_page *page, char **bytes, size_t *size)
{
    writer w = {{NULL, 0, 0, false}, {NULL, 0, 0, false}, 0};
    agv_text text = {NULL, 0, 0, false};
    add_page(&w, page);
    add_frame(&text, &w, page);
    const bool failed = w.data.failed || w.arrays.failed || text.failed;
    free(w.data.data);
    free(w.arrays.data);
    if (failed) {
        free(text.data);
        return AG_NO_MEMORY;
    }
    *bytes = text.data;
    *size = text.size;
    return AG_OK;
}
