/* A rank that takes long to compute, without using a processor for long: its poll sleeps. */
#ifndef AG_TEST_SLOW_RANK_H
#define AG_TEST_SLOW_RANK_H

#include "attngrad.h"

#include <stdbool.h>
#include <time.h>

struct slow_rank {
    int naps; /* how many polls have slept: the first ones of a map do */
    bool computes;
};

/* All naps are longer than the timeout; one of them leaves a busy machine 2.5 s to be late. */
enum { SLOW_NAPS = 3, SLOW_TIMEOUT_S = 4 };
static const struct timespec slow_nap = {1, 500000000};

/* Not while the rank waits for messages: a rank that sleeps there gives no sign that it computes. */
static inline int32_t slow_poll(void *ctx)
{
    struct slow_rank *x = ctx;
    if (x->computes && x->naps < SLOW_NAPS) {
        x->naps++;
        nanosleep(&slow_nap, NULL);
    }
    return 0;
}

/* All tasks on the thread that polls: others would go on while it sleeps. */
static inline void slow_run(void *ctx, int64_t n_tasks, ag_task task, void *arg)
{
    struct slow_rank *x = ctx;
    x->computes = true;
    for (int64_t n = 0; n < n_tasks; n++) {
        task(arg, n);
    }
    x->computes = false;
}

static inline ag_exec slow_exec(struct slow_rank *x)
{
    return (ag_exec){.struct_size = sizeof(ag_exec), .ctx = x, .run = slow_run, .poll = slow_poll};
}

#endif
