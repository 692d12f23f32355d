/* The maps on AMX, for bfloat16: order of work, row statistics and features as in float32, the products on
 * AMX. */
#include "cpu/amx/amx_ops.h"
#include "cpu/implementations.h"

/* With fewer keys most of AMX's tiles would be padding, and vectors are faster. */
enum { MIN_KEYS = 24 };

/* A wider output dtype means that the caller wants more digits than weights in bfloat16 can give; and dO has
 * that dtype too, which AMX cannot multiply. */
static bool serves(const ag_plan *plan)
{
    return plan->isa == AG_ISA_AMX && plan->p.dtype == AG_BF16 && plan->p.out_dtype == AG_BF16 &&
           plan->p.kv_len >= MIN_KEYS;
}

const agi_implementation agi_amx_implementation = {
    .isa = AG_ISA_AMX,
    .serves = serves,
    .row_ops = &agi_amx_row_ops,
    .backward_ops = &agi_amx_backward_ops,
};
