/* The tables and the JSON of check_print.h. */
#include "check_print.h"

#include "style.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 80, LABEL = 9, TEXT_SIZE = 1024 };

/* "label    words ...", broken between words so that no line is wider than WIDTH. */
static void print_wrapped(const char *label, const char *text)
{
    int column = printf("%-*s", LABEL, label);
    while (*text != '\0') {
        int length = (int)strcspn(text, " ");
        if (column > LABEL && column + 1 + length > WIDTH) {
            column = printf("\n%*s", LABEL, "") - 1;
        }
        column += printf("%s%.*s", column > LABEL ? " " : "", length, text);
        text += length;
        text += strspn(text, " ");
    }
    putchar('\n');
}

static void problem_text(const struct setup *s, char text[TEXT_SIZE])
{
    if (ag_problem_format(&s->problem, text, TEXT_SIZE, NULL) != AG_OK) {
        snprintf(text, TEXT_SIZE, "a problem without text: %s", ag_last_message());
    }
}

static void print_result(const struct result *r, const struct style *style)
{
    if (r->not_applicable != NULL) {
        printf("%s%-38s n/a: %s%s\n", style->faint, r->name, r->not_applicable, style->reset);
        return;
    }
    int passed = result_passed(r);
    printf("%-38s %9.1e %9.1e  %s%s%s\n", r->name, r->residual, r->limit, passed ? style->good : style->bad,
           passed ? "ok" : "FAIL", style->reset);
}

static void print_call(const struct setup *s)
{
    printf("%-*s%" PRIu64, LABEL, "seed", s->seed);
    if (s->q_offset != 0 || s->k_offset != 0 || s->batch_offset != 0) {
        printf("; q_offset %" PRId64 ", k_offset %" PRId64 ", batch_offset %" PRId64, s->q_offset,
               s->k_offset, s->batch_offset);
    }
    printf("%s\n\n", s->lengths ? "; random lengths" : "");
}

void print_problem(const struct setup *s, const char *plan, const struct results *results)
{
    char text[TEXT_SIZE];
    struct style style = style_of(stdout);
    struct counts c = results_count(results);
    problem_text(s, text);
    print_wrapped("problem", text);
    print_wrapped("plan", plan);
    print_call(s);
    printf("%s%-38s %9s %9s%s\n", style.strong, "check", "residual", "limit", style.reset);
    for (int n = 0; n < results->count; n++) {
        print_result(&results->items[n], &style);
    }
    printf("\n%d checks passed, %d failed, %d not applicable\n", c.passed, c.failed, c.not_applicable);
}

static void json_results(struct json *json, const struct results *results, int only_failed)
{
    emit_begin_array(json, "checks");
    for (int n = 0; n < results->count; n++) {
        const struct result *r = &results->items[n];
        if (only_failed && result_passed(r)) {
            continue;
        }
        emit_begin_object(json, NULL);
        emit_string(json, "check", r->name);
        if (r->not_applicable != NULL) {
            emit_string(json, "not_applicable", r->not_applicable);
        } else {
            emit_number(json, "residual", r->residual);
            emit_number(json, "limit", r->limit);
            emit_bool(json, "passed", result_passed(r));
        }
        emit_end(json);
    }
    emit_end(json);
}

static void json_setup(struct json *json, const struct setup *s)
{
    char text[TEXT_SIZE];
    problem_text(s, text);
    emit_string(json, "problem", text);
    snprintf(text, sizeof text, "%" PRIu64, s->seed); /* a string: JSON's numbers lose bits of 64 */
    emit_string(json, "seed", text);
    emit_integer(json, "q_offset", s->q_offset);
    emit_integer(json, "k_offset", s->k_offset);
    emit_integer(json, "batch_offset", s->batch_offset);
    emit_bool(json, "random_lengths", s->lengths != 0);
}

void print_problem_json(const struct setup *s, const char *plan, const struct results *results)
{
    struct json json = emit_to(stdout);
    emit_begin_object(&json, NULL);
    json_setup(&json, s);
    emit_string(&json, "plan", plan);
    json_results(&json, results, 0);
    emit_bool(&json, "passed", results_failed(results) == 0);
    emit_end(&json);
}

void print_failure(const struct setup *s, const struct results *results, const char *message)
{
    char text[TEXT_SIZE];
    struct style style = style_of(stdout);
    setup_command(s, text, sizeof text);
    printf("%sFAIL%s attngrad check %s\n", style.bad, style.reset, text);
    if (message != NULL) {
        printf("    %s\n", message);
    }
    for (int n = 0; n < results->count; n++) {
        const struct result *r = &results->items[n];
        if (!result_passed(r)) {
            printf("    %-38s %9.1e %9.1e\n", r->name, r->residual, r->limit);
        }
    }
}

void print_failure_json(struct json *json, const struct setup *s, const struct results *results,
                        const char *message)
{
    emit_begin_object(json, NULL);
    json_setup(json, s);
    if (message != NULL) {
        emit_string(json, "message", message);
    }
    json_results(json, results, 1);
    emit_end(json);
}

void print_tally(const struct tally *tally)
{
    struct style style = style_of(stdout);
    int passed = 0, failed = 0;
    printf("%s%-38s %7s %5s %5s %9s %9s%s\n", style.strong, "check", "passed", "FAIL", "n/a", "residual",
           "limit", style.reset);
    for (int n = 0; n < tally->count; n++) {
        const struct tally_line *l = &tally->lines[n];
        printf("%-38s %7d %5d %5d", l->name, l->passed, l->failed, l->not_applicable);
        if (l->passed + l->failed > 0) {
            printf(" %9.1e %9.1e", l->residual, l->limit);
        }
        putchar('\n');
        passed += l->passed;
        failed += l->failed;
    }
    printf("\n(residual and limit: of the problem that came closest to its limit)\n");
    printf("%d problems, %d failed; %d checks passed, %d failed\n", tally->problems, tally->failed_problems,
           passed, failed);
}

void print_tally_json(struct json *json, const struct tally *tally)
{
    emit_begin_array(json, "checks");
    for (int n = 0; n < tally->count; n++) {
        const struct tally_line *l = &tally->lines[n];
        emit_begin_object(json, NULL);
        emit_string(json, "check", l->name);
        emit_integer(json, "passed", l->passed);
        emit_integer(json, "failed", l->failed);
        emit_integer(json, "not_applicable", l->not_applicable);
        if (l->passed + l->failed > 0) {
            emit_number(json, "residual", l->residual);
            emit_number(json, "limit", l->limit);
        }
        emit_end(json);
    }
    emit_end(json);
    emit_integer(json, "problems", tally->problems);
    emit_integer(json, "failed_problems", tally->failed_problems);
    emit_bool(json, "passed", tally->failed_problems == 0);
}
