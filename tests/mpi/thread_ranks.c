/* Ranks as threads: see thread_ranks.h. One mutex guards the list of messages of a world. */
#include "thread_ranks.h"

#include "test.h"

struct message {
    int32_t from, to, tag;
    bool is_send, matched, done, abandoned;
    void *data;
    size_t bytes;
    uint64_t number; /* order of posting */
    int32_t slot;
    struct message *partner;
};

enum { MESSAGES = 4096 };

struct thread_world {
    pthread_mutex_t mutex;
    int32_t size;
    uint64_t posted;
    struct message messages[MESSAGES];
    bool used[MESSAGES];
    struct thread_rank ranks[THREAD_RANKS];
    bool has_sign[THREAD_RANKS]; /* since the rank last asked */
};

static int32_t silent_rank = -1, silent_after = -1;

void thread_ranks_silence(int32_t rank, int32_t after)
{
    silent_rank = rank;
    silent_after = after;
}

static bool begin(void *ctx, int32_t slots)
{
    (void)ctx;
    (void)slots;
    return true;
}

/* Forgets what this rank has posted. */
static void finish(void *ctx, bool failed)
{
    const struct thread_rank *r = ctx;
    (void)failed;
    pthread_mutex_lock(&r->world->mutex);
    for (int n = 0; n < MESSAGES; n++) {
        const struct message *m = &r->world->messages[n];
        if (r->world->used[n] && (m->is_send ? m->from : m->to) == r->rank) {
            r->world->used[n] = false;
        }
    }
    pthread_mutex_unlock(&r->world->mutex);
}

/* The oldest message that fits m and has no partner. */
static struct message *partner_of(struct thread_world *w, const struct message *m)
{
    struct message *best = NULL;
    for (int n = 0; n < MESSAGES; n++) {
        struct message *x = &w->messages[n];
        if (w->used[n] && !x->matched && x->is_send != m->is_send && x->from == m->from && x->to == m->to &&
            x->tag == m->tag && (best == NULL || x->number < best->number)) {
            best = x;
        }
    }
    return best;
}

static void deliver(struct message *m, struct message *partner)
{
    const struct message *send = m->is_send ? m : partner;
    struct message *receive = m->is_send ? partner : m;
    CHECK(send->bytes == receive->bytes, "rank %d sends %zu bytes, rank %d expects %zu", (int)send->from,
          send->bytes, (int)send->to, receive->bytes);
    if (!receive->abandoned && !send->abandoned && send->bytes == receive->bytes) {
        memcpy(receive->data, send->data, send->bytes);
    }
    m->matched = m->done = partner->matched = partner->done = true;
}

static bool post(void *ctx, const struct message *given)
{
    struct thread_rank *r = ctx;
    struct thread_world *w = r->world;
    int n = 0;
    pthread_mutex_lock(&w->mutex);
    while (n < MESSAGES && w->used[n]) {
        n++;
    }
    const bool room = n < MESSAGES;
    if (room) {
        struct message *m = &w->messages[n];
        *m = *given;
        m->number = w->posted++;
        w->used[n] = true;
        const bool silent = m->is_send && r->silent_after >= 0 && r->silent_after-- <= 0;
        r->silent_after = silent ? 0 : r->silent_after;
        struct message *partner = silent ? NULL : partner_of(w, m);
        m->matched = silent;
        if (partner != NULL) {
            deliver(m, partner);
        }
    }
    pthread_mutex_unlock(&w->mutex);
    return room;
}

static bool send_message(void *ctx, int32_t slot, int32_t to, int32_t tag, const void *data, size_t bytes)
{
    const struct thread_rank *r = ctx;
    const struct message m = {.from = r->rank,
                              .to = to,
                              .tag = tag,
                              .is_send = true,
                              .data = (void *)(uintptr_t)data,
                              .bytes = bytes,
                              .slot = slot};
    return post(ctx, &m);
}

static bool receive_message(void *ctx, int32_t slot, int32_t from, int32_t tag, void *data, size_t bytes)
{
    const struct thread_rank *r = ctx;
    const struct message m = {
        .from = from, .to = r->rank, .tag = tag, .data = data, .bytes = bytes, .slot = slot};
    return post(ctx, &m);
}

/* This rank's message of a slot; NULL if there is none. */
static struct message *find(const struct thread_rank *r, int32_t slot, int *index)
{
    for (int n = 0; n < MESSAGES; n++) {
        struct message *m = &r->world->messages[n];
        if (r->world->used[n] && m->slot == slot && (m->is_send ? m->from : m->to) == r->rank) {
            *index = n;
            return m;
        }
    }
    return NULL;
}

static int test_slot(void *ctx, int32_t slot)
{
    const struct thread_rank *r = ctx;
    int index = 0;
    pthread_mutex_lock(&r->world->mutex);
    const struct message *m = find(r, slot, &index);
    const int result = m == NULL ? -1 : m->done;
    if (m != NULL && m->done) {
        r->world->used[index] = false;
    }
    pthread_mutex_unlock(&r->world->mutex);
    return result;
}

static void sign(void *ctx)
{
    const struct thread_rank *r = ctx;
    pthread_mutex_lock(&r->world->mutex);
    for (int32_t n = 0; n < r->world->size; n++) {
        r->world->has_sign[n] |= n != r->rank && r->silent_after != 0;
    }
    pthread_mutex_unlock(&r->world->mutex);
}

static bool has_sign(void *ctx)
{
    const struct thread_rank *r = ctx;
    pthread_mutex_lock(&r->world->mutex);
    const bool any = r->world->has_sign[r->rank];
    r->world->has_sign[r->rank] = false;
    pthread_mutex_unlock(&r->world->mutex);
    return any;
}

static void abandon(void *ctx, int32_t slot)
{
    const struct thread_rank *r = ctx;
    int index = 0;
    pthread_mutex_lock(&r->world->mutex);
    struct message *m = find(r, slot, &index);
    if (m != NULL) {
        m->abandoned = true;
        m->slot = -1;
    }
    pthread_mutex_unlock(&r->world->mutex);
}

static const char *reason(void *ctx)
{
    (void)ctx;
    return "no room for another message";
}

struct start {
    agi_mpi_transport transport;
    rank_task task;
    void *arg;
};

static void *run_rank(void *arg)
{
    const struct start *s = arg;
    s->task(&s->transport, s->arg);
    return NULL;
}

void on_thread_ranks(int32_t ranks, rank_task task, void *arg)
{
    struct thread_world *w = calloc(1, sizeof *w);
    pthread_t threads[THREAD_RANKS];
    struct start starts[THREAD_RANKS];
    test_need(w != NULL && ranks <= THREAD_RANKS, "memory for the ranks");
    pthread_mutex_init(&w->mutex, NULL);
    w->size = ranks;
    for (int32_t n = 0; n < ranks; n++) {
        w->ranks[n] = (struct thread_rank){w, n, n == silent_rank ? silent_after : -1};
        starts[n] = (struct start){{.ctx = &w->ranks[n],
                                    .rank = n,
                                    .size = ranks,
                                    .threads = AGI_MPI_SERIALIZED,
                                    .begin = begin,
                                    .finish = finish,
                                    .send = send_message,
                                    .receive = receive_message,
                                    .test = test_slot,
                                    .sign = sign,
                                    .has_sign = has_sign,
                                    .abandon = abandon,
                                    .reason = reason},
                                   task,
                                   arg};
        test_need(pthread_create(&threads[n], NULL, run_rank, &starts[n]) == 0, "threads");
    }
    for (int32_t n = 0; n < ranks; n++) {
        pthread_join(threads[n], NULL);
    }
    pthread_mutex_destroy(&w->mutex);
    free(w);
}
