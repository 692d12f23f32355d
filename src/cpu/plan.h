/* What the CPU backend decides once, when a plan is made, and keeps in it: the kernels, the implementation of
 * the maps, the features of the scores, how the work is split. Everything here is a function of the problem
 * and the options. Compiled twice, with real = float and real = double. */
#ifndef AGI_CPU_PLAN_H
#define AGI_CPU_PLAN_H

#include "core/plan.h"
#include "cpu/facts.h"
#include "cpu/vec/kernels/kernels.h"

/* Which features the scores have in addition to the band of causal and window. Decided by features_of() in
 * make_plan.c. */
typedef struct {
    bool plain;     /* nothing but a positive scale: the softmax can use scores as the product leaves them */
    bool pair_mask; /* a mask or a bias may mask single pairs */
    bool softcap;
    bool dropout;
} agi_features;

/* How forward and jvp split their work. */
typedef struct {
    int64_t rows;      /* queries of a block */
    int64_t blocks;    /* of the queries of one head */
    int64_t items;     /* blocks of all heads of all sequences */
    int64_t kv_splits; /* parts of the keys, each with a separate softmax; if AG_INVARIANT, at most */
    int64_t
        split_keys; /* keys of one part; if AG_INVARIANT, each sequence has its own: see agi_key_splits_of */
} agi_row_schedule;

/* How vjp and vjp_jvp cut one sequence: see drivers/backward.h. */
typedef struct {
    int64_t block;      /* keys of a tile */
    int64_t span;       /* keys that are summed at once: whole blocks */
    int64_t n_spans;    /* of the sequence */
    int64_t key_splits; /* spans of a pass, each summing dQ separately */
    int64_t q_splits;   /* parts of the queries, each with separate sums of dK and dV */
} agi_backward_cut;

/* How vjp and vjp_jvp split their work. */
typedef struct {
    agi_backward_cut max; /* of all sequences; if AG_INVARIANT, each has its own cut, within these limits */
    int64_t group_b, group_hk; /* sequences and kv heads of a reduction group */
    int64_t groups;            /* reduction groups */
    int64_t member_passes;     /* passes of one kv head of one sequence */
    int64_t passes;            /* of one group */
    bool shared;               /* work items are parts of passes instead of groups */
    bool chained;              /* shared, and they are all passes of the groups: see drivers/backward.h */
    bool backwards;            /* tiles of queries are run from the last to the first */
    int64_t max_chains;        /* if chained: max groups that have sums of dQ at the same time */
    int64_t
        parts; /* of a pass, each with separate sums of dbias, dtable and dsink: key_splits * q_splits, or 1 */
    int64_t dq_rows, dq_width; /* rows and row stride of the sums of one head's dQ */
} agi_backward_schedule;

typedef struct {
    agi_cpu_facts facts; /* must come first: read by code that does not depend on real */
    const agi_kernels *k;
    const struct agi_row_ops *row_ops;
    const struct agi_backward_ops *backward_ops;
    const struct agi_given_ops *given_ops;
    agi_features features;
    int64_t Dk_pad, Dv_pad;       /* channels of a row in a tile, rounded up to whole vectors */
    agi_row_schedule rows, given; /* forward and jvp; jvp_jvp, and jvp that is given o and lse */
    agi_backward_schedule backward[AGI_N_MAPS];
    double cost[AGI_N_MAPS]; /* of a whole map: see agi_loop */
} agi_cpu_plan;

static inline const agi_cpu_plan *agi_cpu_plan_of(const ag_plan *plan)
{
    return plan->backend_data;
}

/* The vector kernels of the plan's instruction set. */
const agi_kernels *REAL(agi_kernels_of)(const ag_plan *plan);

/* drivers/schedule.c: these read the members of *cpu that precede the schedules. */
agi_row_schedule REAL(agi_row_schedule_of)(const ag_plan *plan, int64_t max_queries, int64_t min_blocks);
agi_backward_schedule REAL(agi_backward_schedule_of)(const agi_cpu_plan *cpu, const ag_plan *plan,
                                                     agi_map map);
agi_backward_cut REAL(agi_invariant_cut)(const agi_cpu_plan *cpu, const ag_problem *problem, agi_map map,
                                         int64_t n_q, int64_t n_k);
double REAL(agi_cost_of)(const ag_plan *plan, agi_map map); /* if vectors run it */

/* An implementation of the maps: a folder like vec/, and a line in make_plan.c. */
typedef struct {
    ag_isa isa; /* what ag_plan_info reports; AG_ISA_AUTO: that of the vector kernels */
    bool (*serves)(const ag_plan *plan); /* can it run this plan? NULL: it can run every plan */
    const struct agi_row_ops *row_ops;
    const struct agi_backward_ops *backward_ops;
    const struct agi_given_ops *given_ops;
} agi_implementation;

#endif
