/* The finite difference that all checks use: central, of fourth order,
 *     f'(x) = (8 (f(x + h/2) - f(x - h/2)) - (f(x + h) - f(x - h))) / 6h  +  O(h^4),
 * that is, the sum of agc_stencil[s].weight / h * f(x + agc_stencil[s].at * h). */
#ifndef ATTNGRAD_CHECK_STENCIL_H
#define ATTNGRAD_CHECK_STENCIL_H

enum { STENCIL_POINTS = 4 };

struct stencil_point {
    double at, weight; /* in units of h and of 1 / h */
};
extern const struct stencil_point agc_stencil[STENCIL_POINTS];

#endif
