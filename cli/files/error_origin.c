/* The library names the field that it refuses; the user knows the option that the field came from and, if it
 * came from a file, that file. */
#include "files.h"

#include "usage.h"

#include <attngrad_check.h>
#include <string.h>

/* Where a field comes from: the array of a tensor, a list, or an option without a file. */
enum origin { FROM_TENSOR, FROM_LIST, FROM_OPTION };

struct field {
    const char *name; /* as ag_last_field() gives it */
    enum origin origin;
    int index; /* an enum tensor or an enum list */
    const char *option;
};

/* A field that may come from several arrays is listed once for each; the first one that was given is named. */
static const struct field fields[] = {
    {"batch", FROM_TENSOR, T_Q, NULL},
    {"heads", FROM_TENSOR, T_Q, NULL},
    {"q_len", FROM_TENSOR, T_Q, NULL},
    {"q_total", FROM_TENSOR, T_Q, NULL},
    {"dim_qk", FROM_TENSOR, T_Q, NULL},
    {"dtype", FROM_TENSOR, T_Q, NULL},
    {"kv_heads", FROM_TENSOR, T_K, NULL},
    {"kv_len", FROM_TENSOR, T_K, NULL},
    {"kv_total", FROM_TENSOR, T_K, NULL},
    {"dim_v", FROM_TENSOR, T_V, NULL},
    {"bias_size", FROM_TENSOR, T_BIAS, NULL},
    {"mask_size", FROM_TENSOR, T_MASK, NULL},
    {"table_heads", FROM_TENSOR, T_TABLE, NULL},
    {"table_buckets", FROM_TENSOR, T_TABLE, NULL},
    {"table_radius", FROM_LIST, LIST_BUCKETS, NULL},
    {"table_radius", FROM_TENSOR, T_TABLE, NULL},
    {"aux_dtype", FROM_TENSOR, T_BIAS, NULL},
    {"aux_dtype", FROM_TENSOR, T_TABLE, NULL},
    {"aux_dtype", FROM_TENSOR, T_SINK, NULL},
    {"buckets", FROM_LIST, LIST_BUCKETS, NULL},
    {"alibi_slopes", FROM_LIST, LIST_SLOPES, NULL},
    {"q_lengths", FROM_LIST, LIST_Q_LENGTHS, NULL},
    {"kv_lengths", FROM_LIST, LIST_KV_LENGTHS, NULL},
    {"q_packed", FROM_LIST, LIST_Q_PACKED, NULL},
    {"k_packed", FROM_LIST, LIST_K_PACKED, NULL},
    {"q_offsets", FROM_LIST, LIST_Q_OFFSETS, NULL},
    {"k_offsets", FROM_LIST, LIST_K_OFFSETS, NULL},
    {"options.backend", FROM_OPTION, 0, "backend"},
    {"options.device", FROM_OPTION, 0, "device"},
    {"window_left", FROM_OPTION, 0, "window"},
    {"window_right", FROM_OPTION, 0, "window"},
    {"scale", FROM_OPTION, 0, "scale"},
    {"softcap", FROM_OPTION, 0, "softcap"},
    {"dropout", FROM_OPTION, 0, "dropout"},
    {"q_offset", FROM_OPTION, 0, "q-offset"},
    {"k_offset", FROM_OPTION, 0, "k-offset"},
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

int run_library_error(const struct run *run)
{
    const char *message = ag_check_last_message();
    for (int n = 0; n < FIELDS; n++) {
        const struct field *field = &fields[n];
        if (strcmp(ag_check_last_field(), field->name) != 0) {
            continue;
        }
        if (field->origin == FROM_OPTION) {
            return usage_error(run->command, "--%s: %s", field->option, message);
        }
        const struct input *input =
            field->origin == FROM_LIST ? &run->lists[field->index] : &run->tensors[field->index];
        if (input->path != NULL) {
            return file_error(run->command, "--%s: '%s': %s", input->option, input->path, message);
        }
    }
    return usage_error(run->command, "%s", message);
}
