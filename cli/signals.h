/* Signals that ask the program to end, held back while it has something to finish. */
#ifndef ATTNGRAD_CLI_SIGNALS_H
#define ATTNGRAD_CLI_SIGNALS_H

#include <stdbool.h>

/* SIGINT, SIGTERM and SIGHUP are counted from here on; what was ignored stays so. A file beyond the limit
 * of size is an error of write, not the end. */
void signals_hold(void);
int signals_held(void); /* how many came */

/* True: there is nothing to finish but a computation, of which the second signal need not await the end:
 * it ends the program at once. False again from signals_hold on. */
void signals_second_ends(bool at_once);

/* All is as it was before signals_hold. Ends the program by the last signal that came meanwhile, if any. */
void signals_release(void);

#endif
