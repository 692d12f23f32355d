/* Lists of tensors and their blocks: see items.h. */
#include "mpi/items.h"

#include <string.h>

#include "mpi/plan.h"

enum { ALIGN = 64 };

bool agi_mpi_is_input(agi_role role)
{
    return role == AGI_IN || role == AGI_IN_OPTIONAL;
}

bool agi_mpi_is_cut(agi_shape shape, agi_mpi_side side)
{
    const bool keys = shape == AGI_SHAPE_K || shape == AGI_SHAPE_V;
    const bool queries = shape == AGI_SHAPE_Q || shape == AGI_SHAPE_O || shape == AGI_SHAPE_ROW;
    return side == AGI_MPI_KEYS ? keys : queries;
}

ag_dtype agi_mpi_dtype_of(const ag_problem *p, agi_element element)
{
    switch (element) {
    case AGI_DTYPE: return p->dtype;
    case AGI_OUT_DTYPE:
    case AGI_LOW_HALF: return p->out_dtype;
    case AGI_GRAD_DTYPE: return p->grad_dtype;
    case AGI_AUX_DTYPE: return p->aux_dtype;
    case AGI_FLOAT64: return AG_F64;
    default: return 0;
    }
}

/* ---- Lists ---- */

static bool is_named(const agi_tensor_info *f, const char *const *names, size_t count)
{
    for (size_t n = 0; n < count; n++) {
        if (strcmp(f->name, names[n]) == 0) {
            return true;
        }
    }
    return false;
}

/* What vjp reads of o and to is one number per row, which travels as d_lse and td_lse. */
static bool stays(const agi_tensor_info *f)
{
    static const char *const names[] = {"o", "o_low", "to", "to_low"};
    return is_named(f, names, sizeof names / sizeof names[0]);
}

static bool is_row_number(const agi_tensor_info *f)
{
    static const char *const names[] = {"d_lse", "td_lse"};
    return is_named(f, names, sizeof names / sizeof names[0]);
}

/* What AG_GIVEN_O gives is computed again in a ring. */
static agi_role role_of(const agi_tensor_info *f, agi_map map, agi_mpi_selection selection,
                        const ag_args *args)
{
    const bool of_all_ways = selection == AGI_MPI_INPUTS || selection == AGI_MPI_OUTPUTS;
    return agi_role_of(f, map, args != NULL && of_all_ways ? args->flags : 0);
}

static bool is_selected(const ag_problem *p, const agi_tensor_info *f, agi_role role,
                        agi_mpi_selection selection, const ag_args *args)
{
    const bool given = args == NULL || agi_mpi_tensor_of(args, f).data != NULL;
    const bool exists = f->element != AGI_LOW_HALF || agi_has_low_half(p);
    switch (selection) {
    case AGI_MPI_INPUTS: return agi_mpi_is_input(role) && given && exists;
    case AGI_MPI_GUESTS:
        return agi_mpi_is_input(role) &&
               (f->shape == AGI_SHAPE_ROW && is_row_number(f) ? true : given && exists && !stays(f));
    case AGI_MPI_OUTPUTS: return agi_is_output(role) && given && exists;
    default:
        /* The rows of o and lse are merged, so their sums need both; a gradient that is not wanted is left out. */
        return agi_is_output(role) && f->element != AGI_LOW_HALF &&
               (given || f->shape == AGI_SHAPE_O || f->shape == AGI_SHAPE_ROW);
    }
}

static agi_mpi_item item_of(const ag_problem *p, const agi_tensor_info *f, agi_mpi_selection selection)
{
    int64_t size[4];
    agi_shape_of(p, f->shape, size);
    const bool wide = selection == AGI_MPI_SUMS && f->element != AGI_FLOAT64;
    return (agi_mpi_item){f, wide ? agi_mpi_wide(p) : agi_mpi_dtype_of(p, f->element), size[0], size[1],
                          size[3]};
}

agi_mpi_items agi_mpi_items_of(const ag_problem *p, agi_map map, agi_mpi_side side,
                               agi_mpi_selection selection, const ag_args *args)
{
    agi_mpi_items items = {.count = 0};
    for (int n = 0; n < AGI_N_TENSORS; n++) {
        const agi_tensor_info *f = &agi_tensors[n];
        if (agi_mpi_is_cut(f->shape, side) &&
            is_selected(p, f, role_of(f, map, selection, args), selection, args)) {
            items.item[items.count++] = item_of(p, f, selection);
        }
    }
    return items;
}

/* ---- Blocks ---- */

void agi_mpi_item_size(const agi_mpi_items *items, int n, int64_t rows, int64_t size[4])
{
    size[0] = items->item[n].sequences;
    size[1] = items->item[n].heads;
    size[2] = rows;
    size[3] = items->item[n].channels;
}

static size_t item_bytes(const agi_mpi_items *items, int n, int64_t rows)
{
    int64_t size[4];
    agi_mpi_item_size(items, n, rows, size);
    const size_t bytes = (size_t)agi_count(size) * agi_mpi_element_bytes(items->item[n].dtype);
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

size_t agi_mpi_block_bytes(const agi_mpi_items *items, int64_t rows)
{
    size_t bytes = 0;
    for (int n = 0; n < items->count; n++) {
        bytes += item_bytes(items, n, rows);
    }
    return bytes;
}

agi_mpi_array agi_mpi_block_array(const agi_mpi_items *items, int n, void *block, int64_t rows)
{
    char *data = block;
    for (int m = 0; m < n; m++) {
        data += item_bytes(items, m, rows);
    }
    const agi_mpi_item *item = &items->item[n];
    return (agi_mpi_array){ag_bhnd(data, item->heads, rows, item->channels), item->dtype};
}

void agi_mpi_set_tensors(ag_args *args, const agi_mpi_items *items, void *block, int64_t rows)
{
    for (int n = 0; n < items->count; n++) {
        *agi_mpi_tensor(args, items->item[n].f) = agi_mpi_block_array(items, n, block, rows).t;
    }
}

/* The rows of a chunk in the caller's tensor. */
static agi_mpi_array rows_of(const agi_mpi_item *item, const ag_problem *p, const ag_args *args,
                             const agi_mpi_chunk *chunk)
{
    const ag_dtype dtype = agi_mpi_dtype_of(p, item->f->element);
    return (agi_mpi_array){agi_mpi_shift(agi_mpi_tensor_of(args, item->f), dtype, 2, chunk->local), dtype};
}

void agi_mpi_load_block(const agi_mpi_items *items, void *block, const ag_problem *p, const ag_args *args,
                        const agi_mpi_chunk *chunk)
{
    for (int n = 0; n < items->count; n++) {
        const agi_mpi_array from = rows_of(&items->item[n], p, args, chunk);
        int64_t size[4];
        agi_mpi_item_size(items, n, chunk->length, size);
        if (from.t.data != NULL) {
            agi_mpi_copy(agi_mpi_block_array(items, n, block, chunk->length), from, size, AGI_MPI_SET);
        }
    }
}

void agi_mpi_store_block(const agi_mpi_items *items, void *block, const ag_problem *p, const ag_args *args,
                         const agi_mpi_chunk *chunk)
{
    for (int n = 0; n < items->count; n++) {
        const agi_mpi_item *item = &items->item[n];
        const agi_mpi_array to = rows_of(item, p, args, chunk);
        int64_t size[4];
        agi_mpi_item_size(items, n, chunk->length, size);
        if (to.t.data != NULL) {
            const bool add = (args->accumulate & item->f->accumulate) != 0;
            agi_mpi_copy(to, agi_mpi_block_array(items, n, block, chunk->length), size,
                         add ? AGI_MPI_ADD : AGI_MPI_SET);
        }
    }
}

static void add_items(agi_mpi_array a, agi_mpi_array b, int64_t count)
{
    for (int64_t n = 0; n < count; n++) {
        if (a.dtype == AG_F64) {
            ((double *)a.t.data)[n] += ((const double *)b.t.data)[n];
        } else {
            ((float *)a.t.data)[n] += ((const float *)b.t.data)[n];
        }
    }
}

void agi_mpi_add_block(const agi_mpi_items *items, void *a, void *b, int64_t rows)
{
    for (int n = 0; n < items->count; n++) {
        int64_t size[4];
        agi_mpi_item_size(items, n, rows, size);
        add_items(agi_mpi_block_array(items, n, a, rows), agi_mpi_block_array(items, n, b, rows),
                  agi_count(size));
    }
}
