/* Holds back the signals that end the program while it has something to finish. */
#ifndef ATTNGRAD_CLI_SIGNALS_H
#define ATTNGRAD_CLI_SIGNALS_H

#include <stdbool.h>

/* From here on SIGINT, SIGTERM and SIGHUP are only counted, unless they were ignored. SIGXFSZ is
 * ignored: exceeding the file size limit makes write fail instead of ending the program. */
void signals_hold(void);
int signals_held(void); /* number of signals so far */

/* Shall a second signal end the program at once? Yes while it computes, no while it writes files.
 * signals_hold sets it to false. */
void signals_set_second_fatal(bool fatal);

/* Restores the state before signals_hold. Ends the program by the last signal that came meanwhile, if any. */
void signals_release(void);

#endif
