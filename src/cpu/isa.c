/* The list of instruction sets: see isa.h. A new one needs a line here, counted in isa.h, a value of ag_isa in
 * attngrad.h and a check of the processor in core/cpu_info.c. */
#include "cpu/isa.h"

#include "core/cpu_info.h"

#if defined(__x86_64__)
enum { X86_64 = 1, AARCH64 = 0 };
#elif defined(__aarch64__)
enum { X86_64 = 0, AARCH64 = 1 };
#else
enum { X86_64 = 0, AARCH64 = 0 };
#endif

/* The slowest first: of those that a machine can run, the last is the fastest. */
const agi_isa agi_cpu_isas[AGI_N_CPU_ISAS] = {
    {AG_ISA_SCALAR, "scalar", true, agi_cpu_supports},   {AG_ISA_AVX2, "avx2", X86_64, agi_cpu_supports},
    {AG_ISA_AVX512, "avx512", X86_64, agi_cpu_supports}, {AG_ISA_AMX, "amx", X86_64, agi_cpu_supports},
    {AG_ISA_NEON, "neon", AARCH64, agi_cpu_supports},
};

/* AMX multiplies bfloat16 only: for other dtypes this chooses the best of the others. */
ag_isa agi_cpu_choose_isa(const ag_plan *plan)
{
    int best = AGI_N_CPU_ISAS - 1;
    if (plan->isa != AG_ISA_AUTO && plan->isa != AG_ISA_AMX) {
        return plan->isa;
    }
    while (!agi_cpu_isas[best].built_in || !agi_cpu_supports(agi_cpu_isas[best].id) ||
           (agi_cpu_isas[best].id == AG_ISA_AMX && plan->p.dtype != AG_BF16)) {
        best--; /* ends at the first one, which every machine can run */
    }
    return agi_cpu_isas[best].id;
}
