/* The reference backend: the specification of all others. Every variable of docs/math.md under its own
 * name, float64 inside whatever the dtype, the N x N matrices in full. */
#ifndef AGI_REFERENCE_H
#define AGI_REFERENCE_H

#include "core/backend.h"

extern const agi_backend agi_reference_backend;

#endif
