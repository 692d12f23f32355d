/* The workspace of the table sm90: which parts a plan's maps have, and how large they are. */
#ifndef AGI_CUDA_HOPPER_WORKSPACE_H
#define AGI_CUDA_HOPPER_WORKSPACE_H

#include "cuda/job.h"

/* vjp or vjp_jvp in one kernel: may the plan have it? */
bool agi_hopper_may_have_ring(const ag_plan *plan, agi_map map);

/* Of a plan whose table may be sm90. */
void agi_hopper_lay_out(agi_cuda_layout *x, agi_arena *arena, const ag_plan *plan, agi_map map);

/* The kernel of vjp or vjp_jvp in one. */
agi_hopper_map agi_hopper_ring_of(agi_map map);

/* Blocks of keys of a head; steps of such a block at one head of queries, and one more for the end of its list. */
int64_t agi_hopper_key_blocks(const ag_problem *p);
int64_t agi_hopper_most_visits(const ag_problem *p, int64_t tile);

/* Tiles of a mask along an axis; one: it is the same there. */
int64_t agi_hopper_class_tiles(const ag_problem *p, int axis, bool one);

#endif
