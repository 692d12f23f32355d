/* The tensors of a call that are cut by rows, as lists of items, and blocks of memory with the rows of one chunk of
 * all items of a list: what is sent, and where partial results are. */
#ifndef AGI_MPI_ITEMS_H
#define AGI_MPI_ITEMS_H

#include "core/tensors.h"
#include "mpi/copy.h"
#include "mpi/shard.h"

typedef struct {
    const agi_tensor_info *f;
    ag_dtype dtype;                     /* in the block; 0: bytes */
    int64_t sequences, heads, channels; /* of a block: [sequences][heads][rows][channels] */
} agi_mpi_item;

enum { AGI_MPI_MAX_ITEMS = 16 };

typedef struct {
    agi_mpi_item item[AGI_MPI_MAX_ITEMS];
    int count;
} agi_mpi_items;

/* Which tensors a list has. */
typedef enum {
    AGI_MPI_INPUTS, /* of the map */
    AGI_MPI_GUESTS, /* its inputs that go round the ring: of the queries not o and to, but always d_lse and td_lse */
    AGI_MPI_OUTPUTS, /* of the map */
    AGI_MPI_SUMS     /* its outputs as sums of parts: wide, all of them, without low halves */
} agi_mpi_selection;

bool agi_mpi_is_input(agi_role role);

/* Does the shape have the rows of this side? */
bool agi_mpi_is_cut(agi_shape shape, agi_mpi_side side);

ag_dtype agi_mpi_dtype_of(const ag_problem *p, agi_element element);

static inline ag_tensor *agi_mpi_tensor(ag_args *args, const agi_tensor_info *f)
{
    return (ag_tensor *)(void *)((char *)args + f->offset);
}

static inline ag_tensor agi_mpi_tensor_of(const ag_args *args, const agi_tensor_info *f)
{
    return *(const ag_tensor *)(const void *)((const char *)args + f->offset);
}

/* args NULL: as if all tensors were given. */
agi_mpi_items agi_mpi_items_of(const ag_problem *p, agi_map map, agi_mpi_side side,
                               agi_mpi_selection selection, const ag_args *args);

void agi_mpi_item_size(const agi_mpi_items *items, int n, int64_t rows, int64_t size[4]);
size_t agi_mpi_block_bytes(const agi_mpi_items *items, int64_t rows);
agi_mpi_array agi_mpi_block_array(const agi_mpi_items *items, int n, void *block, int64_t rows);

/* Sets the tensors of args to those of the block. */
void agi_mpi_set_tensors(ag_args *args, const agi_mpi_items *items, void *block, int64_t rows);

/* Copies the rows of a chunk from the tensors of args into a block, and back. Absent tensors are left out. Back:
 * accumulates as args says. */
void agi_mpi_load_block(const agi_mpi_items *items, void *block, const ag_problem *p, const ag_args *args,
                        const agi_mpi_chunk *chunk);
void agi_mpi_store_block(const agi_mpi_items *items, void *block, const ag_problem *p, const ag_args *args,
                         const agi_mpi_chunk *chunk);

/* Adds block b to block a, both wide. */
void agi_mpi_add_block(const agi_mpi_items *items, void *a, void *b, int64_t rows);

#endif
