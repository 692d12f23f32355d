/* The plans of the problems that XLA's programs have. A plan is made by the first call that needs it and kept until
 * the process ends: a compiled program may run at any time. New plans are put at the front of one of many lists, by the
 * hash of their key, under a lock; the lists are read without the lock. */
#include "xla.h"

#include <pthread.h>
#include <stdatomic.h>
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

typedef struct entry {
    struct entry *next;
    char *key;
    size_t length;
    ag_plan *plan;
} entry;

static entry *_Atomic lists[N_LISTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The list that the key belongs to, by FNV-1a. */
static entry *_Atomic *list_of(const char *key, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < length; i++) {
        hash = (hash ^ (unsigned char)key[i]) * 0x100000001b3u;
    }
    return &lists[hash % N_LISTS];
}

static const ag_plan *find(const char *key, size_t length)
{
    const entry *e = atomic_load_explicit(list_of(key, length), memory_order_acquire);
    for (; e != NULL; e = e->next) {
        if (e->length == length && memcmp(e->key, key, length) == 0) {
            return e->plan;
        }
    }
    return NULL;
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

/* The bytes that say which plan it is. Returns NULL if there is no memory. */
static char *make_key(const request *r, size_t *length)
{
    char head[XLA_TEXT + 80];
    const size_t n = (size_t)snprintf(head, sizeof head, "%lld %lld %lld %s", (long long)r->threads,
                                      (long long)r->backend, (long long)r->flags, r->text) +
                     1;
    const size_t n_slopes = r->slopes != NULL ? r->slopes->size * sizeof(double) : 0;
    const size_t n_buckets = r->buckets != NULL ? r->buckets->size * sizeof(int32_t) : 0;
    char *key = malloc(n + n_slopes + n_buckets);
    if (key != NULL) {
        memcpy(key, head, n);
        if (n_slopes > 0) {
            memcpy(key + n, r->slopes->data, n_slopes);
        }
        if (n_buckets > 0) {
            memcpy(key + n + n_slopes, r->buckets->data, n_buckets);
        }
    }
    *length = n + n_slopes + n_buckets;
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

/* Puts the plan, and the key, which is its own from now on, into its list. */
static xf_error *keep(const xf_frame *frame, char *key, size_t length, ag_plan *plan)
{
    entry *e = malloc(sizeof *e);
    if (e == NULL) {
        ag_plan_destroy(plan);
        free(key);
        return core_xla_fail(frame, XF_RESOURCE_EXHAUSTED, "no memory for a plan");
    }
    entry *_Atomic *list = list_of(key, length);
    *e = (entry){atomic_load(list), key, length, plan};
    atomic_store_explicit(list, e, memory_order_release);
    return NULL;
}

static xf_error *add_plan(const xf_frame *frame, const request *r, char *key, size_t length,
                          const ag_plan **plan)
{
    xf_error *error = NULL;
    pthread_mutex_lock(&lock);
    *plan = find(key, length); /* another thread may have been faster */
    if (*plan == NULL) {
        ag_plan *made = NULL;
        error = make_plan(frame, r, &made);
        if (error == NULL) {
            error = keep(frame, key, length, made);
            *plan = made;
            key = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    free(key);
    return error;
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
    call->plan = find(key, length);
    if (call->plan == NULL) {
        return add_plan(call->frame, &r, key, length, &call->plan);
    }
    free(key);
    return NULL;
}
