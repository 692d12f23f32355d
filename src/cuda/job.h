/* A call on its way to its launches, for those who make them: launches.c and hopper_launches.c. */
#ifndef AGI_CUDA_JOB_H
#define AGI_CUDA_JOB_H

#include "core/arena.h"
#include "cuda/schedule.h"

/* ---- The matrices ---- */

/* Where a matrix comes from. */
typedef struct {
    size_t tensor;             /* offset in ag_args */
    bool keys, values, output; /* rows are keys; Dv channels; of out_dtype */
} agi_cuda_source;
extern const agi_cuda_source agi_cuda_sources[AGI_CUDA_OPERANDS];

/* The axes of a matrix in the caller's memory. */
void agi_cuda_axes_of(const ag_problem *p, const agi_cuda_source *s, int64_t size[4]);

/* Is the matrix in the form that the loops read? */
bool agi_cuda_is_direct(const ag_problem *p, const agi_cuda_source *s, const ag_tensor *t);

/* Can the copy engine read a matrix that the loops read directly? Its strides are positive. */
bool agi_cuda_has_boxes(const ag_problem *p, const agi_cuda_source *s, const ag_tensor *t);

/* ---- The workspace ---- */

typedef struct {
    int64_t *lists;
    void *copies[AGI_CUDA_OPERANDS];
    float *inverses[AGI_CUDA_OPERANDS];
    void *stats;
    double *diagonals;
    void *splits;
    /* Of vjp in one kernel: L, D, with a bias the rest of L; of vjp_jvp: all but the rest in the first. */
    float *ring_rows[3];
    float *ring_sums;              /* of dQ or tdQ */
    int32_t *ring_passes;          /* and the counter of tickets behind them */
    agi_hopper_visit *ring_visits; /* with a mask */
    float *relative_tangents;      /* of jvp and vjp_jvp: what the table's tangent adds */
    float *bias_sums;              /* of the gradient of the bias, by part */
    agi_hopper_features features;
    int64_t q_rows, k_rows, diagonal_tiles;
} agi_cuda_layout;

/* ---- The call ---- */

typedef struct {
    agi_cuda_params k;
    const ag_plan *plan;
    const ag_problem *p;
    const agi_cuda_setting *device;
    const agi_cuda_layout *x;
    bool hopper;          /* the map's kernels are those of the table sm90 */
    bool decode;          /* one query per head, keys are split; never on those kernels */
    const int64_t *drawn; /* a counter in the workspace, of tiles that blocks draw; NULL if they need none */
    agi_hopper_features features;
    agi_cuda_emitter stream;
    ag_status status;
} agi_cuda_job;

/* Emits a launch, unless one before it has failed. together: its blocks wait for each other. */
void agi_cuda_emit(agi_cuda_job *j, int32_t kernel, int64_t blocks, const void *parameter, size_t bytes,
                   bool together);

#endif
