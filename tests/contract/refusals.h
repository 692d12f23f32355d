/* Shared by the tests of refusals: each call must give its status and a message with the name and value of the field,
 * and leave every output as it was. */
#ifndef AG_TEST_REFUSALS_H
#define AG_TEST_REFUSALS_H

#include "outputs.h"

enum { PATTERN = 0x5A };

/* ag_last_field() gives the field, without the index that `field` may have; the message is one line, with
 * the field's own name and the value. */
static inline void check_message(const char *what, const char *field, const char *value)
{
    const char *message = ag_last_message(), *got = ag_last_field(), *dot = strrchr(field, '.');
    const char *name = dot == NULL ? field : dot + 1;
    const size_t length = strcspn(field, "[");
    CHECK(strncmp(got, field, length) == 0 && got[length] == '\0', "%s: the field is '%s', not '%s'", what,
          got, field);
    CHECK(strstr(message, name) != NULL && strstr(message, value) != NULL && strchr(message, '\n') == NULL,
          "%s: the message '%s' does not name '%s' and '%s'", what, message, name, value);
}

static inline ag_problem small_problem(void)
{
    ag_problem p = AG_PROBLEM_INIT;
    CHECK_OK(ag_problem_parse("b2 h2 q4 k5 d4 f32", &p));
    return p;
}

/* Calls the map with x->args as they are now; what the test wrote into the outputs must stay. */
static inline void refuse_call(struct arrays *x, int map, const ag_exec *exec, void *workspace, size_t bytes,
                               ag_status status, const char *what, const char *field, const char *value)
{
    void *before[T_COUNT];
    for (enum tensor t = 0; t < T_COUNT; t++) {
        if (is_output(x, t, ALL_MAPS)) {
            memset(x->data[t], PATTERN, tensor_bytes(x, t));
        }
    }
    keep_outputs(x, before);
    const ag_status got = call_map(map, x->plan, &x->args, exec, workspace, bytes);
    if (CHECK(got == status, "%s with %s: %s instead of %s", map_name[map], what, ag_status_string(got),
              ag_status_string(status))) {
        check_message(what, field, value);
    }
    for (enum tensor t = 0; t < T_COUNT; t++) {
        CHECK(before[t] == NULL || memcmp(before[t], x->data[t], tensor_bytes(x, t)) == 0,
              "%s with %s: %s was written", map_name[map], what, agc_tensor_info[t].name);
    }
    free_outputs(before);
}

static inline void refuse_args(struct arrays *x, int map, const char *what, const char *field,
                               const char *value)
{
    refuse_call(x, map, NULL, x->workspace, x->workspace_bytes, AG_INVALID_ARGUMENT, what, field, value);
}

/* Does the map require the tensor? Maps are 0 forward, 1 vjp, 2 jvp, 3 vjp_jvp, 4 jvp_jvp. */
static inline int is_required(enum tensor t, int map)
{
    static const enum tensor by_all[] = {T_Q, T_K, T_V, T_BIAS, T_MASK, T_TABLE, T_SINK};
    static const enum tensor by_map[MAPS][5] = {{T_O, T_O, T_O, T_O, T_O},
                                                {T_O, T_LSE, T_D_O, T_O, T_O},
                                                {T_TO, T_TO, T_TO, T_TO, T_TO},
                                                {T_O, T_LSE, T_D_O, T_TO, T_MU},
                                                {T_O, T_LSE, T_MU, T_SMU, T_STO}};
    for (int n = 0; n < 7; n++) {
        if (t == by_all[n] || (n < 5 && t == by_map[map][n])) {
            return 1;
        }
    }
    return 0;
}

/* Does the map read the tensor if it is present? */
static inline int is_optional_input(enum tensor t, int map)
{
    const enum tensor_role role = agc_tensor_info[t].role;
    const int tangent = role == ROLE_TANGENT, of_tangents = t == T_TD_O || t == T_TD_LSE;
    const int second = role == ROLE_SECOND_TANGENT, backward = map == 1 || map == 3;
    return (tangent && map >= 2) || (second && map == 4) || ((of_tangents || t == T_TO_LOW) && map == 3) ||
           (t == T_D_LSE && backward) || (t == T_O_LOW && (backward || map == 4));
}

static inline int takes_part(enum tensor t, int map)
{
    return is_required(t, map) || is_optional_input(t, map) ||
           (agc_tensor_info[t].writers & map_bit[map]) != 0;
}

#endif
