/* Progress on standard error, if that is a terminal: one line, redrawn in place, never wider than the terminal. */
#ifndef ATTNGRAD_CLI_BAR_H
#define ATTNGRAD_CLI_BAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool bar_possible(void); /* is standard error a terminal? */

/* Draws "[====>     ] 3/10  text": done and total. The parts of text are separated by two spaces; a narrow terminal
 * shows the count and as many of the first parts as fit. */
void bar_draw(int64_t done, int64_t total, const char *text);
void bar_clear(void); /* erases the line */

double bar_seconds(void);                               /* monotonic time in seconds */
void bar_time(double seconds, char *text, size_t size); /* writes "1:02:03" or "2:03" */

/* A bar that counts things of one kind. It appears after the first second and shows the time left. */
struct counter {
    int64_t total;
    double started, drawn; /* seconds; drawn 0: nothing is on the terminal */
};

void counter_begin(struct counter *c, int64_t total);
void counter_step(struct counter *c, int64_t done);
void counter_clear(struct counter *c); /* call it before anything else is printed, and at the end */

/* A bar for parts that do not report progress: after the first second it shows which part runs and how long
 * all of them have run. Drawn by a separate thread. Only one at a time. */
void ticker_begin(int64_t parts);
void ticker_part(int64_t number, const char *name); /* number: from 0; name: a string that stays valid */
void ticker_end(void);

/* Instead of ticker_part: this share of the time is over, from 0 to 1. The bar then also has an estimate of the
 * rest. */
void ticker_share(double share, const char *name);

#endif
