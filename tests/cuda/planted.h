/* The faults of a copy of the kernels that plant.cmake makes, and their switch. */
#ifndef AG_TEST_PLANTED_H
#define AG_TEST_PLANTED_H

extern int planted_fault; /* 0: none; n + 1: planted[n] */

/* The call of a problem, besides its text. */
enum planted_call { PLAIN, LENGTHS, OFFSETS };

extern const struct planted {
    const char *name, *problem; /* which must find it */
    enum planted_call call;
} planted[];
extern const int n_planted;

#endif
