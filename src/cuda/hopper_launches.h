/* The launches of the table sm90, for calls that it serves; launches.c makes those of the portable kernels. */
#ifndef AGI_CUDA_HOPPER_LAUNCHES_H
#define AGI_CUDA_HOPPER_LAUNCHES_H

#include "cuda/hopper_workspace.h"

/* Are the map's kernels those of the table sm90? */
bool agi_hopper_serves_call(const agi_cuda_job *j);

/* Has the call vjp or vjp_jvp in one kernel? */
bool agi_hopper_has_ring(const agi_cuda_job *j);

/* The gradient of the bias: has the call it from the table sm90? After vjp. */
bool agi_hopper_has_bias_gradient(const agi_cuda_job *j);
void agi_hopper_emit_bias_gradient(agi_cuda_job *j);

/* Do tiles of forward differ in length, so that blocks draw them one by one? */
bool agi_hopper_draws_tiles(const agi_cuda_job *j);

void agi_hopper_emit_forward(agi_cuda_job *j);
void agi_hopper_emit_jvp(agi_cuda_job *j);
void agi_hopper_emit_ring(agi_cuda_job *j); /* with its statistics */
void agi_hopper_emit_vjp(agi_cuda_job *j);  /* in two kernels; statistics come before */
void agi_hopper_emit_vjp_jvp(agi_cuda_job *j);
void agi_hopper_emit_second_ring(agi_cuda_job *j); /* with its statistics */

#endif
