/* The options of a plan, with defaults filled in, some from the environment. */
#ifndef AGI_OPTIONS_H
#define AGI_OPTIONS_H

#include "core/choose.h"

/* Checks the options (NULL: all defaults), fills in every default and sets *request. The environment is read
 * here and nowhere else, but for ATTNGRAD_CUDA_SHARED (cuda/device.h). */
ag_status agi_options_complete(ag_options *complete, agi_request *request, const ag_options *given);

#endif
