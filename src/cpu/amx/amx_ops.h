/* The row ops (forward and jvp), the backward ops (vjp and vjp_jvp) and the given ops (jvp_jvp, and jvp that is given o
 * and lse) on AMX, for amx_implementation.c. */
#ifndef AGI_CPU_AMX_OPS_H
#define AGI_CPU_AMX_OPS_H

#include "cpu/drivers/backward.h"
#include "cpu/drivers/given.h"
#include "cpu/drivers/rows.h"

extern const agi_row_ops agi_amx_row_ops;
extern const agi_backward_ops agi_amx_backward_ops;
extern const agi_given_ops agi_amx_given_ops;

#endif
