/* Prints in the first line of a test program's output whether its library uses the processor's AMX or the
 * emulated one, and in the last line if the emulated one was never used. Compiled for both. A program with
 * emulated AMX is skipped on a processor without AVX-512. */
#include <attngrad.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amx/amx_instructions.h"

#if defined(AGI_EMULATED_AMX)
extern _Atomic int emulated_used;
const amx_instructions *const amx_here = &amx_emulated;
enum { EMULATED = 1, SKIPPED = 77 };
#else
const amx_instructions *const amx_here = &amx_processor;
enum { EMULATED = 0, SKIPPED = 77 };
#endif

int amx_usable(void)
{
    ag_problem p = AG_PROBLEM_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_plan *plan = NULL;
    options.backend = AG_BACKEND_CPU;
    options.isa = AG_ISA_AMX;
    const int made =
        ag_problem_parse("q64 d64 bf16", &p) == AG_OK && ag_plan_create(&plan, &p, &options) == AG_OK;
    ag_plan_destroy(plan);
    return made;
}

/* Does the environment force plans to use something else? */
static int environment_forbids_amx(void)
{
    const char *isa = getenv("ATTNGRAD_ISA");
    return getenv("ATTNGRAD_BACKEND") != NULL || (isa != NULL && strcmp(isa, "amx") != 0);
}

__attribute__((constructor)) static void print_unit(void)
{
    const char *unit =
        environment_forbids_amx() ? "not used, the environment forces something else" : amx_here->name;
    const int usable = amx_usable();
    if (EMULATED && !usable) {
        printf("skipped: the emulated AMX unit needs AVX-512: %s\n", ag_last_message());
        fflush(stdout);
        _Exit(SKIPPED);
    }
    printf("amx: %s\n", usable ? unit : "none on this processor");
    fflush(stdout);
}

#if defined(AGI_EMULATED_AMX)
__attribute__((destructor)) static void print_if_unused(void)
{
    if (!emulated_used) {
        printf("amx: never used\n");
    }
}
#endif
