/* The worked example as a list: every variable in the order of its computation, with its formula. Both the
 * text and the JSON are printed from this list. */
#ifndef ATTNGRAD_CLI_DEMO_STEPS_H
#define ATTNGRAD_CLI_DEMO_STEPS_H

#include "demo_example.h"

#include <stdbool.h>
#include <stddef.h>

/* The layout of a variable in memory: [heads, rows, columns]; an axis of size 0 does not exist. */
struct layout {
    int heads, rows, columns;
    int head_stride, row_stride;
    bool by_head; /* the columns belong to the heads, DIM to each */
};

struct step {
    const char *section; /* a headline before this step, or NULL */
    const char *name;
    const char *formula; /* NULL: given */
    const char *note;
    size_t offset; /* in struct example */
    const struct layout *layout;
};

extern const struct step demo_steps[]; /* up to the gradients */
extern const int demo_steps_count;
extern const struct step demo_update[]; /* the step of gradient descent, after the checks */
extern const int demo_update_count;

const double *step_values(const struct step *step, const struct example *example);

/* Fills shape and returns the number of its axes. */
int step_shape(const struct step *step, int64_t shape[3]);

#endif
