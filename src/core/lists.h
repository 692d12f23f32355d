/* The lists of a call, with a number per sequence: lengths, positions, the rows of packed sequences. */
#ifndef AGI_LISTS_H
#define AGI_LISTS_H

#include "core/call.h"

/* Checks them, and the single offsets of a call. */
ag_status agi_check_lists(const agi_call *call);

/* For a backend on a device: are the lists that the call gives there in its memory? */
ag_status agi_check_device_list_pointers(const agi_call *call);

#endif
