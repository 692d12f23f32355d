/* The layouts, and sequences in chunks: see shard.h. */
#include "mpi/shard.h"

int agi_mpi_chunks(const agi_mpi_cut *cut)
{
    return cut->layout == AG_MPI_ZIGZAG ? 2 : 1;
}

static int64_t total_rows(const agi_mpi_cut *cut, agi_mpi_side side)
{
    const ag_problem *p = cut->p;
    if (agi_has(p, AG_PACKED)) {
        return side == AGI_MPI_QUERIES ? p->q_total : p->kv_total;
    }
    return side == AGI_MPI_QUERIES ? p->q_len : p->kv_len;
}

/* floor(index n / count), without overflow. */
static int64_t boundary(int64_t n, int64_t index, int64_t count)
{
    return n / count * index + n % count * index / count;
}

static agi_mpi_chunk numbered_chunk(const agi_mpi_cut *cut, agi_mpi_side side, int64_t number)
{
    const int64_t n = total_rows(cut, side), count = (int64_t)agi_mpi_chunks(cut) * cut->ranks;
    const int64_t start = boundary(n, number, count);
    return (agi_mpi_chunk){start, boundary(n, number + 1, count) - start, 0};
}

agi_mpi_chunk agi_mpi_chunk_of(const agi_mpi_cut *cut, agi_mpi_side side, int32_t rank, int index)
{
    if (index == 0) {
        return numbered_chunk(cut, side, rank);
    }
    agi_mpi_chunk chunk = numbered_chunk(cut, side, 2 * (int64_t)cut->ranks - 1 - rank);
    chunk.local = numbered_chunk(cut, side, rank).length;
    return chunk;
}

int64_t agi_mpi_rows(const agi_mpi_cut *cut, agi_mpi_side side, int32_t rank)
{
    const agi_mpi_chunk last = agi_mpi_chunk_of(cut, side, rank, agi_mpi_chunks(cut) - 1);
    return last.local + last.length;
}

int64_t agi_mpi_max_rows(const agi_mpi_cut *cut, agi_mpi_side side)
{
    const int64_t n = total_rows(cut, side), count = (int64_t)agi_mpi_chunks(cut) * cut->ranks;
    return n / count + (n % count != 0);
}

bool agi_mpi_has_shorter(const agi_mpi_cut *cut, agi_mpi_side side)
{
    return total_rows(cut, side) % ((int64_t)agi_mpi_chunks(cut) * cut->ranks) != 0;
}

void agi_mpi_kv_heads(const agi_mpi_cut *cut, int32_t rank, int64_t *first, int64_t *count)
{
    *first = boundary(cut->p->kv_heads, rank, cut->ranks);
    *count = boundary(cut->p->kv_heads, rank + 1, cut->ranks) - *first;
}

/* ---- Sequences ---- */

static int64_t length_of(const agi_mpi_cut *cut, const ag_args *a, agi_mpi_side side, int64_t b)
{
    const bool queries = side == AGI_MPI_QUERIES;
    const int64_t *packed = a == NULL ? NULL : queries ? a->q_packed : a->k_packed;
    const int64_t *lengths = a == NULL ? NULL : queries ? a->q_lengths : a->kv_lengths;
    if (packed != NULL) {
        return packed[b + 1] - packed[b];
    }
    return lengths != NULL ? lengths[b] : queries ? cut->p->q_len : cut->p->kv_len;
}

/* The position of row 0 of the sequence. */
static int64_t origin_of(const agi_mpi_cut *cut, const ag_args *a, agi_mpi_side side, int64_t b)
{
    const bool queries = side == AGI_MPI_QUERIES;
    const int64_t *offsets = a == NULL ? NULL : queries ? a->q_offsets : a->k_offsets;
    const int64_t one = a == NULL ? 0 : queries ? a->q_offset : a->k_offset;
    int64_t origin = offsets != NULL ? offsets[b] : one;
    if (queries && cut->p->align == AG_ALIGN_BOTTOM_RIGHT) {
        origin += length_of(cut, a, AGI_MPI_KEYS, b) - length_of(cut, a, AGI_MPI_QUERIES, b);
    }
    return origin;
}

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

agi_mpi_part agi_mpi_part_of(const agi_mpi_cut *cut, const ag_args *a, agi_mpi_side side,
                             const agi_mpi_chunk *chunk, int64_t b)
{
    const int64_t *packed = a == NULL ? NULL : side == AGI_MPI_QUERIES ? a->q_packed : a->k_packed;
    const int64_t begin = packed != NULL ? packed[b] : 0, end = begin + length_of(cut, a, side, b);
    const int64_t low = clamp(begin, chunk->start, chunk->start + chunk->length);
    const int64_t high = clamp(end, low, chunk->start + chunk->length);
    /* A padded sequence that ends before the chunk still has its rows there, past its end. */
    const int64_t first = packed != NULL ? low - begin : chunk->start;
    return (agi_mpi_part){packed != NULL ? low - chunk->start : 0, high - low, first,
                          origin_of(cut, a, side, b) + first};
}

/* The positions that a query at position p may see: p - before to p + after; -1: no limit. */
static bool meet(const ag_problem *p, const agi_mpi_part *q, const agi_mpi_part *k)
{
    const int64_t before = agi_has(p, AG_WINDOW) ? p->window_left : -1;
    int64_t after = agi_has(p, AG_WINDOW) ? p->window_right : -1;
    if (agi_has(p, AG_CAUSAL)) {
        after = 0;
    }
    const int64_t q_last = q->position + q->rows - 1, k_last = k->position + k->rows - 1;
    return (after < 0 || k->position <= q_last + after) && (before < 0 || k_last >= q->position - before);
}

bool agi_mpi_sees(const agi_mpi_cut *cut, const ag_args *a, const agi_mpi_chunk *q, const agi_mpi_chunk *k)
{
    const int64_t sequences = a == NULL && cut->p->batch > 0 ? 1 : cut->p->batch;
    for (int64_t b = 0; b < sequences; b++) {
        const agi_mpi_part x = agi_mpi_part_of(cut, a, AGI_MPI_QUERIES, q, b);
        const agi_mpi_part y = agi_mpi_part_of(cut, a, AGI_MPI_KEYS, k, b);
        if (x.rows > 0 && y.rows > 0 && meet(cut->p, &x, &y)) {
            return true;
        }
    }
    return false;
}

ag_problem agi_mpi_shard_problem(const agi_mpi_cut *cut, int32_t rank)
{
    ag_problem p = *cut->p;
    p.batch = agi_has(&p, AG_PACKED) ? 1 : p.batch;
    p.q_len = agi_mpi_rows(cut, AGI_MPI_QUERIES, rank);
    p.kv_len = agi_mpi_rows(cut, AGI_MPI_KEYS, rank);
    p.q_total = p.kv_total = 0;
    p.flags &= ~(uint32_t)(AG_BIAS | AG_MASK | AG_PACKED);
    p.align = AG_ALIGN_TOP_LEFT;
    return p;
}
