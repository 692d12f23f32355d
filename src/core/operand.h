/* One tensor of a call and the checks of it: its pointer, its strides, that the elements of an output do not
 * overlap, and that its memory is apart from that of the outputs and of the workspace. */
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

    /* Set by agi_check_operands. */
    uintptr_t begin, end; /* the addresses from its first to after its last element; both 0 if it has none */
    bool contiguous;      /* its elements fill that interval */
} agi_operand;

/* How a check reports: agi_fail_field, or that of another library on top of this one. */
typedef ag_status (*agi_fail_function)(ag_status status, const char *field, const char *format, ...);

/* Fails if an output begins at the address of another operand, or if the intervals of an output and of another operand
 * meet and both are contiguous. Views that are not contiguous may be interleaved; whether their elements overlap is
 * not checked. allowed(output, other): may an output have the address of the other all the same? NULL: never. */
ag_status agi_check_operands(agi_operand *x, int n,
                             bool (*allowed)(const agi_operand *a, const agi_operand *b),
                             agi_fail_function fail);

/* After agi_check_operands: fails if the interval of an operand, contiguous or not, meets the workspace's. */
ag_status agi_check_workspace_apart(const agi_operand *x, int n, const void *workspace, size_t bytes,
                                    agi_fail_function fail);

#endif
