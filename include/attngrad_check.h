/* attngrad_check: checks the results of a backend, on random arrays, against what must be true of them.
 *
 *     ag_check_case c = {.problem = AG_PROBLEM_INIT, .seed = 1};
 *     static ag_check_report report;
 *     if (ag_problem_parse("h8 kv2 q100 d64 f32 causal", &c.problem) == AG_OK &&
 *         ag_check_problem(&c, NULL, &report) == AG_OK)
 *         for (int n = 0; n < report.count; n++)
 *             ... report.results[n].name, .residual, .limit, ag_check_passed(&report.results[n]) ...
 *
 * A separate static library, libattngrad_check, that uses nothing of libattngrad but attngrad.h. It is meant for
 * tests of backends and bindings. UNSTABLE: structs, names and limits may change in any release; there is no shared
 * library, so that a program keeps the version that it was linked with.
 *
 * Rules that hold everywhere:
 *   - A function that can fail returns an ag_status: its own, or that of the call of libattngrad that failed.
 *     ag_check_last_message() then says why, for this thread.
 *   - Every function may be called from several threads at once.
 *   - Nothing is printed; the program is never ended. */
#ifndef ATTNGRAD_CHECK_H
#define ATTNGRAD_CHECK_H

#include "attngrad.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One problem and the call on it. Tensors, packed offsets and, if the problem does not give them, slopes and
 * buckets are random; but without table_buckets the buckets are the identity. The same seed gives the same
 * numbers on any machine. */
typedef struct ag_check_case {
    ag_problem problem;
    uint64_t seed;
    int32_t lengths; /* not 0: random q_lengths and kv_lengths, some of them zero; not for packed problems */
    int64_t q_offset, k_offset, batch_offset;
    int32_t low_halves; /* not 0: the call has o_low and to_low, if out_dtype has 16 bits */

    /* Not 0: random q_offsets and k_offsets, a pair per sequence; not with bottom-right alignment, q_offset and
     * k_offset must be 0. */
    int32_t offsets;
} ag_check_case;

/* The parts of a check. */
enum {
    AG_CHECK_DIFFERENCES = 1 << 0, /* every gradient and tangent against finite differences, in float64 */
    AG_CHECK_IDENTITIES = 1 << 1,  /* adjoint, symmetry of the Hessian, split and merge ...: in float64 */
    AG_CHECK_ROUNDING = 1 << 2,    /* the error rule: rounding errors in the problem's own dtype */
    AG_CHECK_ALL = AG_CHECK_DIFFERENCES | AG_CHECK_IDENTITIES | AG_CHECK_ROUNDING
};

typedef struct ag_check_options {
    uint32_t parts;         /* AG_CHECK_*; 0 = all */
    const ag_options *plan; /* of the plan to check: backend, instruction set, threads; NULL = defaults */

    /* NULL, or a function that is called after each map that was run, on the thread of the caller: with ctx, with the
     * name of the part, "maps", "differences", "identities" or "rounding", and with the share of the time that is
     * over, an estimate from 0 to 1 that never falls. It must not call this library. */
    void (*progress)(void *ctx, const char *part, double share);
    void *ctx;
} ag_check_options;

enum { AG_CHECK_MAX_RESULTS = 96 }; /* more than all checks of one problem give */

/* One check. It passed if residual <= limit, so a residual that is NaN has failed. What the residual measures is up
 * to the check: docs/math.md states the identities, docs/design.md the error rule. */
typedef struct ag_check_result {
    char name[40];          /* "differences dq" */
    double residual, limit; /* both 0 if the check does not apply */

    /* NULL, or why the check does not apply to this problem: a string that lives as long as the program. */
    const char *not_applicable;

    /* The tensor of ag_args that has the worst element; NULL if the check is about a sum. */
    const char *tensor;

    /* Index of the worst element: sequence, head, position in the sequence, channel. -1 on an axis that the check
     * sums over, and as the sequence of a row that belongs to none (padding of packed arrays). For dbias the last
     * two are query and key, for dtable the last is the column. */
    int64_t worst[4];
} ag_check_result;

typedef struct ag_check_report {
    int32_t count;
    int32_t omitted; /* results that did not fit; if there are any, the call fails with AG_NO_MEMORY */
    ag_check_result results[AG_CHECK_MAX_RESULTS];
    char plan[160]; /* ag_plan_describe of the plan that was checked */
} ag_check_report;

/* Runs the checks and fills in the report, of which nothing is read. On failure it has the results so far.
 * options may be NULL. AG_INVALID_ARGUMENT: c or report is NULL, or parts has unknown bits. AG_NO_MEMORY: the message
 * names the array that there is no memory for, and its size in MiB. All memory is freed before the function returns. */
AG_API ag_status ag_check_problem(const ag_check_case *c, const ag_check_options *options,
                                  ag_check_report *report);

/* One line about the last call of ag_check_problem on this thread, if it failed, and the name of the argument that the
 * line is about, as of ag_last_field(): "" if no argument caused the failure, for instance if memory ran out. Never
 * NULL; valid until the next call of this library or of libattngrad on this thread. */
AG_API const char *ag_check_last_message(void);
AG_API const char *ag_check_last_field(void);

AG_API int32_t ag_check_passed(const ag_check_result *result);   /* not 0 also if the check does not apply */
AG_API int32_t ag_check_failures(const ag_check_report *report); /* checks that did not pass, and omitted */

/* Writes the worst element as text, "dq[0, 3, 17, 5]" with * for -1; "" if there is none. Truncated if the buffer is
 * too small. */
AG_API void ag_check_place(const ag_check_result *result, char *text, size_t size);

/* Makes case `number` of the endless list of a seed: a random problem over all features, with its call. Small cases
 * have up to 12 queries and keys and take milliseconds, large ones have several tiles of the fused backends. */
typedef int32_t ag_check_size;
enum { AG_CHECK_SMALL = 0, AG_CHECK_LARGE = 1 };
AG_API void ag_check_random(ag_check_case *c, uint64_t seed, uint64_t number, ag_check_size size);

/* Writes the arguments of the command `attngrad check` that repeat the case. Truncated if the buffer is too small. */
AG_API void ag_check_command(const ag_check_case *c, char *text, size_t size);

#ifdef __cplusplus
}
#endif

#endif
