/* Progress on standard error, if that is a terminal: one line, never wider than it, drawn again and
 * again. */
#ifndef ATTNGRAD_CLI_BAR_H
#define ATTNGRAD_CLI_BAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool bar_possible(void); /* standard error is a terminal */

/* "[====>     ] 3/10  text", of which a narrow terminal shows the count and the first of text's parts,
 * which two spaces separate. */
void bar_draw(int64_t done, int64_t all, const char *text);
void bar_clear(void); /* leaves an empty line */

double bar_seconds(void);                               /* a clock */
void bar_time(double seconds, char *text, size_t size); /* "1:02:03", "2:03" */

/* A bar over things of one kind, shown from the second second on, with the time left. */
struct counter {
    int64_t all;
    double started, drawn; /* seconds; drawn 0: nothing stands on the terminal */
};

void counter_begin(struct counter *c, int64_t all);
void counter_step(struct counter *c, int64_t done);
void counter_clear(struct counter *c); /* before anything else is printed, and at the end */

/* A bar over parts that say nothing until they are done: from the second second on, which part it is and
 * for how long all of it has run, drawn by a thread of its own. One at a time. */
void ticker_begin(int64_t parts);
void ticker_part(int64_t number, const char *name); /* from 0 */
void ticker_end(void);

#endif
