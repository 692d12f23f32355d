/* Memory that a thread will read soon, and that another one may just have written: it is asked for while there is
 * something else to do. */
#ifndef AGI_AHEAD_H
#define AGI_AHEAD_H

#include <stdint.h>

/* Addresses. */
typedef struct {
    uintptr_t at, end;
} agi_range;

enum { AGI_MAX_RANGES = 8 };

/* Used up from the first on. */
typedef struct {
    int first, n;
    agi_range ranges[AGI_MAX_RANGES];
} agi_ahead;

#endif
