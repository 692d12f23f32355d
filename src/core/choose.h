/* Which backend runs a plan, and with which of its tables of kernels. */
#ifndef AGI_CHOOSE_H
#define AGI_CHOOSE_H

#include "core/backend.h"

/* What the options ask for, and after them the environment. */
typedef struct {
    ag_backend backend;
    ag_isa isa;
    const char *isa_name; /* ATTNGRAD_ISA, read only if isa is AG_ISA_AUTO; NULL: not set */
} agi_request;

/* Sets plan->backend and plan->isa, and lets the backend accept the plan. AG_BACKEND_AUTO is the first of the
 * list that is on this machine and, if a table of kernels is named, has one of that name. Whatever else that
 * backend refuses is refused: nothing falls back to a slower one in silence. */
ag_status agi_choose_backend(ag_plan *plan, const agi_backend *const list[], const agi_request *request);

/* NULL: not in the list. */
const agi_backend *agi_backend_by_id(const agi_backend *const list[], ag_backend id);
const agi_backend *agi_backend_by_name(const agi_backend *const list[], const char *name);

#endif
