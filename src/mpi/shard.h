/* Which rows a rank has, where the sequences lie in them, and which chunks see each other. Knows no tensor. */
#ifndef AGI_MPI_SHARD_H
#define AGI_MPI_SHARD_H

#include <stdbool.h>

#include "core/problem.h"
#include "mpi/public.h"

typedef enum { AGI_MPI_QUERIES, AGI_MPI_KEYS } agi_mpi_side;

enum { AGI_MPI_MAX_CHUNKS = 2 }; /* of one rank */

typedef struct {
    int64_t start, length; /* rows of the whole sequence, or of the whole packed array */
    int64_t local;         /* its first row in the tensors of the rank that has it */
} agi_mpi_chunk;

/* The cut of one problem over ranks. */
typedef struct {
    const ag_problem *p; /* of all ranks, every default filled in */
    int32_t ranks;
    ag_mpi_layout layout;
} agi_mpi_cut;

int agi_mpi_chunks(const agi_mpi_cut *cut); /* per rank: 1 or 2 */
agi_mpi_chunk agi_mpi_chunk_of(const agi_mpi_cut *cut, agi_mpi_side side, int32_t rank, int index);
int64_t agi_mpi_rows(const agi_mpi_cut *cut, agi_mpi_side side, int32_t rank); /* of all its chunks */
int64_t agi_mpi_max_rows(const agi_mpi_cut *cut, agi_mpi_side side);           /* of a chunk of any rank */

bool agi_mpi_has_shorter(const agi_mpi_cut *cut, agi_mpi_side side); /* chunks, by one row */

/* The kv heads [first, first + count) that a rank has after an all-to-all exchange. */
void agi_mpi_kv_heads(const agi_mpi_cut *cut, int32_t rank, int64_t *first, int64_t *count);

/* The rows of sequence b that lie in a chunk. args: lists and offsets of the whole problem; NULL: full lengths and no
 * offsets, for a padded problem only. */
typedef struct {
    int64_t row, rows; /* in the chunk */
    int64_t first;     /* index of the first of them in the sequence */
    int64_t position;  /* that of the first of them */
} agi_mpi_part;

agi_mpi_part agi_mpi_part_of(const agi_mpi_cut *cut, const ag_args *args, agi_mpi_side side,
                             const agi_mpi_chunk *chunk, int64_t b);

/* May a query of chunk q see a key of chunk k, by positions and lengths? */
bool agi_mpi_sees(const agi_mpi_cut *cut, const ag_args *args, const agi_mpi_chunk *q,
                  const agi_mpi_chunk *k);

/* A problem whose tensors are those of one rank: padded, also if p is packed, without bias and mask. */
ag_problem agi_mpi_shard_problem(const agi_mpi_cut *cut, int32_t rank);

/* Is a bias or mask of these sizes cut by query rows? If not, each rank has all of it. */
static inline bool agi_mpi_has_rows(const agi_mpi_cut *cut, const int64_t size[4])
{
    return size[2] != 1 && !agi_has(cut->p, AG_PACKED);
}

#endif
