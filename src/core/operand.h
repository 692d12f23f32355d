/* One tensor of a call and the checks of it: its pointer, its strides, that the elements of an output do not
 * overlap, and that no output is also another operand. */
#ifndef AGI_OPERAND_H
#define AGI_OPERAND_H

#include <stdbool.h>

#include "attngrad.h"

typedef struct {
    const char *name; /* for error messages */
    const ag_tensor *t;
    int64_t size[4];
    size_t bytes; /* per element */
    bool output, required;
} agi_operand;

/* allowed(output, other): may these two begin at the same address? NULL: no two may. */
ag_status agi_check_operands(const agi_operand *x, int n,
                             bool (*allowed)(const agi_operand *a, const agi_operand *b));

#endif
