/* The command `attngrad check`. */
#ifndef ATTNGRAD_CLI_CHECK_H
#define ATTNGRAD_CLI_CHECK_H

/* argv[0] is "check". Returns the exit code of the process. */
int check_main(int argc, char **argv);

#endif
