/* The signals of signals.h. */
#define _XOPEN_SOURCE 700
#include "signals.h"

#include <signal.h>
#include <stddef.h>

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
enum { NUMBERS = sizeof numbers / sizeof numbers[0] };

static struct sigaction old_stop[NUMBERS], old_size;
static volatile sig_atomic_t last, count, second_ends;

static void on_signal(int number)
{
    last = number;
    count = count + 1;
    if (count > 1 && second_ends) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

void signals_hold(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    last = 0;
    count = 0;
    second_ends = 0;
    for (int n = 0; n < NUMBERS; n++) {
        sigaction(numbers[n], NULL, &old_stop[n]);
        if (old_stop[n].sa_handler != SIG_IGN) {
            sigaction(numbers[n], &action, NULL);
        }
    }
    action.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &action, &old_size);
}

void signals_second_ends(bool at_once)
{
    second_ends = at_once;
}

int signals_held(void)
{
    return count;
}

void signals_release(void)
{
    for (int n = 0; n < NUMBERS; n++) {
        sigaction(numbers[n], &old_stop[n], NULL);
    }
    sigaction(SIGXFSZ, &old_size, NULL);
    if (last != 0) {
        raise(last);
    }
}
