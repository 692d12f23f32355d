/* Waiting for another thread in a loop. */
#ifndef AGI_PAUSE_H
#define AGI_PAUSE_H

#include <sched.h>
#include <stdint.h>

static inline void agi_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* One turn of a loop that waits: n counts them. After a while each gives the processor to others, as there may be more
 * threads than processors. */
static inline void agi_wait_a_turn(int64_t n)
{
    if (n < 4096) {
        agi_pause();
    } else {
        sched_yield();
    }
}

#endif
