/* `attngrad demo`: one self-attention layer with small numbers, shown variable by variable, checked, and
 * improved by one step of gradient descent. */
#include "commands.h"
#include "demo_example.h"
#include "demo_print.h"
#include "options.h"
#include "usage.h"

#include <stdio.h>

static const char help[] = "usage: attngrad demo [--json]\n"
                           "\n"
                           "A worked example: 3 tokens through a self-attention layer with two heads.\n"
                           "Prints every variable of the forward and the backward pass with its formula,\n"
                           "shape and values, the softmax Jacobian of one row, the checks of all\n"
                           "derivatives with their residuals, and the loss before and after one step of\n"
                           "gradient descent.\n"
                           "\n"
                           "options:\n"
                           "      --json    every variable and check as one JSON object\n"
                           "  -h, --help    this text\n"
                           "\n"
                           "exit codes: 0 all checks passed, 1 a check failed, 2 wrong arguments\n";

static int run(bool want_json)
{
    struct example example;
    struct layer layer;
    layer_create(&layer);
    example_run(&layer, &example);
    example_check(&layer, &example);
    ag_status status = layer.status;
    layer_destroy(&layer);
    if (status != AG_OK) {
        return run_error("demo", "%s: %s", ag_status_string(status), ag_last_message());
    }
    if (want_json) {
        print_example_json(&example);
    } else {
        print_example_text(&example);
    }
    return example_passed(&example) ? EXIT_PASS : EXIT_FAIL;
}

int demo_main(int argc, char **argv)
{
    bool want_json;
    int status;
    if (!options_json(argc, argv, help, &want_json, &status)) {
        return status;
    }
    return run(want_json);
}
