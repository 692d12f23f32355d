/* The maps on AMX, for bfloat16: score tiles, stages and the order of work are float32's, the products are AMX's. */
#include "cpu/amx/amx_ops.h"
#include "cpu/implementations.h"

/* With fewer keys most of a group's tiles would be zeros: vectors are faster then. */
enum { MIN_KEYS = 24 };

/* A wider output is wanted by who wants more digits than weights in bfloat16 leave; and dO has its dtype. */
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
