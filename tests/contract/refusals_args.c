/* Wrong arguments of a call: pointers, strides, positions, lengths, packed offsets, tensors of other problems and other
 * maps; and of ag_convert. */
#include "refusals.h"

static void pointers(struct arrays *x)
{
    const ag_args good = x->args;
    for (int map = 0; map < MAPS; map++) {
        for (enum tensor t = 0; t < T_COUNT; t++) {
            ag_tensor *tensor = agc_arrays_tensor(x, t);
            if (x->data[t] == NULL) {
                continue;
            }
            if (is_required(t, map)) {
                tensor->data = NULL;
                refuse_args(x, map, "a missing pointer", agc_tensor_info[t].name, "NULL");
                x->args = good;
            }
            if (takes_part(t, map) && element_size(x, t) > 1) {
                tensor->data = (char *)x->data[t] + 1;
                refuse_args(x, map, "a misaligned pointer", agc_tensor_info[t].name, "aligned");
                x->args = good;
            }
        }
    }
}

static void strides(struct arrays *x)
{
    const ag_args good = x->args;
    for (int map = 0; map < MAPS; map++) {
        for (enum tensor t = 0; t < T_COUNT; t++) {
            ag_tensor *tensor = agc_arrays_tensor(x, t);
            for (int axis = 0; axis < 4 && x->data[t] != NULL && takes_part(t, map); axis++) {
                if (x->size[t][axis] < 2) {
                    continue;
                }
                const int output = is_output(x, t, map_bit[map]);
                for (int other = 0; output && other < 4; other++) {
                    if (other != axis && x->size[t][other] > 1) {
                        tensor->strides[axis] = -tensor->strides[other];
                        refuse_args(x, map, "two equal strides", agc_tensor_info[t].name, "stride");
                        x->args = good;
                    }
                }
                if (output) {
                    tensor->strides[axis] = 0;
                    refuse_args(x, map, "a zero stride on an output", agc_tensor_info[t].name, "stride");
                    x->args = good;
                }
                static const int64_t far[] = {INT64_MAX, INT64_MIN, INT64_MIN + 1, INT64_MAX / 2 + 1};
                /* The mask has elements of one byte: 2^62 of them do not overflow. */
                for (int n = 0; n < (t == T_MASK ? 3 : 4); n++) {
                    tensor->strides[axis] = far[n];
                    refuse_args(x, map, "a stride that overflows", agc_tensor_info[t].name, "stride");
                    x->args = good;
                }
            }
        }
    }
}

/* One row reaches one element into the next. */
static void rows_that_overlap(struct arrays *x)
{
    const ag_args good = x->args;
    x->args.dq.strides[2] = x->p->dim_qk - 1;
    refuse_args(x, 1, "rows that overlap", "dq", "stride");
    x->args = good;
    x->args.dbias.strides[1] = 1;
    x->args.dbias.strides[3] = 2; /* 2, 4, 6 .. and 1, 2, 3 .. meet */
    refuse_args(x, 1, "axes that meet", "dbias", "stride");
    x->args = good;
}

static void positions(struct arrays *x)
{
    const ag_args good = x->args;
    for (int map = 0; map < MAPS; map++) {
        x->args.q_offset = INT64_MAX;
        refuse_args(x, map, "a far offset", "q_offset", "9223372036854775807");
        x->args = good;
        x->args.k_offset = INT64_MIN;
        refuse_args(x, map, "a far offset", "k_offset", "-9223372036854775808");
        x->args = good;
        x->args.batch_offset = -1;
        refuse_args(x, map, "a negative sequence number", "batch_offset", "-1");
        x->args = good;
        x->args.batch_offset = INT64_MAX;
        refuse_args(x, map, "a sequence number beyond 2^32", "batch_offset", "9223372036854775807");
        x->args = good;
        x->args.accumulate = 1u << 18;
        refuse_args(x, map, "an unknown bit", "accumulate", "40000");
        x->args.accumulate = 1u << 31;
        refuse_args(x, map, "an unknown bit", "accumulate", "80000000");
        x->args = good;
    }
}

static void lengths(struct arrays *x)
{
    static const int64_t right[] = {0, 7, 3};
    static const struct {
        int64_t lengths[3];
        const char *index, *value;
    } wrong[] = {{{8, 0, 0}, "[0]", "8"},
                 {{0, -1, 0}, "[1]", "-1"},
                 {{0, 0, INT64_MAX}, "[2]", "9223372036854775807"}};
    const ag_args good = x->args;
    for (int n = 0; n < MAPS * 3; n++) {
        char field[32];
        const int map = n % MAPS;
        x->args.q_lengths = wrong[n / MAPS].lengths;
        snprintf(field, sizeof field, "q_lengths%s", wrong[n / MAPS].index);
        refuse_args(x, map, "a wrong length", field, wrong[n / MAPS].value);
        x->args = good;
        int64_t of_keys[3]; /* kv_len is 9 */
        for (int b = 0; b < 3; b++) {
            of_keys[b] = wrong[n / MAPS].lengths[b] == 8 ? 10 : wrong[n / MAPS].lengths[b];
        }
        x->args.q_lengths = right;
        x->args.kv_lengths = of_keys;
        snprintf(field, sizeof field, "kv_lengths%s", wrong[n / MAPS].index);
        refuse_args(x, map, "a wrong length", field, n / MAPS == 0 ? "10" : wrong[n / MAPS].value);
        x->args = good;
        x->args.q_packed = right;
        refuse_args(x, map, "packed offsets of a padded problem", "q_packed", "packed");
        x->args = good;
        x->args.k_packed = right;
        refuse_args(x, map, "packed offsets of a padded problem", "k_packed", "packed");
        x->args = good;
    }
}

/* b3 q7 k9 packed=15,20 */
static void packed_offsets(struct arrays *x)
{
    static const struct {
        int64_t offsets[4];
        const char *index, *value;
    } wrong[] = {
        {{1, 2, 3, 4}, "[0]", "1"},     {{-1, 2, 3, 4}, "[0]", "-1"},
        {{0, 5, 4, 6}, "[2]", "4"},     {{0, 1, 2, -3}, "[3]", "-3"},
        {{0, 7, 14, 21}, "[3]", "21"},  {{0, 0, 0, INT64_MAX}, "[3]", "9223372036854775807"},
        {{0, 10, 10, 10}, "[1]", "10"}, /* longer than q_len and kv_len */
    };
    static const int64_t lengths_given[] = {1, 1, 1};
    const ag_args good = x->args;
    for (size_t n = 0; n < MAPS * sizeof wrong / sizeof wrong[0]; n++) {
        char field[32];
        const int map = (int)(n % MAPS);
        x->args.q_packed = wrong[n / MAPS].offsets;
        snprintf(field, sizeof field, "q_packed%s", wrong[n / MAPS].index);
        refuse_args(x, map, "a wrong offset", field, wrong[n / MAPS].value);
        x->args = good;
        x->args.k_packed = wrong[n / MAPS].offsets;
        snprintf(field, sizeof field, "k_packed%s", wrong[n / MAPS].index);
        refuse_args(x, map, "a wrong offset", field, wrong[n / MAPS].value);
        x->args = good;
    }
    for (int map = 0; map < MAPS; map++) {
        x->args.q_packed = NULL;
        refuse_args(x, map, "no offsets", "q_packed", "NULL");
        x->args = good;
        x->args.k_packed = NULL;
        refuse_args(x, map, "no offsets", "k_packed", "NULL");
        x->args = good;
        x->args.q_lengths = lengths_given;
        refuse_args(x, map, "lengths of a packed problem", "q_lengths", "packed");
        x->args = good;
        x->args.kv_lengths = lengths_given;
        refuse_args(x, map, "lengths of a packed problem", "kv_lengths", "packed");
        x->args = good;
        x->args.q_offset = 1; /* its align is bottom-right */
        refuse_args(x, map, "bottom-right with an offset", "q_offset", "1");
        x->args = good;
        x->args.k_offset = -2;
        refuse_args(x, map, "bottom-right with an offset", "k_offset", "-2");
        x->args = good;
    }
}

/* A tensor of a feature that the problem does not have, or the low half of an output that is not in 16 bits. */
static void tensors_of_other_problems(void)
{
    struct arrays plain, full;
    make_arrays(&plain, "b3 h4 kv2 q7 k9 d5 dv3 f32", NULL, 1);
    make_arrays(&full, EVERY_FEATURE "f32", NULL, 1);
    const ag_args good = plain.args;
    CHECK_OK(agc_arrays_run_all(&plain));
    for (int map = 0; map < MAPS; map++) {
        for (enum tensor t = 0; t < T_COUNT; t++) {
            if (plain.data[t] == NULL && takes_part(t, map)) {
                const enum tensor source = agc_tensor_info[t].role == ROLE_LOW_HALF ? T_D_O : t;
                *agc_arrays_tensor(&plain, t) = *agc_arrays_tensor(&full, source);
                refuse_args(&plain, map, "a tensor without its feature", agc_tensor_info[t].name, "");
                plain.args = good;
            }
        }
    }
    agc_arrays_destroy(&full);
    agc_arrays_destroy(&plain);
}

/* A map does not look at what is not its own: no pointer of another map is followed or refused. */
static void fields_of_other_maps(struct arrays *x)
{
    const ag_args good = x->args;
    CHECK_OK(agc_arrays_run_all(x));
    for (int map = 0; map < MAPS; map++) {
        for (enum tensor t = 0; t < T_COUNT; t++) {
            if (!takes_part(t, map)) {
                *agc_arrays_tensor(x, t) = (ag_tensor){(void *)(uintptr_t)1, {INT64_MIN, INT64_MAX, -1, 0}};
            }
        }
        CHECK_OK(call_map(map, x->plan, &x->args, NULL, x->workspace, x->workspace_bytes));
        x->args = good;
    }
}

static void absent_arguments(struct arrays *x)
{
    for (int map = 0; map < MAPS; map++) {
        CHECK_STATUS(call_map(map, NULL, &x->args, NULL, x->workspace, x->workspace_bytes),
                     AG_INVALID_ARGUMENT);
        check_message(map_name[map], "plan", "NULL");
        CHECK_STATUS(call_map(map, x->plan, NULL, NULL, x->workspace, x->workspace_bytes),
                     AG_INVALID_ARGUMENT);
        check_message(map_name[map], "args", "NULL");
    }
    ag_plan *plan = NULL;
    const ag_problem p = small_problem();
    CHECK(ag_plan_create(NULL, &p, NULL) != AG_OK, "ag_plan_create without a place for the plan");
    CHECK(ag_plan_create(&plan, NULL, NULL) != AG_OK, "ag_plan_create without a problem");
    ag_plan_destroy(NULL);
}

static void conversions(void)
{
    double from[2] = {1, 2}, to[2] = {3, 4};
    CHECK_STATUS(ag_convert(to, 0, from, AG_F64, 1), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_convert(to, AG_F64, from, 99, 1), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_convert(to, AG_F64, from, AG_F64, -1), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_convert(NULL, AG_F64, from, AG_F64, 1), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_convert(to, AG_F64, NULL, AG_F64, 1), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_convert(to, AG_F8_E4M3, from, AG_F64, 1), AG_UNSUPPORTED);
    CHECK(to[0] == 3 && to[1] == 4, "a refused conversion wrote");
    CHECK_OK(ag_convert(NULL, AG_F32, NULL, AG_F64, 0));
}

int main(void)
{
    struct arrays padded, packed;
    make_arrays(&padded, EVERY_FEATURE "f32", NULL, 2);
    make_arrays(&packed, EVERY_FEATURE_PACKED "f16", NULL, 2);
    CHECK_OK(agc_arrays_add_low_halves(&packed));
    for (int n = 0; n < 2; n++) {
        struct arrays *x = n == 0 ? &padded : &packed;
        pointers(x);
        strides(x);
        fields_of_other_maps(x);
        absent_arguments(x);
    }
    rows_that_overlap(&padded);
    positions(&padded);
    lengths(&padded);
    packed_offsets(&packed);
    agc_arrays_destroy(&packed);
    agc_arrays_destroy(&padded);
    tensors_of_other_problems();
    conversions();
    return test_summary();
}
