/* What this processor is and can do. */
#ifndef AGI_CPU_INFO_H
#define AGI_CPU_INFO_H

#include <stdbool.h>
#include <stddef.h>

#include "attngrad.h"

/* The name of the processor, such as "Intel(R) Xeon(R) Processor". */
void agi_cpu_name(char *name, size_t size);

/* The instruction sets that matter to this library and whose registers the operating system saves and
 * restores, separated by spaces. */
void agi_cpu_features(char *features, size_t size);

/* Number of processors that this process may use, at most AGI_MAX_THREADS. */
int32_t agi_usable_cpus(void);

/* Can this machine run code for this instruction set? */
bool agi_cpu_supports(ag_isa isa);

#endif
