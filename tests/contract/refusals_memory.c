/* The memory of a call: tensors that overlap, tensors in the workspace, workspaces that are missing or too small. */
#include "refusals.h"

/* Two tensors in one buffer. */
struct pair {
    enum tensor tensor[2];
    char *buffer;
    size_t bytes;
};

/* The same elements, in reverse order along every axis. */
static void flip(const struct arrays *x, enum tensor t, ag_tensor *view)
{
    int64_t last = 0;
    for (int axis = 0; axis < 4; axis++) {
        last += view->strides[axis] * (x->size[t][axis] - 1);
        view->strides[axis] = -view->strides[axis];
    }
    view->data = (char *)view->data + last * (int64_t)element_size(x, t);
}

/* Dense views: the first tensor's at the beginning of the buffer, the second's at `offset` bytes. Bits 0 and 1 of
 * `flipped`: whether the first and the second are flipped. */
static void place(struct arrays *x, const struct pair *pair, size_t offset, int flipped)
{
    memset(pair->buffer, PATTERN, pair->bytes);
    for (int n = 0; n < 2; n++) {
        const enum tensor t = pair->tensor[n];
        *agc_arrays_tensor(x, t) = agc_tensor_view(x->p, t, pair->buffer + (n == 0 ? 0 : offset));
        if (flipped >> n & 1) {
            flip(x, t, agc_arrays_tensor(x, t));
        }
    }
}

static void check_untouched(const char *buffer, size_t bytes, const char *what)
{
    size_t n = 0;
    while (n < bytes && buffer[n] == PATTERN) {
        n++;
    }
    CHECK(n == bytes, "%s: byte %zu of the buffer was written", what, n);
}

/* The second tensor begins where the first does, or in its last element: refused, and the message names both. After it:
 * accepted. */
static void refuse_overlap(struct arrays *x, int map, enum tensor first, enum tensor second)
{
    const ag_args good = x->args;
    const size_t bytes = tensor_bytes(x, first), element = element_size(x, second);
    struct pair pair = {{first, second}, NULL, bytes + tensor_bytes(x, second) + 2 * element};
    pair.buffer = test_alloc((int64_t)pair.bytes, 1);
    /* Of two outputs the message is about the first in the order of ag_args. */
    const int first_is_blamed =
        is_output(x, first, map_bit[map]) && (first < second || !is_output(x, second, map_bit[map]));
    const char *const blamed = agc_tensor_info[first_is_blamed ? first : second].name;
    const char *const other = agc_tensor_info[first_is_blamed ? second : first].name;
    const size_t refused[] = {0, (bytes - 1) / element * element};
    for (int flipped = 0; flipped < 4; flipped++) {
        for (int n = 0; n < 2; n++) {
            place(x, &pair, refused[n], flipped);
            refuse_args(x, map, "overlapping tensors", blamed, other);
            check_untouched(pair.buffer, pair.bytes, "overlapping tensors");
        }
        place(x, &pair, (bytes + element - 1) / element * element, flipped);
        CHECK_OK(call_map(map, x->plan, &x->args, NULL, x->workspace, x->workspace_bytes));
        x->args = good;
    }
    free(pair.buffer);
}

static void overlaps(struct arrays *x)
{
    CHECK_OK(agc_arrays_run_all(x));
    for (int map = 0; map < MAPS; map++) {
        for (enum tensor t = 0; t < T_COUNT; t++) {
            for (enum tensor other = 0; other < T_COUNT; other++) {
                if (t != other && is_output(x, t, map_bit[map]) && x->data[other] != NULL &&
                    takes_part(other, map)) {
                    refuse_overlap(x, map, t, other);
                    refuse_overlap(x, map, other, t);
                }
            }
        }
    }
}

/* A tensor that reaches one element into the workspace, at either end, or whose rows lie around it. */
static void tensors_in_the_workspace(struct arrays *x)
{
    const ag_args good = x->args;
    const size_t bytes = x->workspace_bytes / 64 * 64 + 64;
    for (int map = 0; map < MAPS; map++) {
        for (enum tensor t = 0; t < T_COUNT; t++) {
            if (x->data[t] == NULL || !takes_part(t, map)) {
                continue;
            }
            const size_t room = tensor_bytes(x, t) / 64 * 64 + 64, element = element_size(x, t);
            char *buffer = test_alloc((int64_t)(bytes + 2 * room), 1), *workspace = buffer + room;
            char *const refused[] = {workspace - tensor_bytes(x, t) + element, workspace,
                                     workspace + bytes - element};
            char *const accepted[] = {workspace - tensor_bytes(x, t), workspace + bytes};
            memset(buffer, PATTERN, bytes + 2 * room);
            for (int n = 0; n < 3; n++) {
                *agc_arrays_tensor(x, t) = agc_tensor_view(x->p, t, refused[n]);
                refuse_call(x, map, NULL, workspace, bytes, AG_INVALID_ARGUMENT, "a tensor in the workspace",
                            agc_tensor_info[t].name, "workspace");
            }
            check_untouched(buffer, bytes + 2 * room, "a tensor in the workspace");
            for (int n = 0; n < 2; n++) {
                *agc_arrays_tensor(x, t) = agc_tensor_view(x->p, t, accepted[n]);
                CHECK_OK(call_map(map, x->plan, &x->args, NULL, workspace, bytes));
            }
            x->args = good;
            free(buffer);
        }
    }
}

static void rows_around_the_workspace(struct arrays *x)
{
    const ag_args good = x->args;
    const size_t heads = tensor_bytes(x, T_O);
    char *buffer = test_alloc((int64_t)(x->workspace_bytes + 2 * heads), 1);
    x->args.o.data = buffer;
    x->args.o.strides[0] = (int64_t)((x->workspace_bytes + heads) / element_size(x, T_O));
    refuse_call(x, 0, NULL, buffer + heads, x->workspace_bytes, AG_INVALID_ARGUMENT,
                "sequences around the workspace", "o", "workspace");
    x->args = good;
    free(buffer);
}

static void workspaces(struct arrays *x)
{
    for (int map = 0; map < MAPS; map++) {
        size_t bytes = 0;
        CHECK_OK(ag_plan_workspace(x->plan, map_bit[map], &bytes));
        CHECK(bytes <= x->workspace_bytes, "%s needs %zu bytes, all maps %zu", map_name[map], bytes,
              x->workspace_bytes);
        char value[32];
        snprintf(value, sizeof value, "%zu", bytes);
        refuse_call(x, map, NULL, NULL, bytes, AG_WORKSPACE, "no workspace", "workspace", value);
        refuse_call(x, map, NULL, x->workspace, bytes - 1, AG_WORKSPACE, "one byte too few", "workspace",
                    value);
        refuse_call(x, map, NULL, x->workspace, 0, AG_WORKSPACE, "no bytes", "workspace", value);
    }
}

/* Exactly the size that ag_plan_workspace returns, at several alignments; the memory ends where the workspace ends. */
static void exact_workspaces_work(struct arrays *x)
{
    CHECK_OK(agc_arrays_run_all(x));
    for (int map = 0; map < MAPS; map++) {
        size_t bytes = 0;
        CHECK_OK(ag_plan_workspace(x->plan, map_bit[map], &bytes));
        for (size_t shift = 0; shift < 64; shift += shift < 9 ? 1 : 11) {
            char *memory = test_alloc((int64_t)(bytes + shift), 1);
            CHECK_OK(call_map(map, x->plan, &x->args, NULL, memory + shift, bytes));
            free(memory);
        }
    }
}

static void workspace_query(struct arrays *x)
{
    size_t bytes = 12345;
    CHECK_STATUS(ag_plan_workspace(NULL, AG_MAP_FORWARD, &bytes), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_plan_workspace(x->plan, AG_MAP_FORWARD, NULL), AG_INVALID_ARGUMENT);
    CHECK_STATUS(ag_plan_workspace(x->plan, 1u << 5, &bytes), AG_INVALID_ARGUMENT);
    CHECK_INT(bytes, 12345);
    size_t largest = 0, all = 0;
    for (int map = 0; map < MAPS; map++) {
        CHECK_OK(ag_plan_workspace(x->plan, map_bit[map], &bytes));
        largest = bytes > largest ? bytes : largest;
    }
    CHECK_OK(ag_plan_workspace(x->plan, ALL_MAPS, &all));
    CHECK_INT(all, largest);
}

int main(void)
{
    struct arrays padded, packed;
    make_arrays(&padded, EVERY_FEATURE "f32", NULL, 2);
    make_arrays(&packed, EVERY_FEATURE_PACKED "f16", NULL, 2);
    CHECK_OK(agc_arrays_add_low_halves(&packed));
    for (int n = 0; n < 2; n++) {
        struct arrays *x = n == 0 ? &padded : &packed;
        overlaps(x);
        tensors_in_the_workspace(x);
        workspaces(x);
        exact_workspaces_work(x);
        workspace_query(x);
    }
    rows_around_the_workspace(&padded);
    agc_arrays_destroy(&packed);
    agc_arrays_destroy(&padded);
    return test_summary();
}
