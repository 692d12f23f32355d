/* Which backend runs a plan, and for which instruction set. */
#ifndef AGI_CHOOSE_H
#define AGI_CHOOSE_H

#include "core/backend.h"

/* The backend and the instruction set that the options name or, if they leave it open, the environment. */
typedef struct {
    ag_backend backend;
    ag_isa isa;
    const char *isa_name; /* ATTNGRAD_ISA, read only if isa is AG_ISA_AUTO; NULL: not set */
} agi_request;

/* Sets plan->backend and plan->isa, and has the backend accept the plan. AG_BACKEND_AUTO takes the first
 * backend in the list that can run on this machine and that has the named instruction set, if one is named.
 * If that backend refuses the plan for another reason, the call fails: it never falls back silently to a
 * slower backend. */
ag_status agi_choose_backend(ag_plan *plan, const agi_backend *const list[], const agi_request *request);

/* Return NULL if the list has no such backend. */
const agi_backend *agi_backend_by_id(const agi_backend *const list[], ag_backend id);
const agi_backend *agi_backend_by_name(const agi_backend *const list[], const char *name);

#endif
