/* The tables and the JSON of check_print.h. */
#include "check_print.h"

#include "style.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 80, LABEL = 9, TEXT_SIZE = 1024, PLACE_SIZE = 128 }; /* LABEL: the width of a label */

/* Prints "label    words ...", broken between words so that no line is wider than WIDTH. */
static void print_wrapped(const char *label, const char *text)
{
    int column = printf("%-*s", LABEL, label);
    while (*text != '\0') {
        int length = (int)strcspn(text, " ");
        if (column > LABEL && column + 1 + length > WIDTH) {
            column = printf("\n%*s", LABEL, "") - 1; /* the newline takes no column */
        }
        column += printf("%s%.*s", column > LABEL ? " " : "", length, text);
        text += length;
        text += strspn(text, " ");
    }
    putchar('\n');
}

static void problem_text(const ag_check_case *c, char text[TEXT_SIZE])
{
    if (ag_problem_format(&c->problem, text, TEXT_SIZE, NULL) != AG_OK) {
        snprintf(text, TEXT_SIZE, "a problem without text: %s", ag_last_message());
    }
}

static void print_result(const ag_check_result *r, const struct style *style)
{
    if (r->not_applicable != NULL) {
        printf("%s%-38s n/a: %s%s\n", style->faint, r->name, r->not_applicable, style->reset);
        return;
    }
    if (ag_check_passed(r)) {
        printf("%-38s %9.1e %9.1e  %sok%s\n", r->name, r->residual, r->limit, style->good, style->reset);
        return;
    }
    char place[PLACE_SIZE];
    ag_check_place(r, place, sizeof place);
    printf("%-38s %9.1e %9.1e  %sFAIL%s %s\n", r->name, r->residual, r->limit, style->bad, style->reset,
           place);
}

static void print_seed_and_offsets(const ag_check_case *c)
{
    printf("%-*s%" PRIu64, LABEL, "seed", c->seed);
    if (c->q_offset != 0 || c->k_offset != 0 || c->batch_offset != 0) {
        printf("; q_offset %" PRId64 ", k_offset %" PRId64 ", batch_offset %" PRId64, c->q_offset,
               c->k_offset, c->batch_offset);
    }
    printf("%s%s%s\n\n", c->lengths ? "; random lengths" : "", c->offsets ? "; random offsets" : "",
           c->low_halves ? "; low halves" : "");
}

void print_problem(const ag_check_case *c, const ag_check_report *report)
{
    char text[TEXT_SIZE];
    struct style style = style_of(stdout);
    struct counts counts = agc_results_count(report);
    problem_text(c, text);
    print_wrapped("problem", text);
    print_wrapped("plan", report->plan);
    print_seed_and_offsets(c);
    printf("%s%-38s %9s %9s%s\n", style.strong, "check", "residual", "limit", style.reset);
    for (int n = 0; n < report->count; n++) {
        print_result(&report->results[n], &style);
    }
    printf("\n%d checks passed, %d failed, %d not applicable\n", counts.passed, counts.failed,
           counts.not_applicable);
}

/* Writes the worst element, if the check has one: its tensor, and its sequence, head, position and channel. */
static void json_worst(struct json *json, const ag_check_result *r)
{
    if (r->tensor != NULL) {
        emit_string(json, "tensor", r->tensor);
        emit_integers(json, "worst", r->worst, 4);
    }
}

static void json_results(struct json *json, const ag_check_report *report, int only_failed)
{
    emit_begin_array(json, "checks");
    for (int n = 0; n < report->count; n++) {
        const ag_check_result *r = &report->results[n];
        if (only_failed && ag_check_passed(r)) {
            continue;
        }
        emit_begin_object(json, NULL);
        emit_string(json, "check", r->name);
        if (r->not_applicable != NULL) {
            emit_string(json, "not_applicable", r->not_applicable);
        } else {
            emit_number(json, "residual", r->residual);
            emit_number(json, "limit", r->limit);
            emit_bool(json, "passed", ag_check_passed(r) != 0);
            json_worst(json, r);
        }
        emit_end(json);
    }
    emit_end(json);
}

static void json_case(struct json *json, const ag_check_case *c)
{
    char text[TEXT_SIZE];
    problem_text(c, text);
    emit_string(json, "problem", text);
    snprintf(text, sizeof text, "%" PRIu64, c->seed); /* a string, as JSON's numbers cannot hold 64 bits */
    emit_string(json, "seed", text);
    emit_integer(json, "q_offset", c->q_offset);
    emit_integer(json, "k_offset", c->k_offset);
    emit_integer(json, "batch_offset", c->batch_offset);
    emit_bool(json, "random_lengths", c->lengths != 0);
    emit_bool(json, "random_offsets", c->offsets != 0);
    emit_bool(json, "low_halves", c->low_halves != 0);
}

void print_problem_json(const ag_check_case *c, const ag_check_report *report)
{
    struct json json = emit_to(stdout);
    emit_begin_object(&json, NULL);
    json_case(&json, c);
    emit_string(&json, "plan", report->plan);
    json_results(&json, report, 0);
    emit_bool(&json, "passed", ag_check_failures(report) == 0);
    emit_end(&json);
}

void print_failure(const ag_check_case *c, const ag_check_report *report, const char *message)
{
    char text[TEXT_SIZE];
    struct style style = style_of(stdout);
    ag_check_command(c, text, sizeof text);
    printf("%sFAIL%s attngrad check %s\n", style.bad, style.reset, text);
    if (message != NULL) {
        printf("    %s\n", message);
    }
    for (int n = 0; n < report->count; n++) {
        const ag_check_result *r = &report->results[n];
        if (!ag_check_passed(r)) {
            char place[PLACE_SIZE];
            ag_check_place(r, place, sizeof place);
            printf("    %-38s %9.1e %9.1e %s\n", r->name, r->residual, r->limit, place);
        }
    }
}

void print_failure_json(struct json *json, const ag_check_case *c, const ag_check_report *report,
                        const char *message)
{
    emit_begin_object(json, NULL);
    json_case(json, c);
    if (message != NULL) {
        emit_string(json, "message", message);
    }
    json_results(json, report, 1);
    emit_end(json);
}

void print_summary(const struct summary *summary)
{
    struct style style = style_of(stdout);
    int passed = 0, failed = 0;
    printf("%s%-38s %7s %5s %5s %9s %9s%s\n", style.strong, "check", "passed", "FAIL", "n/a", "residual",
           "limit", style.reset);
    for (int n = 0; n < summary->count; n++) {
        const struct summary_line *l = &summary->lines[n];
        printf("%-38s %7d %5d %5d", l->name, l->passed, l->failed, l->not_applicable);
        if (l->passed + l->failed > 0) {
            printf(" %9.1e %9.1e", l->residual, l->limit);
        }
        putchar('\n');
        passed += l->passed;
        failed += l->failed;
    }
    printf("\n(residual and limit: of the problem that came closest to its limit)\n");
    printf("%d problems, %d failed; %d checks passed, %d failed\n", summary->problems,
           summary->failed_problems, passed, failed);
}

void print_summary_json(struct json *json, const struct summary *summary)
{
    emit_begin_array(json, "checks");
    for (int n = 0; n < summary->count; n++) {
        const struct summary_line *l = &summary->lines[n];
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
    emit_integer(json, "problems", summary->problems);
    emit_integer(json, "failed_problems", summary->failed_problems);
    emit_bool(json, "passed", summary->failed_problems == 0);
}
