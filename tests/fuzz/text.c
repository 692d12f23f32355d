/* Fuzzes the text form of a problem. A text that parses to a legal problem is formatted; the result parses to
 * the same fields and is formatted to the same text again. A buffer that is one byte too small is refused. A
 * text that does not parse changes nothing. */
#include <attngrad.h>
#include <string.h>

#include "target.h"

/* All padding bytes are zero, so that whole structs can be compared. */
static ag_problem blank(void)
{
    static const ag_problem init = AG_PROBLEM_INIT;
    ag_problem p;
    memset(&p, 0, sizeof p);
    memcpy(&p, &init, sizeof p);
    return p;
}

/* Fills in what a plan fills in for fields that are left at their defaults; the text may name these values. */
static void fill_defaults(ag_problem *p)
{
    const int64_t unbounded = INT64_C(1) << 62; /* windows beyond it mean -1 */
    p->out_dtype = p->out_dtype == 0 ? p->dtype : p->out_dtype;
    p->grad_dtype = p->grad_dtype == 0 ? p->dtype : p->grad_dtype;
    p->aux_dtype = p->aux_dtype == 0 ? p->dtype : p->aux_dtype;
    p->kv_heads = p->kv_heads == 0 ? p->heads : p->kv_heads;
    p->dim_v = p->dim_v == 0 ? p->dim_qk : p->dim_v;
    p->softcap += 0.0; /* -0 means 0 */
    p->dropout += 0.0;
    p->window_left = p->window_left > unbounded ? -1 : p->window_left;
    p->window_right = p->window_right > unbounded ? -1 : p->window_right;
    if (p->flags & AG_TABLE) {
        p->table_buckets = p->table_buckets == 0 ? 2 * p->table_radius + 1 : p->table_buckets;
        p->table_heads = p->table_heads == 0 ? p->heads : p->table_heads;
    }
}

static void check_refused(const ag_problem *p)
{
    ag_plan *plan = NULL;
    FUZZ_REQUIRE(ag_plan_create(&plan, p, NULL) != AG_OK && plan == NULL);
}

static void check_round_trip(ag_problem *p)
{
    char text[1024], reformatted[1024];
    size_t length = 0, length_again = 0;
    ag_problem reparsed = blank();
    if (ag_problem_format(p, NULL, 0, &length) != AG_OK) {
        check_refused(p);
        return;
    }
    FUZZ_REQUIRE(length < sizeof text);
    FUZZ_REQUIRE(ag_problem_format(p, text, length, NULL) == AG_INVALID_ARGUMENT);
    FUZZ_REQUIRE(ag_problem_format(p, text, length + 1, NULL) == AG_OK);
    FUZZ_REQUIRE(strlen(text) == length);
    FUZZ_REQUIRE(ag_problem_parse(text, &reparsed) == AG_OK);
    FUZZ_REQUIRE(ag_problem_format(&reparsed, reformatted, sizeof reformatted, &length_again) == AG_OK);
    FUZZ_REQUIRE(length_again == length && strcmp(text, reformatted) == 0);
    fill_defaults(p);
    fill_defaults(&reparsed);
    FUZZ_REQUIRE(memcmp(p, &reparsed, sizeof reparsed) == 0);
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
