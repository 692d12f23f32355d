/* Fuzzes the text form of a problem: what parses is formatted, parses again to the same fields, and is
 * formatted to the same text; a buffer one byte too small is refused; what does not parse changes nothing. */
#include <attngrad.h>
#include <string.h>

#include "target.h"

/* Padding bytes are the same in all, so the whole struct can be compared. */
static ag_problem blank(void)
{
    static const ag_problem init = AG_PROBLEM_INIT;
    ag_problem p;
    memset(&p, 0, sizeof p);
    memcpy(&p, &init, sizeof p);
    return p;
}

static void check_round_trip(const ag_problem *p)
{
    char text[1024], again[1024];
    size_t length = 0, length_again = 0;
    ag_problem twin = blank();
    FUZZ_REQUIRE(ag_problem_format(p, NULL, 0, &length) != AG_INVALID_PROBLEM);
    FUZZ_REQUIRE(length < sizeof text);
    FUZZ_REQUIRE(ag_problem_format(p, text, length, NULL) == AG_INVALID_ARGUMENT);
    FUZZ_REQUIRE(ag_problem_format(p, text, length + 1, NULL) == AG_OK);
    FUZZ_REQUIRE(strlen(text) == length);
    FUZZ_REQUIRE(ag_problem_parse(text, &twin) == AG_OK);
    FUZZ_REQUIRE(memcmp(p, &twin, sizeof twin) == 0);
    FUZZ_REQUIRE(ag_problem_format(&twin, again, sizeof again, &length_again) == AG_OK);
    FUZZ_REQUIRE(length_again == length && strcmp(text, again) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ag_problem p = blank();
    const ag_problem before = p;
    char *text = malloc(size + 1);
    if (text == NULL)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (ag_problem_parse(text, &p) == AG_OK)
        check_round_trip(&p);
    else
        FUZZ_REQUIRE(memcmp(&p, &before, sizeof p) == 0 && ag_last_message()[0] != '\0');
    free(text);
    return 0;
}
