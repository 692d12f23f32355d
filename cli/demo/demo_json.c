/* The worked example for programs: one JSON object with every variable under its name. */
#include "demo_print.h"
#include "demo_steps.h"
#include "json.h"

#include <math.h>

static void write_rows(struct json *json, const char *key, const struct layout *l, const double *values)
{
    emit_begin_array(json, key);
    for (int r = 0; r < l->rows; r++) {
        emit_numbers(json, NULL, values + r * l->row_stride, l->columns);
    }
    emit_end(json);
}

static void write_values(struct json *json, const struct layout *l, const double *values)
{
    if (l->rows == 0) {
        emit_number(json, "values", *values);
    } else if (l->columns == 0) {
        emit_numbers(json, "values", values, l->rows);
    } else if (l->heads == 0) {
        write_rows(json, "values", l, values);
    } else {
        emit_begin_array(json, "values");
        for (int h = 0; h < l->heads; h++) {
            write_rows(json, NULL, l, values + h * l->head_stride);
        }
        emit_end(json);
    }
}

static void write_steps(struct json *json, const struct step *steps, int count, const struct example *e)
{
    for (int n = 0; n < count; n++) {
        int64_t shape[3];
        int axes = step_shape(&steps[n], shape);
        emit_begin_object(json, steps[n].name);
        if (steps[n].formula) {
            emit_string(json, "formula", steps[n].formula);
        }
        emit_integers(json, "shape", shape, axes);
        write_values(json, steps[n].layout, step_values(&steps[n], e));
        emit_end(json);
    }
}

static void write_checks(struct json *json, const struct example *e)
{
    emit_begin_array(json, "checks");
    for (int n = 0; n < e->checks.count; n++) {
        const ag_check_result *check = &e->checks.results[n];
        emit_begin_object(json, NULL);
        emit_string(json, "check", check->name);
        emit_number(json, "residual", check->residual);
        emit_number(json, "limit", check->limit);
        emit_bool(json, "passed", ag_check_passed(check));
        emit_end(json);
    }
    emit_end(json);
}

void print_example_json(const struct example *e)
{
    struct json json = emit_to(stdout);
    emit_begin_object(&json, NULL);
    emit_integer(&json, "tokens", TOKENS);
    emit_integer(&json, "d_model", MODEL);
    emit_integer(&json, "heads", HEADS);
    emit_integer(&json, "d_k", DIM);
    emit_number(&json, "scale", 1 / sqrt(DIM));
    emit_begin_object(&json, "variables");
    write_steps(&json, demo_steps, demo_steps_count, e);
    write_steps(&json, demo_update, demo_update_count, e);
    emit_end(&json);
    write_checks(&json, e);
    emit_bool(&json, "passed", example_passed(e));
    emit_end(&json);
}
