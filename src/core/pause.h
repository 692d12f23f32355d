/* Waiting for another thread in a loop. */
#ifndef AGI_PAUSE_H
#define AGI_PAUSE_H

#include <stdint.h>

static inline void agi_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* One turn of a loop that waits: n counts them. There may be more threads than processors: after a while each turn
 * gives the processor to others, and later sleeps, so that a thread of lower priority runs too. */
void agi_wait_a_turn(int64_t n);

#endif
