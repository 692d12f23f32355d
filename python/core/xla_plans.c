/* The plans of the problems that XLA's programs have. A plan is made by the first call that needs it and kept for the
 * next ones. If there are more than max_plans, the least recently used ones are destroyed, but none that a call is
 * using. A plan is in two lists: one of many, chosen by the hash of its key, in which it is found, and one of all plans
 * by their last use. One lock guards them; plans are made and destroyed outside it. */
#include "xla.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_THREADS = 1024, /* of ag_options */
    N_LISTS = 1024
};

/* What a plan is made of. */
typedef struct {
    char text[XLA_TEXT];
    int64_t threads, backend, flags;
    const xf_array *slopes, *buckets;
} request;

struct xla_plan {
    xla_plan *next;          /* in the list of its hash */
    xla_plan *newer, *older; /* by last use */
    char *key;
    size_t length;
    ag_plan *plan;
    int64_t users; /* calls that are using it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static xla_plan *lists[N_LISTS], *newest, *oldest;
static int64_t n_plans, n_made, max_plans = 1024;

/* ---- The lists; call these with the lock ---- */

/* The list that the key belongs to, by FNV-1a. */
static xla_plan **list_of(const char *key, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)key[i]) * 0x100000001b3u;
    }
    return &lists[hash % N_LISTS];
}

static void unlink_by_use(xla_plan *p)
{
    *(p->newer != NULL ? &p->newer->older : &newest) = p->older;
    *(p->older != NULL ? &p->older->newer : &oldest) = p->newer;
}

static void push_newest(xla_plan *p)
{
    p->newer = NULL;
    p->older = newest;
    *(newest != NULL ? &newest->newer : &oldest) = p;
    newest = p;
}

/* The plan of the key, which the caller is using from now on; NULL if there is none. */
static xla_plan *find(const char *key, size_t length)
{
    xla_plan *p = *list_of(key, length);
    while (p != NULL && (p->length != length || memcmp(p->key, key, length) != 0)) {
        p = p->next;
    }
    if (p != NULL) {
        unlink_by_use(p);
        push_newest(p);
        p->users++;
    }
    return p;
}

static void insert(xla_plan *p)
{
    xla_plan **list = list_of(p->key, p->length);
    p->next = *list;
    *list = p;
    push_newest(p);
    n_plans++;
    n_made++;
}

static void take_out(xla_plan *p)
{
    xla_plan **at = list_of(p->key, p->length);
    while (*at != p) {
        at = &(*at)->next;
    }
    *at = p->next;
    unlink_by_use(p);
    n_plans--;
}

/* Takes out the least recently used plans, except those in use, until there are at most max_plans; returns them as a
 * list. */
static xla_plan *take_out_old(void)
{
    xla_plan *out = NULL;
    for (xla_plan *p = oldest, *newer; p != NULL && n_plans > max_plans; p = newer) {
        newer = p->newer;
        if (p->users == 0) {
            take_out(p);
            p->next = out;
            out = p;
        }
    }
    return out;
}

/* ---- Outside the lock ---- */

static void destroy(xla_plan *list)
{
    while (list != NULL) {
        xla_plan *next = list->next;
        ag_plan_destroy(list->plan);
        free(list->key);
        free(list);
        list = next;
    }
}

static xla_plan *find_plan(const char *key, size_t length)
{
    pthread_mutex_lock(&lock);
    xla_plan *p = find(key, length);
    pthread_mutex_unlock(&lock);
    return p;
}

/* Keeps a new plan. If another thread was faster, destroys it and returns the plan of that thread. */
static xla_plan *keep_plan(xla_plan *made)
{
    pthread_mutex_lock(&lock);
    xla_plan *p = find(made->key, made->length), *old = made;
    if (p == NULL) {
        p = made;
        insert(p);
        old = take_out_old();
    }
    pthread_mutex_unlock(&lock);
    destroy(old);
    return p;
}

void core_xla_end_plan(xla_plan *kept)
{
    pthread_mutex_lock(&lock);
    kept->users--;
    xla_plan *old = take_out_old();
    pthread_mutex_unlock(&lock);
    destroy(old);
}

xla_plan_counts core_xla_bound_plans(int64_t max)
{
    pthread_mutex_lock(&lock);
    const int64_t before = max_plans;
    max_plans = max;
    xla_plan *old = take_out_old();
    const xla_plan_counts counts = {before, n_plans, n_made};
    pthread_mutex_unlock(&lock);
    destroy(old);
    return counts;
}

/* ---- The request ---- */

/* An attribute of 64 bits that a field of ag_options with fewer bits gets. */
static xf_error *read_number(const xf_frame *frame, const char *name, int64_t max, int64_t *number)
{
    xf_error *error = core_xla_number(frame, name, number);
    if (error == NULL && (*number < 0 || *number > max)) {
        return core_xla_fail(frame, XF_INVALID_ARGUMENT, "%s is %lld: must be from 0 to %lld", name,
                             (long long)*number, (long long)max);
    }
    return error;
}

static int is_text_complete(int length)
{
    return length >= 0 && length < XLA_TEXT;
}

/* The sizes of q, k and v, whose ranks are checked, and the words of the attribute. */
static xf_error *write_text(const xla_call *call, char *text)
{
    const xf_span *words = core_xla_attribute(call->frame, "problem", XF_ATTR_STRING);
    const xla_item *q = core_xla_find(call, XLA_Q), *k = core_xla_find(call, XLA_K);
    const xla_item *v = core_xla_find(call, XLA_V), *packed = core_xla_find(call, XLA_Q_PACKED);
    if (words == NULL || q == NULL || k == NULL || v == NULL) {
        return core_xla_fail(call->frame, XF_INVALID_ARGUMENT, "q, k, v or problem is missing");
    }
    if (words->len >= XLA_TEXT) {
        return core_xla_fail(call->frame, XF_INVALID_ARGUMENT, "problem is too long");
    }
    const xf_array *longest = core_xla_array(call->frame, "longest", XF_S64);
    if (packed != NULL && (longest == NULL || longest->size != 2)) {
        return core_xla_fail(call->frame, XF_INVALID_ARGUMENT, "longest is missing, but q_packed is given");
    }
    const int64_t *lengths = packed != NULL ? longest->data : NULL;
    const long long batch = packed != NULL ? packed->dims[0] - 1 : q->dims[0];
    const long long q_len = lengths != NULL ? lengths[0] : q->dims[1];
    const long long kv_len = lengths != NULL ? lengths[1] : k->dims[1];
    int n = snprintf(text, XLA_TEXT, "b%lld h%lld kv%lld q%lld k%lld d%lld dv%lld %.*s", batch,
                     (long long)q->dims[2], (long long)k->dims[2], q_len, kv_len, (long long)q->dims[3],
                     (long long)v->dims[3], (int)words->len, words->ptr);
    if (packed != NULL && is_text_complete(n)) {
        n += snprintf(text + n, XLA_TEXT - (size_t)n, " packed=%lld,%lld", (long long)q->dims[1],
                      (long long)k->dims[1]);
    }
    return is_text_complete(n) ? NULL
                               : core_xla_fail(call->frame, XF_INVALID_ARGUMENT, "problem is too long");
}

static xf_error *read_request(const xla_call *call, request *r)
{
    const xf_frame *frame = call->frame;
    xf_error *error = write_text(call, r->text);
    error = error == NULL ? read_number(frame, "threads", MAX_THREADS, &r->threads) : error;
    error = error == NULL ? read_number(frame, "backend", INT32_MAX, &r->backend) : error;
    error = error == NULL ? read_number(frame, "flags", UINT32_MAX, &r->flags) : error;
    if (error != NULL) {
        return error;
    }
    if (r->threads == 0) {
        xf_threads_args args = {sizeof args, NULL, frame->ctx, &r->threads};
        error = frame->api->threads(&args);
        r->threads = r->threads < MAX_THREADS ? r->threads : MAX_THREADS;
    }
    r->slopes = core_xla_array(frame, "slopes", XF_F64);
    r->buckets = core_xla_array(frame, "buckets", XF_S32);
    /* cppcheck-suppress returnDanglingLifetime ; XLA returns an object of its own */
    return error;
}

/* Bytes of an array of the attributes, or none. */
typedef struct {
    const void *data;
    size_t size;
} bytes;

/* The bytes that say which plan it is. Returns NULL if there is no memory. */
static char *make_key(const request *r, size_t *length)
{
    const int64_t options[] = {r->threads, r->backend, r->flags};
    const bytes parts[] = {
        {options, sizeof options},
        {r->text, strlen(r->text) + 1},
        {r->slopes != NULL ? r->slopes->data : NULL,
         r->slopes != NULL ? r->slopes->size * sizeof(double) : 0},
        {r->buckets != NULL ? r->buckets->data : NULL,
         r->buckets != NULL ? r->buckets->size * sizeof(int32_t) : 0},
    };
    const size_t n_parts = sizeof parts / sizeof parts[0];
    *length = 0;
    for (size_t i = 0; i < n_parts; i++) {
        *length += parts[i].size;
    }
    char *key = malloc(*length), *to = key;
    for (size_t i = 0; i < n_parts && key != NULL; i++) {
        if (parts[i].size > 0) {
            memcpy(to, parts[i].data, parts[i].size);
            to += parts[i].size;
        }
    }
    return key;
}

/* ---- A new plan ---- */

static xf_error *add_arrays(const xf_frame *frame, const request *r, ag_problem *p)
{
    if (r->slopes != NULL) {
        if ((int64_t)r->slopes->size != p->heads) {
            return core_xla_fail(frame, XF_INVALID_ARGUMENT, "slopes has %zu numbers, must have %lld",
                                 r->slopes->size, (long long)p->heads);
        }
        p->alibi_slopes = r->slopes->data;
    }
    if (r->buckets != NULL) {
        if ((int64_t)r->buckets->size != 2 * p->table_radius + 1) {
            return core_xla_fail(frame, XF_INVALID_ARGUMENT, "buckets has %zu numbers, must have %lld",
                                 r->buckets->size, (long long)(2 * p->table_radius + 1));
        }
        p->buckets = r->buckets->data;
    }
    return NULL;
}

static xf_error *make_plan(const xf_frame *frame, const request *r, ag_plan **plan)
{
    ag_problem problem = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    options.threads = (int32_t)r->threads;
    options.backend = (ag_backend)r->backend;
    options.flags = (uint32_t)r->flags;
    ag_status status = ag_problem_parse(r->text, &problem);
    if (status != AG_OK) {
        return core_xla_fail_status(frame, status);
    }
    xf_error *error = add_arrays(frame, r, &problem);
    if (error != NULL) {
        return error;
    }
    status = ag_plan_create(plan, &problem, &options);
    return status == AG_OK ? NULL : core_xla_fail_status(frame, status);
}

/* A new plan that the caller uses. The key is its own from now on, and freed if it fails. */
static xf_error *new_plan(const xf_frame *frame, const request *r, char *key, size_t length, xla_plan **plan)
{
    xla_plan *p = calloc(1, sizeof *p);
    xf_error *error = p != NULL ? make_plan(frame, r, &p->plan)
                                : core_xla_fail(frame, XF_RESOURCE_EXHAUSTED, "no memory for a plan");
    if (error != NULL) {
        free(key);
        free(p);
        return error;
    }
    p->key = key;
    p->length = length;
    p->users = 1;
    *plan = p;
    return NULL;
}

xf_error *core_xla_find_plan(xla_call *call)
{
    request r;
    xf_error *error = read_request(call, &r);
    if (error != NULL) {
        return error;
    }
    size_t length;
    char *key = make_key(&r, &length);
    if (key == NULL) {
        return core_xla_fail(call->frame, XF_RESOURCE_EXHAUSTED, "no memory for the key of a plan");
    }
    xla_plan *p = find_plan(key, length);
    if (p != NULL) {
        free(key);
    } else {
        error = new_plan(call->frame, &r, key, length, &p);
        if (error != NULL) {
            return error;
        }
        p = keep_plan(p);
    }
    call->kept = p;
    call->plan = p->plan;
    return NULL;
}
