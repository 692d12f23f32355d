/* Which stream kernel a map runs on, and how many blocks it has: functions of the shape, of the features and of the
 * device's limit of shared memory alone, never of the number of its processors. */
#ifndef AGI_CUDA_SCHEDULE_H
#define AGI_CUDA_SCHEDULE_H

#include "cuda/launches.h"

typedef enum {
    AGI_STREAM_forward,
    AGI_STREAM_forward_short,
    AGI_STREAM_decode,
    AGI_STREAM_jvp,
    AGI_STREAM_jvp_given,
    AGI_STREAM_jvp_jvp,
    AGI_STREAM_dkdv,
    AGI_STREAM_dq,
    AGI_STREAM_tdkdv,
    AGI_STREAM_tdq
} agi_cuda_map;

typedef enum { AGI_FORMAT_bf16, AGI_FORMAT_f16, AGI_FORMAT_f32, AGI_FORMAT_f64 } agi_cuda_format;

agi_cuda_format agi_cuda_format_of(ag_dtype dtype);
int64_t agi_cuda_planes(agi_cuda_format format);
int64_t agi_cuda_number_bytes(agi_cuda_format format); /* of one plane */

/* The kernel of a map. rows, columns: of the results that one of its blocks has. */
typedef struct {
    int32_t kernel;
    int64_t rows, columns;
} agi_cuda_choice;
agi_cuda_choice agi_cuda_choose(const ag_problem *p, agi_cuda_map map, int32_t shared_limit);

/* A kernel of the table sm90: kernel is -1 if it has none for the plan. rows: of a block; tile: rows of the other
 * side's tiles; features: the AGI_HAS_* that are compiled in, the set of that name in hopper_sets.h, "" if there are
 * none. It has either all kernels of forward and vjp for a set or none; vjp_jvp for a set in one kernel alone; those of
 * the other maps are for problems without these features and head sizes up to 128. Without features it has either both
 * kernels of vjp_jvp or none. */
typedef enum {
    AGI_hopper_forward,
    AGI_hopper_forward_fine, /* which the choice for forward takes by itself */
    AGI_hopper_jvp,
    AGI_hopper_dkdv,
    AGI_hopper_dq,
    AGI_hopper_ring,
    AGI_hopper_statistics,
    AGI_hopper_visits,
    AGI_hopper_tdkdv,
    AGI_hopper_tdq,
    AGI_hopper_second_ring,
    AGI_hopper_second_statistics,
    AGI_hopper_second_visits,
    AGI_hopper_dbias
} agi_hopper_map;
typedef struct {
    int32_t kernel, rows, tile;
    uint32_t features;
    const char *set;
} agi_hopper_choice;
agi_hopper_choice agi_hopper_choose(const ag_plan *plan, agi_hopper_map map, int32_t shared_limit);

/* The blocks of keys of vjp or vjp_jvp in one kernel (kernels/hopper_walk.cuh): groups of `blocks` blocks, at most
 * `most`, which must be on the device at once; `groups` of them per head. */
enum { AGI_HOPPER_RING_MOST = 64 };
typedef struct {
    bool is_ring; /* every query sees every key */
    int32_t blocks, groups;
} agi_hopper_ring_size;
agi_hopper_ring_size agi_hopper_rings(const ag_problem *p, int64_t most);

/* Tiles of `rows` queries of one head, all sequences together: each begins at a tile of its own. */
int64_t agi_hopper_tiles(const ag_problem *p, int64_t rows);

/* The gradient of the bias on Hopper (kernels/hopper_dbias.cu): tiles of the bias, and the walk over the sequences and
 * heads that share one, in parts of `steps` steps. No tiles: the portable kernel makes it, as always if a row or a
 * column of the bias serves all queries or keys. */
typedef struct {
    int64_t tiles, steps, parts;
} agi_hopper_bias_walk;
agi_hopper_bias_walk agi_hopper_walk_of_bias(const ag_plan *plan, int32_t shared_limit);

/* How many heads of forward's tiles are taken together, so that the longest tiles come first, and yet their keys and
 * values stay in the L2 cache. */
int64_t agi_hopper_heads_together(const ag_problem *p);

/* The kernel of forward: that for short sequences has the same bits. */
agi_cuda_map agi_cuda_forward_of(const ag_problem *p);

/* Are keys split in forward of this plan? Never with AG_INVARIANT. */
bool agi_cuda_splits_keys(const ag_plan *plan, int32_t shared_limit);
int64_t agi_cuda_key_splits(const ag_problem *p);

/* Does the problem have a feature that plain kernels lack? */
bool agi_cuda_needs_full(const ag_problem *p);

/* Rows of the copies of matrices whose sequences have `longest` rows at most, `total` together if they are packed (else
 * 0): each sequence begins at a multiple of AGI_CUDA_SCALE_ROWS. */
int64_t agi_cuda_copied_rows(int64_t batch, int64_t longest, int64_t total);

static inline int64_t agi_cuda_divide_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step;
}

#endif
