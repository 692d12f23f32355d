/* Waiting for another thread: see pause.h. */
#define _POSIX_C_SOURCE 200809L
#include "core/pause.h"

#include <sched.h>
#include <time.h>

void agi_wait_a_turn(int64_t n)
{
    enum { SPINS = 4096, YIELDS = 4096, SLEEP_NS = 50000 };
    if (n < SPINS) {
        agi_pause();
    } else if (n < SPINS + YIELDS) {
        sched_yield();
    } else {
        nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
    }
}
