/* What the library refuses it calls by the names of its own fields; the user knows the option that the field
 * came from and, where it came from a file, that file. */
#include "files.h"

#include "usage.h"

#include <string.h>

/* Where a field comes from: the array of a tensor, a list, or an option without a file. */
enum origin { FROM_TENSOR, FROM_LIST, FROM_OPTION };

struct field {
    const char *name, *says; /* says: what else the message must hold, or NULL */
    enum origin origin;
    int index; /* an enum tensor or an enum list */
    const char *option;
};

/* The first that fits, so that a field of several arrays stands once for each of them. */
static const struct field fields[] = {
    {"heads", "multiple of kv_heads", FROM_TENSOR, T_K, NULL},
    {"batch", "kv_heads", FROM_TENSOR, T_K, NULL},
    {"batch", NULL, FROM_TENSOR, T_Q, NULL},
    {"heads", NULL, FROM_TENSOR, T_Q, NULL},
    {"q_len", NULL, FROM_TENSOR, T_Q, NULL},
    {"dim_qk", NULL, FROM_TENSOR, T_Q, NULL},
    {"dtype", NULL, FROM_TENSOR, T_Q, NULL},
    {"kv_heads", NULL, FROM_TENSOR, T_K, NULL},
    {"kv_len", NULL, FROM_TENSOR, T_K, NULL},
    {"dim_v", NULL, FROM_TENSOR, T_V, NULL},
    {"bias_size", NULL, FROM_TENSOR, T_BIAS, NULL},
    {"mask_size", NULL, FROM_TENSOR, T_MASK, NULL},
    {"table_heads", NULL, FROM_TENSOR, T_TABLE, NULL},
    {"table_buckets", NULL, FROM_TENSOR, T_TABLE, NULL},
    {"table_radius", NULL, FROM_LIST, LIST_BUCKETS, NULL},
    {"table_radius", NULL, FROM_TENSOR, T_TABLE, NULL},
    {"aux_dtype", NULL, FROM_TENSOR, T_BIAS, NULL},
    {"aux_dtype", NULL, FROM_TENSOR, T_TABLE, NULL},
    {"aux_dtype", NULL, FROM_TENSOR, T_SINK, NULL},
    {"buckets", NULL, FROM_LIST, LIST_BUCKETS, NULL},
    {"alibi_slopes", NULL, FROM_LIST, LIST_SLOPES, NULL},
    {"q_lengths", NULL, FROM_LIST, LIST_Q_LENGTHS, NULL},
    {"kv_lengths", NULL, FROM_LIST, LIST_KV_LENGTHS, NULL},
    {"q_packed", NULL, FROM_LIST, LIST_Q_PACKED, NULL},
    {"k_packed", NULL, FROM_LIST, LIST_K_PACKED, NULL},
    {"window_left", NULL, FROM_OPTION, 0, "window"},
    {"window_right", NULL, FROM_OPTION, 0, "window"},
    {"scale", NULL, FROM_OPTION, 0, "scale"},
    {"softcap", NULL, FROM_OPTION, 0, "softcap"},
    {"dropout", NULL, FROM_OPTION, 0, "dropout"},
    {"q_offset", NULL, FROM_OPTION, 0, "q-offset"},
    {"k_offset", NULL, FROM_OPTION, 0, "k-offset"},
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

/* The message without the name of the call, which is "ag_" and so on. */
static const char *without_call(const char *message)
{
    const char *end = strncmp(message, "ag_", 3) == 0 ? strstr(message, ": ") : NULL;
    return end != NULL ? end + 2 : message;
}

/* The message starts with the field, as a whole word, or with an element of it. */
static bool is_about(const struct field *field, const char *message)
{
    const size_t length = strlen(field->name);
    return strncmp(message, field->name, length) == 0 && strchr(" [:", message[length]) != NULL &&
           (field->says == NULL || strstr(message, field->says) != NULL);
}

int run_library_error(const struct run *run)
{
    const char *message = without_call(ag_last_message());
    for (int n = 0; n < FIELDS; n++) {
        const struct field *field = &fields[n];
        if (!is_about(field, message)) {
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
