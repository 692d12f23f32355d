/* Shows a long run on standard error: one line that is redrawn if that is a terminal, else a plain line every
 * log_every steps. */
#ifndef ATTNGRAD_CLI_PROGRESS_H
#define ATTNGRAD_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    int64_t first, steps; /* this run's first step, and the step at which it ends */
    int64_t log_every;
    int64_t tokens; /* tokens per step */
    bool terminal;
    double started, drawn; /* seconds */
    double loss, correct; /* means over the steps since the last line; on a terminal over about the last 50 */
    int64_t seen;         /* steps in these means */
};

/* correct: the fraction of correct answers; NaN: not shown. */
struct progress_values {
    double loss, correct;
};

double progress_loss(double loss); /* returns a loss that prints as nan, never as -nan */

void progress_begin(struct progress *p);
void progress_step(struct progress *p, int64_t step, struct progress_values now); /* `step` steps are done */
void progress_end(struct progress *p); /* leaves a terminal at the beginning of a line */

#endif
