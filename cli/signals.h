/* Holds back the signals that end the program while it has something to finish. */
#ifndef ATTNGRAD_CLI_SIGNALS_H
#define ATTNGRAD_CLI_SIGNALS_H

#include <stdbool.h>

/* From here on SIGINT, SIGTERM and SIGHUP are only counted, unless they were ignored. Exceeding the limit of
 * file size makes write fail and does not end the program. */
void signals_hold(void);
int signals_held(void); /* number of signals so far */

/* True: only a computation is left to finish, so that a second signal ends the program at once. signals_hold
 * sets it to false. */
void signals_second_ends(bool at_once);

/* Restores the state before signals_hold. Ends the program by the last signal that came meanwhile, if any. */
void signals_release(void);

#endif
