/* The subcommands that main.c calls, except check, which has its own header. Each gets its arguments, with
 * its name in argv[0], and returns the exit code of the process. */
#ifndef ATTNGRAD_CLI_COMMANDS_H
#define ATTNGRAD_CLI_COMMANDS_H

int demo_main(int argc, char **argv);
int bench_main(int argc, char **argv);
int info_main(int argc, char **argv);

/* The five maps on arrays from files. */
int forward_main(int argc, char **argv);
int grad_main(int argc, char **argv);
int jvp_main(int argc, char **argv);
int jvp2_main(int argc, char **argv);
int hvp_main(int argc, char **argv);

int view_main(int argc, char **argv);

int train_main(int argc, char **argv);
int sample_main(int argc, char **argv);

#endif
