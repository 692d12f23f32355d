/* The two forms in which the worked example is shown. */
#ifndef ATTNGRAD_CLI_DEMO_PRINT_H
#define ATTNGRAD_CLI_DEMO_PRINT_H

#include "demo_example.h"

void print_example_text(const struct example *e);
void print_example_json(const struct example *e);

#endif
