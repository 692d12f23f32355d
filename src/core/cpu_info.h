/* What this processor is and can do. */
#ifndef AGI_CPU_INFO_H
#define AGI_CPU_INFO_H

#include <stdbool.h>
#include <stddef.h>

#include "attngrad.h"

/* Its own name, as "Intel(R) Xeon(R) Processor". */
void agi_cpu_name(char *name, size_t size);

/* The instruction sets that matter to this library, separated by spaces; what the operating system
 * does not save and restore is not among them. */
void agi_cpu_features(char *features, size_t size);

/* How many processors this process may use, at most AGI_MAX_THREADS. */
int32_t agi_processors(void);

/* Can code for this set run here? */
bool agi_cpu_supports(ag_isa isa);

#endif
