/* The faults of a copy of the kernels that plant.cmake makes, and their switch. */
#ifndef AG_TEST_PLANTED_H
#define AG_TEST_PLANTED_H

#include "hopper_problems.h"

extern int planted_fault; /* 0: none; n + 1: planted[n] */

extern const struct planted {
    const char *name;
    struct hopper_problem problem; /* which must find it */
} planted[];
extern const int n_planted;

#endif
