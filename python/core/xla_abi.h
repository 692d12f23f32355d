/* The part of XLA's foreign function interface that a handler on the CPU needs, in C: layouts of structs and numbers,
 * under names of our own. jaxlib has all of it in xla/ffi/api/c_api.h, but renames its types from one minor version to
 * the next, while the layouts below stay as they are. With this file the extension module needs no jaxlib to build, and
 * one binary serves every jaxlib from 0.10 on. */
#ifndef ATTNGRAD_PYTHON_XLA_ABI_H
#define ATTNGRAD_PYTHON_XLA_ABI_H

#include <stddef.h>
#include <stdint.h>

/* The version that the handler reports: that of the oldest jaxlib that is supported. Newer ones accept it. */
enum { XF_MAJOR = 0, XF_MINOR = 3 };

enum { XF_PRED = 1, XF_S32 = 4, XF_S64 = 5, XF_U32 = 8, XF_F16 = 10, XF_F32 = 11, XF_F64 = 12, XF_BF16 = 16 };
enum { XF_ATTR_ARRAY = 1, XF_ATTR_SCALAR = 3, XF_ATTR_STRING = 4 };
enum { XF_STAGE_EXECUTE = 3 };
enum { XF_INVALID_ARGUMENT = 3, XF_RESOURCE_EXHAUSTED = 8, XF_UNIMPLEMENTED = 12, XF_INTERNAL = 13 };
enum { XF_EXTENSION_METADATA = 1 };

typedef struct xf_error xf_error;
typedef struct xf_context xf_context;

typedef struct xf_extension {
    size_t struct_size;
    int32_t type;
    struct xf_extension *next;
} xf_extension;

typedef struct xf_buffer {
    size_t struct_size;
    xf_extension *extension;
    int32_t dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} xf_buffer;

typedef struct xf_span {
    const char *ptr;
    size_t len;
} xf_span;

typedef struct xf_scalar {
    int32_t dtype;
    void *value;
} xf_scalar;

typedef struct xf_array {
    int32_t dtype;
    size_t size;
    void *data;
} xf_array;

typedef struct xf_buffers { /* arguments, or results */
    size_t struct_size;
    xf_extension *extension;
    int64_t size;
    int32_t *types;
    xf_buffer **items;
} xf_buffers;

typedef struct xf_attrs {
    size_t struct_size;
    xf_extension *extension;
    int64_t size;
    int32_t *types;
    xf_span **names;
    void **items;
} xf_attrs;

typedef struct xf_version {
    size_t struct_size;
    xf_extension *extension;
    int32_t major, minor;
} xf_version;

typedef struct xf_error_create_args {
    size_t struct_size;
    xf_extension *extension;
    const char *message;
    int32_t code;
} xf_error_create_args;

typedef struct xf_error_destroy_args {
    size_t struct_size;
    xf_extension *extension;
    xf_error *error;
} xf_error_destroy_args;

typedef struct xf_schedule_args {
    size_t struct_size;
    xf_extension *extension;
    xf_context *ctx;
    void (*task)(void *data);
    void *data;
} xf_schedule_args;

typedef struct xf_threads_args {
    size_t struct_size;
    xf_extension *extension;
    xf_context *ctx;
    int64_t *threads;
} xf_threads_args;

typedef void xf_unused(void); /* a function that the handler does not call */

typedef struct xf_api {
    size_t struct_size;
    xf_extension *extension;
    xf_version version;
    const void *internal;
    xf_error *(*error_create)(xf_error_create_args *);
    xf_unused *error_message;
    void (*error_destroy)(xf_error_destroy_args *);
    xf_unused *handler_register;
    xf_unused *stream_get;
    xf_unused *type_register;
    xf_unused *context_get;
    xf_unused *state_set;
    xf_unused *state_get;
    xf_unused *device_allocate;
    xf_unused *device_free;
    xf_error *(*schedule)(xf_schedule_args *);
    xf_error *(*threads)(xf_threads_args *);
} xf_api;

typedef struct xf_frame {
    size_t struct_size;
    xf_extension *extension;
    const xf_api *api;
    xf_context *ctx;
    int32_t stage;
    xf_buffers args;
    xf_buffers rets;
    xf_attrs attrs;
} xf_frame;

typedef struct xf_metadata { /* later versions append to it */
    size_t struct_size;
    xf_version version;
    uint32_t traits;
} xf_metadata;

typedef struct xf_metadata_extension {
    xf_extension base;
    xf_metadata *metadata;
} xf_metadata_extension;

#endif
