/* The commands that read or write files, in a build without libattngrad_io: each says that it was left out. */
#include "commands.h"
#include "usage.h"

static int left_out(char **argv)
{
    return file_error(argv[0], "left out of this build, which has no jansson, the library that files need");
}

int forward_main(int argc, char **argv)
{
    (void)argc;
    return left_out(argv);
}

int grad_main(int argc, char **argv)
{
    (void)argc;
    return left_out(argv);
}

int jvp_main(int argc, char **argv)
{
    (void)argc;
    return left_out(argv);
}

int jvp2_main(int argc, char **argv)
{
    (void)argc;
    return left_out(argv);
}

int hvp_main(int argc, char **argv)
{
    (void)argc;
    return left_out(argv);
}

int view_main(int argc, char **argv)
{
    (void)argc;
    return left_out(argv);
}

int train_main(int argc, char **argv)
{
    (void)argc;
    return left_out(argv);
}

int sample_main(int argc, char **argv)
{
    (void)argc;
    return left_out(argv);
}
