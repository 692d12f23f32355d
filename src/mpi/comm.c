/* Slots, waiting, and the thread that moves messages on: see comm.h. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime, nanosleep */
#include "mpi/comm.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mpi/message.h"

enum { FREE, UNDER_WAY, COMPLETE };

/* Tries before a wait gives up its processor, first for a moment and then for a longer one. */
enum { SPINS = 200, YIELDS = 400 };

/* Nanoseconds between two looks at the messages: of a long wait, and of the thread. */
enum { WAIT_NS = 50000, THREAD_NS = 200000 };

/* Parts of timeout_s: a rank that computes gives a sign of it every eighth, one that waits looks for signs after a
 * quarter without a message. */
static const double sign_part = 0.125, look_part = 0.25;

double agi_mpi_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void lock(agi_mpi_comm *c)
{
    pthread_mutex_lock(&c->mutex);
}

static void unlock(agi_mpi_comm *c)
{
    pthread_mutex_unlock(&c->mutex);
}

/* ---- Under the lock ---- */

static void fail(agi_mpi_comm *c, ag_status status, const char *reason)
{
    c->failed = status;
    snprintf(c->reason, sizeof c->reason, "%s", reason);
    for (int32_t slot = 0; slot < c->slots; slot++) {
        if (c->state[slot] == UNDER_WAY) {
            c->t.abandon(c->t.ctx, slot);
            c->state[slot] = FREE;
        }
    }
    c->under_way = 0;
}

static void progress(agi_mpi_comm *c)
{
    for (int32_t slot = 0; slot < c->slots && c->failed == AG_OK; slot++) {
        if (c->state[slot] != UNDER_WAY) {
            continue;
        }
        const int done = c->t.test(c->t.ctx, slot);
        if (done < 0) {
            fail(c, AG_DEVICE, c->t.reason(c->t.ctx));
        } else if (done > 0) {
            c->state[slot] = COMPLETE;
            c->under_way--;
            c->last_progress = agi_mpi_seconds();
        }
    }
}

static void give_sign(agi_mpi_comm *c)
{
    const double now = agi_mpi_seconds();
    if (c->t.size > 1 && c->failed == AG_OK && now - c->last_sign > sign_part * c->timeout_s) {
        c->t.sign(c->t.ctx);
        c->last_sign = now;
    }
}

static void look_for_signs(agi_mpi_comm *c)
{
    const double now = agi_mpi_seconds();
    if (now - c->last_progress > look_part * c->timeout_s && c->t.has_sign(c->t.ctx)) {
        c->last_progress = now;
    }
}

static int32_t free_slot(agi_mpi_comm *c)
{
    for (int32_t slot = 0; slot < c->slots; slot++) {
        if (c->state[slot] == FREE) {
            return slot;
        }
    }
    fail(c, AG_DEVICE, "too many messages under way");
    return AGI_MPI_NO_SLOT;
}

/* Claims a slot for a message; AGI_MPI_NO_SLOT if there is nothing to send. */
static int32_t claim(agi_mpi_comm *c, size_t bytes)
{
    return bytes == 0 || c->failed != AG_OK ? AGI_MPI_NO_SLOT : free_slot(c);
}

static int32_t started(agi_mpi_comm *c, int32_t slot, bool good)
{
    if (!good) {
        fail(c, AG_DEVICE, c->t.reason(c->t.ctx));
        return AGI_MPI_NO_SLOT;
    }
    c->state[slot] = UNDER_WAY;
    c->under_way++;
    pthread_cond_signal(&c->wake);
    return slot;
}

/* ---- The thread ---- */

static void *run_thread(void *comm)
{
    const struct timespec moment = {0, THREAD_NS};
    agi_mpi_comm *c = comm;
    lock(c);
    while (!c->quit) {
        if (!c->active || c->under_way == 0) {
            pthread_cond_wait(&c->wake, &c->mutex);
            continue;
        }
        progress(c);
        unlock(c);
        nanosleep(&moment, NULL);
        lock(c);
    }
    unlock(c);
    return NULL;
}

bool agi_mpi_start_thread(agi_mpi_comm *c)
{
    c->has_thread = pthread_create(&c->thread, NULL, run_thread, c) == 0;
    return c->has_thread;
}

static void end_thread(agi_mpi_comm *c)
{
    if (c->has_thread) {
        lock(c);
        c->quit = true;
        pthread_cond_signal(&c->wake);
        unlock(c);
        pthread_join(c->thread, NULL);
    }
}

void agi_mpi_call_begin(agi_mpi_comm *c)
{
    c->cancelled = false;
    c->bytes_sent = 0;
    c->seconds_waiting = 0;
    lock(c);
    c->last_sign = agi_mpi_seconds();
    if (c->failed == AG_OK) {
        c->t.has_sign(c->t.ctx); /* those of earlier calls are forgotten */
    }
    c->active = true;
    pthread_cond_signal(&c->wake);
    unlock(c);
}

void agi_mpi_call_end(agi_mpi_comm *c)
{
    lock(c);
    c->active = false;
    unlock(c);
}

/* ---- Beginning and ending ---- */

/* Of an all-to-all exchange each rank has two messages with each other one under way, of a ring fewer than 20. */
static int32_t slots_needed(int32_t ranks)
{
    return 2 * ranks + 32;
}

bool agi_mpi_comm_begin(agi_mpi_comm *c, const agi_mpi_transport *t)
{
    memset(c, 0, sizeof *c);
    c->t = *t;
    c->slots = slots_needed(t->size);
    c->state = calloc((size_t)c->slots, 1);
    if (c->state == NULL || !t->begin(t->ctx, c->slots)) {
        free(c->state);
        t->finish(t->ctx, true);
        return false;
    }
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->wake, NULL);
    return true;
}

void agi_mpi_comm_finish(agi_mpi_comm *c)
{
    end_thread(c);
    c->t.finish(c->t.ctx, c->failed != AG_OK);
    pthread_mutex_destroy(&c->mutex);
    pthread_cond_destroy(&c->wake);
    free(c->state);
}

/* ---- Messages ---- */

int32_t agi_mpi_send(agi_mpi_comm *c, int32_t to, int32_t tag, const void *data, size_t bytes)
{
    lock(c);
    int32_t slot = claim(c, bytes);
    if (slot != AGI_MPI_NO_SLOT) {
        slot = started(c, slot, c->t.send(c->t.ctx, slot, to, tag, data, bytes));
    }
    unlock(c);
    if (tag != AGI_MPI_TAG_AGREE) {
        c->bytes_sent += (int64_t)bytes;
    }
    return slot;
}

int32_t agi_mpi_receive(agi_mpi_comm *c, int32_t from, int32_t tag, void *data, size_t bytes)
{
    lock(c);
    int32_t slot = claim(c, bytes);
    if (slot != AGI_MPI_NO_SLOT) {
        slot = started(c, slot, c->t.receive(c->t.ctx, slot, from, tag, data, bytes));
    }
    unlock(c);
    return slot;
}

static void ask_caller(agi_mpi_comm *c)
{
    if (c->user != NULL && c->user->poll != NULL && !c->cancelled) {
        c->cancelled = c->user->poll(c->user->ctx) != 0;
    }
}

int32_t agi_mpi_poll(void *comm)
{
    agi_mpi_comm *c = comm;
    lock(c);
    progress(c);
    give_sign(c);
    const bool failed = c->failed != AG_OK;
    unlock(c);
    ask_caller(c);
    return c->cancelled || failed;
}

/* Lets others run: ranks may share processors. */
static void pause_after(int tries)
{
    const struct timespec moment = {0, WAIT_NS};
    if (tries > YIELDS) {
        nanosleep(&moment, NULL);
    } else if (tries > SPINS) {
        sched_yield();
    }
}

/* One look at the message of a slot. Frees the slot if it is complete; fails if nothing has happened for too long. */
static bool is_over(agi_mpi_comm *c, int32_t slot)
{
    char reason[96];
    lock(c);
    progress(c);
    const bool complete = c->failed == AG_OK && c->state[slot] == COMPLETE;
    if (!complete && c->failed == AG_OK) {
        look_for_signs(c);
    }
    if (complete) {
        c->state[slot] = FREE;
    } else if (c->failed == AG_OK && agi_mpi_seconds() - c->last_progress > c->timeout_s) {
        snprintf(reason, sizeof reason,
                 "no message arrived or left and no rank computed for %g seconds (timeout_s)", c->timeout_s);
        fail(c, AG_TIMEOUT, reason);
    }
    const bool failed = c->failed != AG_OK;
    unlock(c);
    return complete || failed;
}

static ag_status status_of(agi_mpi_comm *c)
{
    lock(c);
    const ag_status status = c->failed;
    if (status != AG_OK) {
        agi_mpi_fail(status, "", "rank %d: %s", (int)c->t.rank, c->reason);
    }
    unlock(c);
    return status;
}

ag_status agi_mpi_wait(agi_mpi_comm *c, int32_t slot)
{
    const double start = agi_mpi_seconds();
    if (slot != AGI_MPI_NO_SLOT) {
        lock(c);
        c->last_progress = start;
        unlock(c);
        for (int tries = 0; !is_over(c, slot); tries++) {
            pause_after(tries);
            if (tries % 64 == 63) {
                ask_caller(c);
            }
        }
        c->seconds_waiting += agi_mpi_seconds() - start;
    }
    return status_of(c);
}

ag_status agi_mpi_wait_all(agi_mpi_comm *c)
{
    ag_status status = status_of(c);
    for (int32_t slot = 0; slot < c->slots && status == AG_OK; slot++) {
        lock(c);
        const bool used = c->state[slot] != FREE;
        unlock(c);
        status = used ? agi_mpi_wait(c, slot) : AG_OK;
    }
    return status;
}
