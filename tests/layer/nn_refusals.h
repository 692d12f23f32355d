/* Shared by the tests of what attngrad_nn.h refuses: the status, a message that names the field. */
#ifndef AG_TESTS_NN_REFUSALS_H
#define AG_TESTS_NN_REFUSALS_H

#include "nn.h"

static inline void check_refused(ag_status got, ag_status wanted, const char *word, int line)
{
    CHECK(got == wanted && strstr(ag_last_message(), word) != NULL,
          "line %d: %s instead of %s, message '%s' instead of one with '%s'", line, ag_status_string(got),
          ag_status_string(wanted), ag_last_message(), word);
    CHECK(ag_last_field()[0] != '\0', "line %d: the message '%s' is about no field", line, ag_last_message());
}

/* The field that the last refusal is about. */
#define ABOUT(field)                                                                                         \
    CHECK(strcmp(ag_last_field(), field) == 0, "line %d: the field is '%s'", __LINE__, ag_last_field())

#define REFUSED(call, wanted, word) check_refused((call), (wanted), (word), __LINE__)

#endif
