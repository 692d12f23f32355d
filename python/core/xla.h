/* Shared by the files of XLA's handler, which runs the maps inside programs that JAX compiles.
 *
 * A call of the handler is described by its attributes. They are stored in exported programs, so their names, their
 * meaning and the numbers of the slots never change; version is raised if something must:
 *
 *     version    s64     XLA_VERSION
 *     map        s64     a bit of AG_MAP_*
 *     problem    string  the text of the problem without the words b h kv q k d dv packed, which follow from the shapes
 *     slots      s64[]   for each operand, then for each result: which variable it is, a number of xla_slot
 *     axes       s64[]   likewise: bits of the mapped axes (vmap) that it has, bit n for maps[n]
 *     maps       s64[]   optional: sizes of the mapped axes. A result without one of them is summed over it
 *     threads    s64     0: as many as XLA has
 *     backend    s64     ag_options.backend
 *     flags      s64     ag_options.flags
 *     longest    s64[2]  packed sequences: most queries and most keys of one
 *     slopes     f64[]   optional: alibi_slopes
 *     buckets    s32[]   optional
 *
 * Buffers are dense, with the mapped axes first: q [B, T, H, D], lse [B, T, H], bias and mask [b, h, q, k], table
 * [heads, columns], sink [heads]; packed sequences are q [1, total, H, D]. JAX has no float64 unless asked, so lse is
 * there twice: `lse` in float32 (float64 if the problem is), which has derivatives, and `rows`, uint32 [B, T, H, 2],
 * the bits of the float64 that the maps need. mu and the like are widened here. */
#ifndef ATTNGRAD_PYTHON_XLA_H
#define ATTNGRAD_PYTHON_XLA_H

#include "core.h"
#include "xla_abi.h"

enum { XLA_VERSION = 1, XLA_MAX_MAPS = 8, XLA_MAX_ITEMS = 48, XLA_TEXT = 1024 };

/* Stored in exported programs: append, never insert. */
typedef enum {
    XLA_Q,
    XLA_K,
    XLA_V,
    XLA_BIAS,
    XLA_TABLE,
    XLA_SINK,
    XLA_MASK,
    XLA_O,
    XLA_ROWS,
    XLA_LSE,
    XLA_O_LOW,
    XLA_D_O,
    XLA_D_LSE,
    XLA_DQ,
    XLA_DK,
    XLA_DV,
    XLA_DBIAS,
    XLA_DTABLE,
    XLA_DSINK,
    XLA_TQ,
    XLA_TK,
    XLA_TV,
    XLA_TBIAS,
    XLA_TTABLE,
    XLA_TSINK,
    XLA_TO,
    XLA_MU,
    XLA_TO_LOW,
    XLA_TD_O,
    XLA_TD_LSE,
    XLA_TDQ,
    XLA_TDK,
    XLA_TDV,
    XLA_TDBIAS,
    XLA_TDTABLE,
    XLA_TDSINK,
    XLA_SQ,
    XLA_SK,
    XLA_SV,
    XLA_SBIAS,
    XLA_STABLE,
    XLA_SSINK,
    XLA_SMU,
    XLA_STO,
    XLA_NU,
    XLA_Q_LENGTHS,
    XLA_KV_LENGTHS,
    XLA_Q_PACKED,
    XLA_K_PACKED,
    XLA_Q_OFFSETS,
    XLA_K_OFFSETS,
    XLA_OFFSETS, /* s32[3]: q_offset, k_offset, batch_offset */
    XLA_SEED,    /* u32[2]: the low half first */
    XLA_N_SLOTS
} xla_slot;

/* An operand or a result. */
typedef struct {
    xla_slot slot;
    int is_result;
    uint32_t axes; /* bits of the mapped axes that it has */
    int32_t dtype;
    int64_t rank; /* without the mapped axes */
    const int64_t *dims;
    int64_t count; /* of elements, for one element of the mapped axes */
    size_t bytes;  /* of these */
    char *data;
    void *wide; /* rows of float32 as float64, lists of int32 as int64; NULL: not needed */
} xla_item;

typedef struct xla_plan xla_plan;

typedef struct {
    const xf_frame *frame;
    uint32_t map;
    int n_items, n_maps;
    const int64_t *maps;
    xla_plan *kept; /* the entry of plan among those that are kept; NULL: none is used */
    const ag_plan *plan;
    xla_item items[XLA_MAX_ITEMS];
} xla_call;

/* An error for XLA, with a message as printf makes it. */
__attribute__((format(printf, 3, 4))) xf_error *core_xla_fail(const xf_frame *frame, int32_t code,
                                                              const char *format, ...);

/* The library's message as an error for XLA. */
xf_error *core_xla_fail_status(const xf_frame *frame, ag_status status);

/* ---- Attributes ---- */

/* NULL if there is no attribute of this name and type. */
const void *core_xla_attribute(const xf_frame *frame, const char *name, int32_t type);
const xf_array *core_xla_array(const xf_frame *frame, const char *name, int32_t dtype);

/* Fails if it is missing. */
xf_error *core_xla_number(const xf_frame *frame, const char *name, int64_t *number);

/* ---- Slots ---- */

/* A dict of all slots: {name: (number, bits of the maps that read it, bits of those that write it)}. */
PyObject *core_xla_slots(void);

/* The items of the call from the attributes slots, axes and maps, each with the right rank for its slot, each a
 * variable that the map reads or writes. */
xf_error *core_xla_read_items(xla_call *call);

/* Checks the sizes and dtypes of all items against the plan's problem. */
xf_error *core_xla_check_items(const xla_call *call);

/* NULL if there is none. */
const xla_item *core_xla_find(const xla_call *call, xla_slot slot);

/* Bytes for the copies in wider dtypes of all items; lays them out in memory if it is not NULL. */
size_t core_xla_lay_out(xla_call *call, char *memory);

/* The arguments of the map for element at[] of the mapped axes. */
void core_xla_fill(const xla_call *call, const int64_t *at, ag_args *args);

/* After the map: results in wider dtypes go back to their buffers. */
void core_xla_store(const xla_call *call, const int64_t *at);

/* Fills all results with zeros. */
void core_xla_clear(const xla_call *call);

/* ---- Plans ---- */

/* Sets call->plan: that of the problem whose sizes are those of q, k and v. It stays until core_xla_end_plan of
 * call->kept; after that it may be destroyed, if there are many. */
xf_error *core_xla_find_plan(xla_call *call);
void core_xla_end_plan(xla_plan *kept);

typedef struct {
    int64_t max, kept,
        made; /* the bound; plans that there are; plans that were made since the process began */
} xla_plan_counts;

/* Keeps at most max plans from now on, beside those in use; returns the bound before, and the counts after it. */
xla_plan_counts core_xla_bound_plans(int64_t max);

/* ---- Threads ---- */

/* Runs the tasks of a map on XLA's threads: ag_exec.run, with the frame as ctx. */
void core_xla_run_tasks(void *frame, int64_t n_tasks, ag_task task, void *arg);

/* ---- The handler ---- */

/* A capsule of the handler, for jax.ffi.register_ffi_target. */
PyObject *core_xla_capsule(void);

#endif
