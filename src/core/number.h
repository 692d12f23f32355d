/* Number formats: float64, float32, float16 and bfloat16 in memory, float64 in the hand. */
#ifndef AGI_NUMBER_H
#define AGI_NUMBER_H

#include "attngrad.h"

/* Element `index` of an array of that dtype. */
double agi_load(ag_dtype dtype, const void *data, int64_t index);

/* Rounds once, to nearest with ties to even, whatever the rounding costs: overflow gives infinity,
 * small numbers become subnormal, NaN stays NaN. */
void agi_store(ag_dtype dtype, void *data, int64_t index, double x);

/* What a store and a load would give back. */
double agi_round(ag_dtype dtype, double x);

#endif
