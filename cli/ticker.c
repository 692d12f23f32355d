/* The ticker of bar.h: a thread that redraws the bar a few times per second while the main thread is
 * inside one long call. It blocks all signals, so that they go to the other threads. */
#define _XOPEN_SOURCE 700
#include "bar.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

static const double first_seconds = 1, redraw_seconds = 0.25;

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    pthread_t thread;
    bool running, leaving, drawn;
    int64_t parts, number;
    const char *name;
    double started;
    double ends; /* the estimated end; 0: no estimate */
} ticker = {.mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

/* Waits until the time has passed or the ticker has to leave. The mutex must be held. */
static void wait_for_seconds(double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    const long nanoseconds = until.tv_nsec + (long)(1e9 * (seconds - (double)(long)seconds));
    until.tv_sec += (time_t)seconds + nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    while (!ticker.leaving && pthread_cond_timedwait(&ticker.wake, &ticker.mutex, &until) != ETIMEDOUT) {
    }
}

/* The mutex must be held. */
static void draw(void)
{
    char elapsed[32], left[32], text[128];
    const double now = bar_seconds();
    bar_time(now - ticker.started, elapsed, sizeof elapsed);
    bar_time(ticker.ends > now ? ticker.ends - now : 0, left, sizeof left);
    if (ticker.ends > 0) {
        snprintf(text, sizeof text, "%s  about %s left  %s", ticker.name, left, elapsed);
    } else {
        snprintf(text, sizeof text, "%s  %s", ticker.name, elapsed);
    }
    bar_draw(ticker.number, ticker.parts, text);
    ticker.drawn = true;
}

static void *tick(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&ticker.mutex);
    wait_for_seconds(first_seconds);
    while (!ticker.leaving) {
        draw();
        wait_for_seconds(redraw_seconds);
    }
    pthread_mutex_unlock(&ticker.mutex);
    return NULL;
}

void ticker_begin(int64_t parts)
{
    sigset_t all, old;
    if (!bar_possible()) {
        return;
    }
    ticker.parts = parts;
    ticker.number = 0;
    ticker.name = "";
    ticker.started = bar_seconds();
    ticker.ends = 0;
    ticker.leaving = ticker.drawn = false;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    ticker.running = pthread_create(&ticker.thread, NULL, tick, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void ticker_part(int64_t number, const char *name)
{
    pthread_mutex_lock(&ticker.mutex);
    ticker.number = number;
    ticker.name = name;
    pthread_mutex_unlock(&ticker.mutex);
}

void ticker_share(double share, const char *name)
{
    const double elapsed = bar_seconds() - ticker.started;
    pthread_mutex_lock(&ticker.mutex);
    ticker.number = (int64_t)(share * (double)ticker.parts);
    ticker.name = name;
    ticker.ends = share > 0 ? ticker.started + elapsed / share : 0;
    pthread_mutex_unlock(&ticker.mutex);
}

void ticker_end(void)
{
    if (!ticker.running) {
        return;
    }
    pthread_mutex_lock(&ticker.mutex);
    ticker.leaving = true;
    pthread_cond_signal(&ticker.wake);
    pthread_mutex_unlock(&ticker.mutex);
    pthread_join(ticker.thread, NULL);
    ticker.running = false;
    if (ticker.drawn) {
        bar_clear();
    }
}
