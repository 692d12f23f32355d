/* One tensor of a call, with all that is checked about it: its pointer, its strides, that its elements do not
 * overlap, and that no output is another operand. */
#ifndef AGI_OPERAND_H
#define AGI_OPERAND_H

#include <stdbool.h>

#include "attngrad.h"

typedef struct {
    const char *call, *name; /* for the message */
    const ag_tensor *t;
    int64_t size[4];
    size_t bytes; /* of an element */
    bool output, required;
} agi_operand;

/* allowed(output, other) makes exceptions from the rule that no two are the same; NULL: none. */
ag_status agi_check_operands(const agi_operand *x, int n,
                             bool (*allowed)(const agi_operand *a, const agi_operand *b));

#endif
