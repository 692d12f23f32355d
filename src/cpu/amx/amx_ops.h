/* The row ops (forward and jvp) and the backward ops (vjp and vjp_jvp) on AMX, for amx_implementation.c. */
#ifndef AGI_CPU_AMX_OPS_H
#define AGI_CPU_AMX_OPS_H

#include "cpu/drivers/backward.h"
#include "cpu/drivers/rows.h"

extern const agi_row_ops agi_amx_row_ops;
extern const agi_backward_ops agi_amx_backward_ops;

#endif
