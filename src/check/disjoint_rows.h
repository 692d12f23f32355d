/* Which rows of the result each element of a variable reaches, that is, can change. An element of q reaches
 * its own row, one of k or v the rows of its sequence and its group of heads, one of the bias the rows that
 * it is broadcast to, and so on. Elements that reach disjoint rows can be perturbed in the same evaluation,
 * as the effect of each is seen in its own rows: so a few evaluations test a gradient element by element. */
#ifndef ATTNGRAD_CHECK_DISJOINT_ROWS_H
#define ATTNGRAD_CHECK_DISJOINT_ROWS_H

#include "check/arrays.h"

struct disjoint_rows {
    int64_t sets;     /* number of sets of rows; no two sets share a row */
    int64_t slots;    /* number of elements that reach one set */
    int64_t *set;     /* [elements of the variable]: the set that it reaches; -1: none (padding) */
    int64_t *slot;    /* [elements of the variable]: its number among those that reach the set */
    int64_t *row_set; /* [elements of lse]: the set that a row belongs to; -1: none (padding) */
};

/* AG_OK or AG_NO_MEMORY; on failure there is nothing to destroy. */
ag_status agc_disjoint_rows_create(struct disjoint_rows *g, const struct arrays *x, enum tensor variable);
void agc_disjoint_rows_destroy(struct disjoint_rows *g);

#endif
