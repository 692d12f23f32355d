/* The launches of the table sm90, for calls that it serves; launches.c makes those of the portable kernels. */
#ifndef AGI_CUDA_HOPPER_LAUNCHES_H
#define AGI_CUDA_HOPPER_LAUNCHES_H

#include "cuda/job.h"

/* Are the map's kernels those of the table sm90? */
bool agi_hopper_serves_call(const agi_cuda_job *j);

/* vjp or vjp_jvp in one kernel: may the plan have it, and its part of the workspace; does this call have it? */
bool agi_hopper_may_have_ring(const ag_plan *plan, agi_map map);
void agi_hopper_lay_out_ring(agi_cuda_layout *x, agi_arena *arena, const ag_plan *plan, agi_map map);
bool agi_hopper_has_ring(const agi_cuda_job *j);

/* The gradient of the bias: its part of the workspace; does this call have it from the table sm90? After vjp. */
void agi_hopper_lay_out_bias_sums(agi_cuda_layout *x, agi_arena *arena, const ag_plan *plan);
bool agi_hopper_has_bias_gradient(const agi_cuda_job *j);
void agi_hopper_emit_bias_gradient(agi_cuda_job *j);

/* The part of the workspace of forward, vjp and vjp_jvp with features of the score; that of jvp. */
void agi_hopper_lay_out_features(agi_hopper_features *x, agi_arena *arena, const ag_plan *plan);
void agi_hopper_lay_out_jvp(agi_cuda_layout *x, agi_arena *arena, const ag_plan *plan);

/* Do tiles of forward differ in length, so that blocks draw them one by one? */
bool agi_hopper_draws_tiles(const agi_cuda_job *j);

void agi_hopper_emit_forward(agi_cuda_job *j);
void agi_hopper_emit_jvp(agi_cuda_job *j);
void agi_hopper_emit_ring(agi_cuda_job *j); /* with its statistics */
void agi_hopper_emit_vjp(agi_cuda_job *j);  /* in two kernels; statistics come before */
void agi_hopper_emit_vjp_jvp(agi_cuda_job *j);
void agi_hopper_emit_second_ring(agi_cuda_job *j); /* with its statistics */

#endif
