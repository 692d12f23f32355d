/* The maps on AMX, for bfloat16: order of work, row statistics and features as in float32, the products on
 * AMX. */
#include "cpu/amx/amx_ops.h"
#include "cpu/implementations.h"

/* With fewer keys most of AMX's tiles would be padding, and vectors are faster. */
enum { MIN_KEYS = 24 };

/* O, tO and the gradients may be float32: they are stored from sums in float32. dO and tdO, which may be float32 too,
 * are rounded when they become operands. */
static bool serves(const ag_plan *plan)
{
    return plan->isa == AG_ISA_AMX && plan->p.dtype == AG_BF16 && plan->p.kv_len >= MIN_KEYS;
}

const agi_implementation agi_amx_implementation = {
    .isa = AG_ISA_AMX,
    .serves = serves,
    .row_ops = &agi_amx_row_ops,
    .backward_ops = &agi_amx_backward_ops,
    .given_ops = &agi_amx_given_ops,
};
