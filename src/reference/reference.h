/* The reference backend: the specification of all others. It computes every variable of docs/math.md, under
 * the name that it has there, in float64 whatever the dtype, with the N x N matrices in full. */
#ifndef AGI_REFERENCE_H
#define AGI_REFERENCE_H

#include "core/backend.h"

extern const agi_backend agi_reference_backend;

#endif
