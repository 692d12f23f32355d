/* All arrays of one problem: a plan, its workspace and every tensor of ag_args, filled with random numbers
 * that depend on the seed alone. Checks and tests run the maps on them, perturb them and compare them.
 * A struct arrays owns its plan and every array that it points to: agc_arrays_destroy frees them. */
#ifndef ATTNGRAD_CHECK_ARRAYS_H
#define ATTNGRAD_CHECK_ARRAYS_H

#include "check/memory.h"

#include <attngrad.h>

/* The tensors of ag_args in its order: field, number, shape, element type, role, maps that write it,
 * bit of accumulate. */
#define ARRAYS_TENSORS(X)                                                                                    \
    X(q, T_Q, SHAPE_Q, KIND_MAIN, ROLE_INPUT, 0, 0)                                                          \
    X(k, T_K, SHAPE_K, KIND_MAIN, ROLE_INPUT, 0, 0)                                                          \
    X(v, T_V, SHAPE_V, KIND_MAIN, ROLE_INPUT, 0, 0)                                                          \
    X(bias, T_BIAS, SHAPE_BIAS, KIND_AUX, ROLE_INPUT, 0, 0)                                                  \
    X(mask, T_MASK, SHAPE_MASK, KIND_U8, ROLE_INPUT, 0, 0)                                                   \
    X(table, T_TABLE, SHAPE_TABLE, KIND_AUX, ROLE_INPUT, 0, 0)                                               \
    X(sink, T_SINK, SHAPE_SINK, KIND_AUX, ROLE_INPUT, 0, 0)                                                  \
    X(o, T_O, SHAPE_O, KIND_OUT, ROLE_OUTPUT, AG_MAP_FORWARD | AG_MAP_JVP, AG_ACC_O)                         \
    X(lse, T_LSE, SHAPE_ROW, KIND_F64, ROLE_OUTPUT, AG_MAP_FORWARD | AG_MAP_JVP, AG_ACC_LSE)                 \
    X(d_o, T_D_O, SHAPE_O, KIND_OUT, ROLE_COTANGENT, 0, 0)                                                   \
    X(d_lse, T_D_LSE, SHAPE_ROW, KIND_F64, ROLE_COTANGENT, 0, 0)                                             \
    X(dq, T_DQ, SHAPE_Q, KIND_GRAD, ROLE_OUTPUT, AG_MAP_VJP, AG_ACC_DQ)                                      \
    X(dk, T_DK, SHAPE_K, KIND_GRAD, ROLE_OUTPUT, AG_MAP_VJP, AG_ACC_DK)                                      \
    X(dv, T_DV, SHAPE_V, KIND_GRAD, ROLE_OUTPUT, AG_MAP_VJP, AG_ACC_DV)                                      \
    X(dbias, T_DBIAS, SHAPE_BIAS, KIND_AUX, ROLE_OUTPUT, AG_MAP_VJP, AG_ACC_DBIAS)                           \
    X(dtable, T_DTABLE, SHAPE_TABLE, KIND_AUX, ROLE_OUTPUT, AG_MAP_VJP, AG_ACC_DTABLE)                       \
    X(dsink, T_DSINK, SHAPE_SINK, KIND_AUX, ROLE_OUTPUT, AG_MAP_VJP, AG_ACC_DSINK)                           \
    X(tq, T_TQ, SHAPE_Q, KIND_MAIN, ROLE_TANGENT, 0, 0)                                                      \
    X(tk, T_TK, SHAPE_K, KIND_MAIN, ROLE_TANGENT, 0, 0)                                                      \
    X(tv, T_TV, SHAPE_V, KIND_MAIN, ROLE_TANGENT, 0, 0)                                                      \
    X(tbias, T_TBIAS, SHAPE_BIAS, KIND_AUX, ROLE_TANGENT, 0, 0)                                              \
    X(ttable, T_TTABLE, SHAPE_TABLE, KIND_AUX, ROLE_TANGENT, 0, 0)                                           \
    X(tsink, T_TSINK, SHAPE_SINK, KIND_AUX, ROLE_TANGENT, 0, 0)                                              \
    X(to, T_TO, SHAPE_O, KIND_OUT, ROLE_OUTPUT, AG_MAP_JVP, AG_ACC_TO)                                       \
    X(mu, T_MU, SHAPE_ROW, KIND_F64, ROLE_OUTPUT, AG_MAP_JVP, AG_ACC_MU)                                     \
    X(td_o, T_TD_O, SHAPE_O, KIND_OUT, ROLE_COTANGENT, 0, 0)                                                 \
    X(td_lse, T_TD_LSE, SHAPE_ROW, KIND_F64, ROLE_COTANGENT, 0, 0)                                           \
    X(tdq, T_TDQ, SHAPE_Q, KIND_GRAD, ROLE_OUTPUT, AG_MAP_VJP_JVP, AG_ACC_TDQ)                               \
    X(tdk, T_TDK, SHAPE_K, KIND_GRAD, ROLE_OUTPUT, AG_MAP_VJP_JVP, AG_ACC_TDK)                               \
    X(tdv, T_TDV, SHAPE_V, KIND_GRAD, ROLE_OUTPUT, AG_MAP_VJP_JVP, AG_ACC_TDV)                               \
    X(tdbias, T_TDBIAS, SHAPE_BIAS, KIND_AUX, ROLE_OUTPUT, AG_MAP_VJP_JVP, AG_ACC_TDBIAS)                    \
    X(tdtable, T_TDTABLE, SHAPE_TABLE, KIND_AUX, ROLE_OUTPUT, AG_MAP_VJP_JVP, AG_ACC_TDTABLE)                \
    X(tdsink, T_TDSINK, SHAPE_SINK, KIND_AUX, ROLE_OUTPUT, AG_MAP_VJP_JVP, AG_ACC_TDSINK)                    \
    X(o_low, T_O_LOW, SHAPE_O, KIND_OUT, ROLE_LOW_HALF, AG_MAP_FORWARD | AG_MAP_JVP, 0)                      \
    X(to_low, T_TO_LOW, SHAPE_O, KIND_OUT, ROLE_LOW_HALF, AG_MAP_JVP, 0)                                     \
    X(sq, T_SQ, SHAPE_Q, KIND_MAIN, ROLE_SECOND_TANGENT, 0, 0)                                               \
    X(sk, T_SK, SHAPE_K, KIND_MAIN, ROLE_SECOND_TANGENT, 0, 0)                                               \
    X(sv, T_SV, SHAPE_V, KIND_MAIN, ROLE_SECOND_TANGENT, 0, 0)                                               \
    X(sbias, T_SBIAS, SHAPE_BIAS, KIND_AUX, ROLE_SECOND_TANGENT, 0, 0)                                       \
    X(stable, T_STABLE, SHAPE_TABLE, KIND_AUX, ROLE_SECOND_TANGENT, 0, 0)                                    \
    X(ssink, T_SSINK, SHAPE_SINK, KIND_AUX, ROLE_SECOND_TANGENT, 0, 0)                                       \
    X(smu, T_SMU, SHAPE_ROW, KIND_F64, ROLE_OUTPUT, 0, 0)                                                    \
    X(sto, T_STO, SHAPE_O, KIND_OUT, ROLE_OUTPUT, AG_MAP_JVP_JVP, AG_ACC_STO)                                \
    X(nu, T_NU, SHAPE_ROW, KIND_F64, ROLE_OUTPUT, AG_MAP_JVP_JVP, AG_ACC_NU)

enum tensor {
#define ARRAYS_NUMBER(field, number, shape, kind, role, writers, acc) number,
    ARRAYS_TENSORS(ARRAYS_NUMBER)
#undef ARRAYS_NUMBER
        T_COUNT,

    /* The tensors from here on are in a call only if they were added to it; see agc_arrays_add_low_halves and
     * agc_arrays_add_second_direction. */
    T_FIRST_ADDED = T_O_LOW,

    /* The first number that is not the stream of a tensor's random contents. Tensors that are added have streams of
     * their own, far above. */
    T_FREE_STREAM = T_O_LOW
};

enum tensor_shape {
    SHAPE_Q,     /* [B, H, Nq, Dk] | [1, H, q_total, Dk] */
    SHAPE_K,     /* [B, Hk, Nk, Dk] | [1, Hk, kv_total, Dk] */
    SHAPE_V,     /* [B, Hk, Nk, Dv] | [1, Hk, kv_total, Dv] */
    SHAPE_O,     /* [B, H, Nq, Dv] | [1, H, q_total, Dv] */
    SHAPE_ROW,   /* [B, H, Nq, 1] | [1, H, q_total, 1] */
    SHAPE_BIAS,  /* bias_size */
    SHAPE_MASK,  /* mask_size */
    SHAPE_TABLE, /* [1, table_heads, 1, table_buckets] */
    SHAPE_SINK   /* [1, H, 1, 1] */
};

enum tensor_kind { KIND_MAIN, KIND_OUT, KIND_GRAD, KIND_AUX, KIND_F64, KIND_U8 };
/* ROLE_LOW_HALF: of an output, written beside it. ROLE_SECOND_TANGENT: the direction s of jvp_jvp. smu is an output of
 * agc_arrays_run_along_s. */
enum tensor_role {
    ROLE_INPUT,
    ROLE_COTANGENT,
    ROLE_TANGENT,
    ROLE_OUTPUT,
    ROLE_LOW_HALF,
    ROLE_SECOND_TANGENT
};

struct agc_tensor_info {
    const char *name; /* "dq" */
    size_t offset;    /* of the ag_tensor in ag_args */
    enum tensor_shape shape;
    enum tensor_kind kind;
    enum tensor_role role;
    uint32_t writers;    /* AG_MAP_*: the maps whose output it is */
    uint32_t accumulate; /* AG_ACC_* of an output */
};

extern const struct agc_tensor_info agc_tensor_info[T_COUNT];

/* For a plan's problem. agc_tensor_size sets the tensor's four axes and returns 0 if the problem has no such tensor.
 * agc_tensor_dtype returns its element type, 0 for the mask. */
int agc_tensor_size(const ag_problem *p, enum tensor t, int64_t size[4]);
ag_dtype agc_tensor_dtype(const ag_problem *p, enum tensor t);

/* The view of data laid out as [b][h][n][c], packed rows as [total][h][c]. */
ag_tensor agc_tensor_view(const ag_problem *p, enum tensor t, const void *data);

/* A variable x with its cotangent d, its tangent t, the tangent td of its cotangent, and its tangent s along the second
 * direction. The first six are the variables that the loss is differentiated by, the last two the outputs of attention;
 * these have no s (T_COUNT) or the tangent along s (smu). */
struct family {
    enum tensor x, d, t, td, s;
};
enum { FAMILY_O = 6, FAMILY_LSE = 7, FAMILY_VARIABLES = 6, FAMILY_COUNT = 8 };
extern const struct family agc_families[FAMILY_COUNT];

/* All pointers but those in args are its own, from malloc: a test that replaces one frees the old one. */
struct arrays {
    ag_problem given;    /* the problem as given, with this struct's own buckets and slopes */
    const ag_problem *p; /* the plan's: every default filled in */
    ag_plan *plan;
    ag_args args; /* a dense view of every tensor the problem has; may be changed by the owner */
    uint64_t seed;

    int64_t size[T_COUNT][4]; /* [batch, head, position, channel]; all zero: the problem has no such tensor */
    int64_t count[T_COUNT];   /* elements */
    ag_dtype dtype[T_COUNT];  /* 0 for the mask, which is uint8 */
    void *data[T_COUNT];      /* padded [b][h][n][c], packed [total][h][c]; NULL if there is none */

    int64_t *q_lengths, *kv_lengths; /* [B]; NULL if packed, or if all sequences are full */
    int64_t *q_packed, *k_packed;    /* [B + 1]; NULL if not packed */
    int64_t *q_offsets, *k_offsets;  /* [B]; NULL: args.q_offset and args.k_offset */
    int32_t *buckets;                /* [2R + 1] */
    double *slopes;                  /* [H] */

    void *so; /* as to: the tangent of o along s; NULL if there is no second direction */

    void *workspace; /* large enough for all maps that it runs */
    size_t workspace_bytes;
};

/* Makes a plan and arrays for it. Inputs, tangents and cotangents are normal random numbers rounded to their
 * dtype; the mask hides some entries and some whole rows, the bias holds some minus infinities. Slopes are
 * taken from the problem or, if it has none, random; so are buckets, but without table_buckets they are the
 * identity. Packed sequences have random lengths. q_offset, k_offset and batch_offset are zero: set them in
 * x->args. options may be NULL. On failure returns AG_NO_MEMORY or the status of ag_plan_create or
 * ag_plan_workspace, and there is nothing to destroy; so do the two functions below that make arrays. */
ag_status agc_arrays_create(struct arrays *x, const ag_problem *problem, const ag_options *options,
                            uint64_t seed);
void agc_arrays_destroy(struct arrays *x);

/* Padded problems only: random q_lengths and kv_lengths, some of them zero, from x's seed. AG_OK or AG_NO_MEMORY; x is
 * to be destroyed either way. */
ag_status agc_arrays_random_lengths(struct arrays *x);

/* Problems aligned top-left only: random q_offsets from -largest and k_offsets from 0, both up to largest, from x's
 * seed. AG_OK or AG_NO_MEMORY; x is to be destroyed either way. */
ag_status agc_arrays_random_offsets(struct arrays *x, int64_t largest);

/* Gives the call o_low and to_low, if its o has 16 bits; else does nothing. AG_OK or AG_NO_MEMORY; x is to be
 * destroyed either way. */
ag_status agc_arrays_add_low_halves(struct arrays *x);

/* Gives the call what jvp_jvp needs: a random second direction, and room for its results. AG_OK, AG_NO_MEMORY or, if
 * the plan has no jvp_jvp, AG_UNSUPPORTED; x is to be destroyed either way. */
ag_status agc_arrays_add_second_direction(struct arrays *x);
int agc_arrays_has_second_direction(const struct arrays *x);
int agc_plan_has_jvp_jvp(const ag_plan *plan);

/* Clones a call for another dtype or another plan: same inputs, tangents, cotangents, mask, lengths, offsets, seed,
 * buckets and slopes; outputs are not copied; low halves and a second direction as in agc_arrays_like. If dtype is not
 * x's dtype, it also replaces out_dtype, grad_dtype and aux_dtype. */
ag_status agc_arrays_clone_as(struct arrays *y, const struct arrays *x, ag_dtype dtype,
                              const ag_options *options);

/* Makes x's call on another problem of the same batch and packing: tensors of the same size are copied;
 * inputs of another size, and those that x does not have, are zero. Low halves if x has them; a second direction if x
 * has one and the new plan has jvp_jvp. */
ag_status agc_arrays_like(struct arrays *y, const struct arrays *x, const ag_problem *problem,
                          const ag_options *options);

/* Runs one map (AG_MAP_*) on x->args. Every output that does not accumulate is first filled with NaN,
 * so that an element the map leaves unwritten is seen. */
ag_status agc_arrays_run(struct arrays *x, uint32_t map);

/* jvp along the second direction: writes smu and x->so, and leaves o, lse, to and mu as they are. */
ag_status agc_arrays_run_along_s(struct arrays *x);

/* forward, vjp, jvp, vjp_jvp in this order; then, if there is a second direction, jvp along it and jvp_jvp. */
ag_status agc_arrays_run_all(struct arrays *x);

ag_tensor *agc_arrays_tensor(struct arrays *x, enum tensor t);  /* &x->args.q and so on */
size_t agc_element_size(const struct arrays *x, enum tensor t); /* in bytes */

/* Read or write a tensor as count doubles in the order [b][h][n][c], whatever its dtype and layout; writing
 * rounds. The mask reads as 0 and 1. */
void agc_arrays_read(const struct arrays *x, enum tensor t, double *values);
void agc_arrays_write(struct arrays *x, enum tensor t, const double *values);

/* The same into new memory, which the caller frees by free(); NULL if there is none. */
double *agc_arrays_read_new(const struct arrays *x, enum tensor t);

/* The index in data of what agc_arrays_read gives as values[n]. */
int64_t agc_arrays_element_of_value(const struct arrays *x, enum tensor t, int64_t n);

/* The data of a float64 tensor, in its own layout, without a copy; NULL for other dtypes. */
double *agc_arrays_f64(const struct arrays *x, enum tensor t);

/* The index of element (b, h, i, c) of sequence b in data: packed rows are found through the offsets, axes of
 * size 1 are broadcast. */
int64_t agc_arrays_index(const struct arrays *x, enum tensor t, int64_t b, int64_t h, int64_t i, int64_t c);

/* The inverse: sequence, head, position in the sequence and channel of an element of data. For a row of a
 * packed array that belongs to no sequence, the sequence is -1 and the position is the one in the array. */
void agc_arrays_position(const struct arrays *x, enum tensor t, int64_t element, int64_t position[4]);

int64_t agc_arrays_q_length(const struct arrays *x, int64_t b); /* n_q(b) */
int64_t agc_arrays_k_length(const struct arrays *x, int64_t b); /* n_k(b) */

/* The positions of query 0 and of key 0 of sequence b, without the shift of bottom-right alignment. */
int64_t agc_arrays_q_offset(const struct arrays *x, int64_t b);
int64_t agc_arrays_k_offset(const struct arrays *x, int64_t b);

#endif
