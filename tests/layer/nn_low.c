/* The layer saves the low half of a 16-bit C and its backward maps use it. The gradients are compared with those of the
 * same layer in float64, with and without low halves, in a setting where the rounding error of C matters: peaked rows
 * and a cotangent close to C. The weights are identity matrices, so that nothing but attention rounds. */
#include "nn.h"

enum { WIDTH = 64, SEED = 41 }; /* WIDTH: 2 heads of 32 channels */

#define SHAPE "b2 h2 q96 d32 scale=1.06"

typedef struct {
    const char *text, *wide; /* the problem in 16 bits, and the same in float64 */
} low_case;

static const low_case cases[] = {
    {"bf16 grad=f32 " SHAPE, "f64 " SHAPE},
    {"bf16 grad=f32 causal " SHAPE, "f64 causal " SHAPE},
    {"f16 grad=f32 " SHAPE, "f64 " SHAPE},
};

enum { N_CASES = sizeof cases / sizeof cases[0] };

/* ---- One setting ---- */

static void set_identity_weights(nn_model *m)
{
    for (int64_t i = 0; i < m->count[PARAMS]; i++) {
        const int64_t row = i / WIDTH % WIDTH, col = i % WIDTH;
        nn_set(m, VALUE, PARAMS, i, row == col);
    }
    m->a.t_params = NULL;
}

static void copy_array(nn_model *to, const nn_model *from, int kind, int array)
{
    for (int64_t i = 0; i < to->count[array]; i++) {
        nn_set(to, kind, array, i, nn_get(from, kind, array, i));
    }
}

/* dy = C + 5% noise and tdy = tC + 5% noise; `m` is the layer in float64, and `narrow` rounds them. */
static void set_close_cotangents(nn_model *m, nn_model *narrow)
{
    const int pairs[2][2] = {{D, VALUE}, {TD, T}};
    CHECK_OK(nn_run(m, AG_MAP_JVP));
    for (int n = 0; n < 2; n++) {
        const int kind = pairs[n][0], near_to = pairs[n][1];
        for (int64_t i = 0; i < m->count[Y]; i++) {
            nn_set(narrow, kind, Y, i, nn_get(m, near_to, Y, i) + 0.05 * nn_get(m, kind, Y, i));
        }
        copy_array(m, narrow, kind, Y);
    }
}

static void copy_inputs(nn_model *to, const nn_model *from)
{
    for (int array = X_Q; array <= X_V; array++) {
        copy_array(to, from, VALUE, array);
        copy_array(to, from, T, array);
    }
}

static double error_of(const nn_model *m, const nn_model *truth, int kind, int array)
{
    double sum = 0;
    for (int64_t i = 0; i < m->count[array]; i++) {
        const double e = nn_get(m, kind, array, i) - nn_get(truth, kind, array, i);
        sum += e * e;
    }
    return sqrt(sum / nn_dot(truth, kind, kind, array));
}

/* ---- Errors ---- */

static int on_amx(const nn_model *m)
{
    ag_plan_info info = {.struct_size = sizeof info};
    CHECK_OK(ag_plan_info_get(ag_layer_plan(m->layer), &info));
    return info.isa == AG_ISA_AMX;
}

/* The limit of the error with low halves / the error without. On AMX weights have 16 bits: their rounding errors
 * remain, and in vjp_jvp they are larger than that of C. */
static double max_ratio(const nn_model *m, int kind)
{
    return !on_amx(m) ? 0.1 : kind == D ? 0.6 : 0.97;
}

static void check_errors(const low_case *c, const nn_model *low, const nn_model *without,
                         const nn_model *truth)
{
    const int arrays[] = {X_Q, X_K, PARAMS};
    for (int kind = D; kind <= TD; kind++) {
        const double limit = max_ratio(low, kind);
        for (int n = 0; n < 3; n++) {
            const double with = error_of(low, truth, kind, arrays[n]);
            const double other = error_of(without, truth, kind, arrays[n]);
            CHECK(with <= limit * other, "%s: %s of kind %d: error %g with low halves, %g without", c->text,
                  nn_names[arrays[n]], kind, with, other);
        }
    }
}

static void check_case(const low_case *c)
{
    const nn_config wide = {c->wide, 0, WIDTH, 0, 0, 0, 0}, narrow = {c->text, 0, WIDTH, 0, 0, 0, 0};
    const nn_config without_low = {c->text, AG_LAYER_NO_LOW, WIDTH, 0, 0, 0, 0};
    nn_model truth, low, without;
    nn_make(&truth, &wide, 2, SEED);
    nn_make(&low, &narrow, 2, SEED);
    nn_make(&without, &without_low, 2, SEED);
    nn_model *const models[] = {&truth, &low, &without};
    for (int n = 0; n < 3; n++) {
        set_identity_weights(models[n]);
    }
    copy_inputs(&truth, &low); /* the rounded ones; `without` has drawn and rounded the same */
    set_close_cotangents(&truth, &low);
    copy_array(&without, &low, D, Y);
    copy_array(&without, &low, TD, Y);
    for (int n = 0; n < 3; n++) {
        nn_run_all(models[n]);
    }
    CHECK(memcmp(low.at[VALUE][Y], without.at[VALUE][Y],
                 (size_t)low.count[Y] * ag_dtype_size(low.p->out_dtype)) == 0,
          "%s: y depends on AG_LAYER_NO_LOW", c->text);
    check_errors(c, &low, &without, &truth);
    for (int n = 0; n < 3; n++) {
        nn_free(models[n]);
    }
}

/* ---- Memory and views ---- */

static size_t saved_bytes(const nn_model *m)
{
    size_t bytes = 0;
    CHECK_OK(ag_layer_saved(m->layer, AG_SAVED, &bytes));
    return bytes;
}

/* A low half takes as much memory as C; a wide C has none, whatever the flag says. */
static void check_memory(const char *text, int has_low)
{
    const nn_config with = {text, AG_LAYER_SELF, WIDTH, 0, 0, 0, 0};
    const nn_config without = {text, AG_LAYER_SELF | AG_LAYER_NO_LOW, WIDTH, 0, 0, 0, 0};
    nn_model a, b;
    ag_saved_views saved = {.struct_size = sizeof saved}, d_saved = {.struct_size = sizeof d_saved};
    ag_saved_views none = {.struct_size = sizeof none};
    nn_make(&a, &with, 1, SEED);
    nn_make(&b, &without, 1, SEED);
    const size_t low_bytes = has_low ? (size_t)a.count[X_Q] * ag_dtype_size(a.p->out_dtype) : 0;
    CHECK_INT(saved_bytes(&a) - saved_bytes(&b), low_bytes);
    CHECK_OK(ag_layer_saved_views(a.layer, AG_SAVED, a.saved, &saved));
    CHECK_OK(ag_layer_saved_views(a.layer, AG_D_SAVED, a.d_saved, &d_saved));
    CHECK_OK(ag_layer_saved_views(b.layer, AG_SAVED, b.saved, &none));
    CHECK((saved.o_low.data != NULL) == has_low, "%s: o_low at %p", text, saved.o_low.data);
    CHECK(d_saved.o_low.data == NULL && none.o_low.data == NULL, "%s: a low half that is not there", text);
    nn_free(&a);
    nn_free(&b);
}

int main(void)
{
    for (int n = 0; n < N_CASES; n++) {
        check_case(&cases[n]);
    }
    check_memory("bf16 b2 h2 q96 d32", 1);
    check_memory("f16 b2 h2 q96 d32", 1);
    check_memory("bf16 out=f32 b2 h2 q96 d32", 0);
    check_memory("f32 b2 h2 q96 d32", 0);
    return test_summary();
}
