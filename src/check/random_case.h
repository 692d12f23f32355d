/* Random problems over all features: small ones, of which thousands run in seconds, and large ones, of several tiles,
 * blocks and parts; and what a call needs beside its problem. */
#ifndef ATTNGRAD_CHECK_RANDOM_CASE_H
#define ATTNGRAD_CHECK_RANDOM_CASE_H

#include "check/arrays.h"
#include "check/rng.h"

/* A problem and its call, all that random arrays are made from. */
struct setup {
    ag_problem problem;
    uint64_t seed;
    int lengths; /* random q_lengths and kv_lengths */
    int64_t q_offset, k_offset, batch_offset;
};

void draw_setup(struct setup *s, struct rng *r);
void draw_large_setup(struct setup *s, struct rng *r);

ag_status setup_arrays(struct arrays *x, const struct setup *s, const ag_options *options);

/* The arguments of `attngrad check` that repeat the setup; cut short where size is too small. */
void setup_command(const struct setup *s, char *text, size_t size);

#endif
