/* The display of progress.h. */
#include "progress.h"

#include "bar.h"

#include <math.h>
#include <stdio.h>

enum { LINE_SIZE = 512, MEAN_STEPS = 50 };
static const double redraw_seconds = 0.1;

void progress_begin(struct progress *p)
{
    p->terminal = bar_possible();
    p->started = bar_seconds();
    p->drawn = 0;
    p->loss = p->correct = 0;
    p->seen = 0;
}

/* A plain mean over the first values, then, on a terminal, an exponential moving average. */
static void add_values(struct progress *p, struct progress_values now)
{
    /* Restarts the average after a value that is not finite, which would stay in it for ever. */
    p->seen = p->terminal && !isfinite(p->loss) ? 1 : p->seen + 1;
    if (p->seen == 1) {
        p->loss = p->correct = 0;
    }
    const double share = p->terminal && p->seen > MEAN_STEPS ? 1.0 / MEAN_STEPS : 1.0 / (double)p->seen;
    p->loss += (now.loss - p->loss) * share;
    p->correct += (now.correct - p->correct) * share;
}

double progress_loss(double loss)
{
    return isnan(loss) ? fabs(loss) : loss;
}

static void print_values(const struct progress *p, int64_t step, double elapsed, char *text, size_t size)
{
    const double done = (double)(step - p->first), seconds = elapsed > 1e-9 ? elapsed : 1e-9;
    char recall[32] = "", remaining[32];
    if (!isnan(p->correct)) {
        /* padded, as lines are printed below each other; a bar needs no padding */
        snprintf(recall, sizeof recall, "  recall %*.1f%%", p->terminal ? 0 : 5, 100 * p->correct);
    }
    bar_time((double)(p->steps - step) * seconds / done, remaining, sizeof remaining);
    snprintf(text, size, "loss %.4f%s  %.0f tokens/s  %s left", progress_loss(p->loss), recall,
             done * (double)p->tokens / seconds, remaining);
}

void progress_step(struct progress *p, int64_t step, struct progress_values now)
{
    char values[LINE_SIZE];
    const double elapsed = bar_seconds() - p->started;
    add_values(p, now);
    if (p->terminal && (elapsed - p->drawn >= redraw_seconds || step == p->steps)) {
        print_values(p, step, elapsed, values, sizeof values);
        bar_draw(step, p->steps, values);
        p->drawn = elapsed;
    } else if (!p->terminal && (step % p->log_every == 0 || step == p->steps)) {
        print_values(p, step, elapsed, values, sizeof values);
        fprintf(stderr, "step %*lld  %s\n", snprintf(NULL, 0, "%lld", (long long)p->steps), (long long)step,
                values);
        p->loss = p->correct = 0;
        p->seen = 0;
    }
}

void progress_end(struct progress *p)
{
    if (p->terminal && p->drawn > 0) {
        fputc('\n', stderr);
    }
}
