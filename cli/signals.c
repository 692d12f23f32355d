/* The signals of signals.h. */
#define _XOPEN_SOURCE 700
#include "signals.h"

#include <signal.h>
#include <stddef.h>

static const int stop_signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { STOP_SIGNALS = sizeof stop_signals / sizeof stop_signals[0] };

static struct sigaction old_stop[STOP_SIGNALS], old_xfsz;
static volatile sig_atomic_t last_signal, signal_count, second_fatal;

static void on_signal(int number)
{
    last_signal = number;
    signal_count = signal_count + 1;
    if (signal_count > 1 && second_fatal) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

void signals_hold(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    last_signal = 0;
    signal_count = 0;
    second_fatal = 0;
    for (int n = 0; n < STOP_SIGNALS; n++) {
        sigaction(stop_signals[n], NULL, &old_stop[n]);
        if (old_stop[n].sa_handler != SIG_IGN) {
            sigaction(stop_signals[n], &action, NULL);
        }
    }
    action.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &action, &old_xfsz);
}

void signals_set_second_fatal(bool fatal)
{
    second_fatal = fatal;
}

int signals_held(void)
{
    return signal_count;
}

void signals_release(void)
{
    for (int n = 0; n < STOP_SIGNALS; n++) {
        sigaction(stop_signals[n], &old_stop[n], NULL);
    }
    sigaction(SIGXFSZ, &old_xfsz, NULL);
    if (last_signal != 0) {
        raise(last_signal);
    }
}
