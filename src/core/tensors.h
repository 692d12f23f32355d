/* The tensors of ag_args: for each its shape, its dtype, the feature it belongs to and its role in each map. */
#ifndef AGI_TENSORS_H
#define AGI_TENSORS_H

#include "core/plan.h"

/* The shape of a tensor. */
typedef enum {
    AGI_SHAPE_Q, /* of q, its tangent and its gradient; likewise below */
    AGI_SHAPE_K,
    AGI_SHAPE_V,
    AGI_SHAPE_O,
    AGI_SHAPE_ROW, /* lse, mu and their cotangents */
    AGI_SHAPE_BIAS,
    AGI_SHAPE_MASK,
    AGI_SHAPE_TABLE,
    AGI_SHAPE_SINK
} agi_shape;

void agi_shape_of(const ag_problem *p, agi_shape shape, int64_t size[4]);

typedef enum { AGI_NONE, AGI_IN, AGI_IN_OPTIONAL, AGI_OUT, AGI_OUT_OPTIONAL } agi_role;
/* The element type of a tensor: one of the problem's dtypes, or a fixed one. */
typedef enum {
    AGI_DTYPE,
    AGI_OUT_DTYPE,
    AGI_LOW_HALF, /* out_dtype, if that has 16 bits: else there is no such tensor */
    AGI_GRAD_DTYPE,
    AGI_AUX_DTYPE,
    AGI_FLOAT64,
    AGI_BYTE
} agi_element;

/* Is the output of this problem in 16 bits, so that it has a low half? */
bool agi_has_low_half(const ag_problem *p);

/* Number of bytes of one element. */
size_t agi_element_size(const ag_problem *p, agi_element element);

typedef struct {
    const char *name;
    size_t offset; /* in ag_args */
    agi_shape shape;
    agi_element element;
    uint32_t feature;          /* the problem flag without which the tensor has no meaning; 0: none */
    uint32_t accumulate;       /* its bit of ag_args.accumulate, if it is an output; a low half has its o's */
    agi_role role[AGI_N_MAPS]; /* forward, vjp, jvp, vjp_jvp, jvp_jvp */
} agi_tensor_info;

enum { AGI_N_TENSORS = 44 };
extern const agi_tensor_info agi_tensors[AGI_N_TENSORS];

bool agi_is_output(agi_role role);

/* The role in a call with these flags: with AG_GIVEN_O, jvp reads what forward writes (o, lse, o_low) as vjp does. */
agi_role agi_role_of(const agi_tensor_info *f, agi_map map, uint32_t flags);

#endif
