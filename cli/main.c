/* The command `attngrad`: finds the subcommand, runs it, and makes sure that all its output arrived. */
#include "attngrad.h"
#include "check.h"
#include "commands.h"
#include "usage.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
};

static const struct command commands[] = {
    {"demo", demo_main},     {"check", check_main}, {"forward", forward_main}, {"grad", grad_main},
    {"jvp", jvp_main},       {"jvp2", jvp2_main},   {"hvp", hvp_main},         {"train", train_main},
    {"sample", sample_main}, {"view", view_main},   {"info", info_main},       {"bench", bench_main},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static const char help[] = "usage: attngrad COMMAND [OPTION]...\n"
                           "\n"
                           "Attention and its exact derivatives.\n"
                           "\n"
                           "commands:\n"
                           "  demo     a worked example: every variable of one attention layer, forward,\n"
                           "           backward, checked, and one step of gradient descent\n"
                           "  check    test the derivatives of a problem: finite differences, identities,\n"
                           "           rounding errors\n"
                           "  forward  attention of arrays in files\n"
                           "  grad     and its gradients\n"
                           "  jvp      and its derivative along tangents\n"
                           "  jvp2     and its second derivative along two directions\n"
                           "  hvp      and the derivative of its gradients along tangents\n"
                           "  view     all variables of them as a page for the browser\n"
                           "  train    train a small model of attention layers, on a text or on recall\n"
                           "  sample   continue a prompt with it\n"
                           "  bench    time the maps of a problem, relative to the processor's peak\n"
                           "  info     version, processor, instruction sets, threads, backends\n"
                           "\n"
                           "options:\n"
                           "  -h, --help       this text; 'attngrad COMMAND --help' tells of a command\n"
                           "      --version    the version\n"
                           "\n"
                           "exit codes: 0 done, 1 a check or the output failed, 2 wrong arguments or files\n";

static int unknown_command(const char *word)
{
    const char *names[COMMANDS];
    for (size_t n = 0; n < COMMANDS; n++) {
        names[n] = commands[n].name;
    }
    const char *what = word[0] == '-' ? "option" : "command";
    const char *near = nearest_name(word, names, COMMANDS);
    if (near) {
        return usage_error(NULL, "unknown %s '%s' (did you mean '%s'?)", what, word, near);
    }
    return usage_error(NULL, "unknown %s '%s'", what, word);
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        return usage_error(NULL, "no command given");
    }
    for (size_t n = 0; n < COMMANDS; n++) {
        if (strcmp(argv[1], commands[n].name) == 0) {
            return commands[n].run(argc - 1, argv + 1);
        }
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        fputs(help, stdout);
        return EXIT_PASS;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("attngrad %s\n", ag_version_string());
        return EXIT_PASS;
    }
    return unknown_command(argv[1]);
}

/* A full disk is noticed only when the last buffer is written. */
static int close_output(int status)
{
    int failed = ferror(stdout);
    errno = 0;
    if (fclose(stdout) != 0 || failed) {
        const char *reason = errno ? strerror(errno) : "an earlier write failed";
        int output_status = run_error(NULL, "cannot write the output: %s", reason);
        return status == EXIT_PASS ? output_status : status;
    }
    return status;
}

int main(int argc, char **argv)
{
    return close_output(dispatch(argc, argv));
}
