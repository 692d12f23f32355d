/* The norm A of the error rule for jvp_jvp: see error_sizes.h. */
#ifndef ATTNGRAD_CHECK_SECOND_SIZES_H
#define ATTNGRAD_CHECK_SECOND_SIZES_H

#include "check/arrays.h"

/* Adds what one head contributes to A of smu, sto and nu, which have those tensors' own layouts. x: float64, on the
 * reference, all maps run; trace: of that head, with P, M, Ps, tZ, tS, mu, phi1 and phi2. AG_OK or the failure of
 * memory or of a trace. */
ag_status agc_second_sizes_add(const struct arrays *x, const ag_trace_args *trace, double *smu, double *sto,
                               double *nu);

#endif
