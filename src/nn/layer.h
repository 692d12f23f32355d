/* A layer as the library keeps it, and a checked call of one of its maps. */
#ifndef AGI_NN_LAYER_H
#define AGI_NN_LAYER_H

#include "attngrad_nn.h"
#include "core/backend.h"
#include "gemm/gemm.h"

/* The projections: three before attention, one after it. */
typedef enum { AGI_Q, AGI_K, AGI_V, AGI_O, AGI_N_PROJECTIONS } agi_projection;

typedef struct {
    int64_t rows, cols;    /* of the weights */
    int64_t weights, bias; /* their offsets in the block of parameters; bias -1: there is none */
    agi_projection input;  /* the projection whose x it reads: AGI_Q, AGI_K or AGI_V; itself for AGI_O */
} agi_weights;

struct ag_layer {
    ag_plan *plan;
    int64_t d_model;
    int64_t size;
    int64_t q_rows, k_rows; /* rows of x_q and y, rows of x_k and x_v: of all sequences together */
    int64_t n_params;
    ag_param_view params[2 * AGI_N_PROJECTIONS];
    agi_weights projection[AGI_N_PROJECTIONS];
    size_t bytes[AGI_N_MAPS]; /* of workspace, per map */
    size_t saved_bytes[2];    /* indexed by ag_saved */
    bool low_half;            /* C is saved with its low half */
};

/* ---- Buffers ---- */

/* Q K V C, lse and the low half of C, or their tangents; or dQ dK dV dC, or their tangents, without the last two. C:
 * the outputs of all heads, concatenated. Indexed by projection: at[AGI_O] is C. */
typedef struct {
    void *at[AGI_N_PROJECTIONS];
    double *lse;
    void *o_low; /* NULL if the layer saves none */
} agi_activations;

void agi_activations_lay_out(agi_activations *x, agi_arena *arena, const ag_layer *layer, ag_saved which);

typedef struct {
    agi_activations td; /* vjp_jvp only */
    agi_activations st; /* jvp_jvp only: the second tangents of Q K V C */
    agi_gemm_space gemm;
    void *attention; /* its workspace; in the same memory as the scratch of gemm, as they never run at once */
    size_t attention_bytes;
} agi_layer_space;

void agi_layer_lay_out(agi_layer_space *space, agi_arena *arena, const ag_layer *layer, agi_map map);

/* Fills in bytes and saved_bytes. */
ag_status agi_layer_size_buffers(ag_layer *layer);

/* The arguments of attention: views of q, k, v and o by heads; of lse and mu by rows. */
ag_tensor agi_heads_view(const ag_layer *layer, agi_projection which, const void *data);
ag_tensor agi_row_view(const ag_layer *layer, const double *lse);

/* ---- Calls ---- */

typedef struct {
    const ag_layer *layer;
    agi_map map;
    ag_layer_args a; /* a copy; fields that the caller's struct lacks are zero */
    agi_exec exec;
    agi_layer_space space;
    agi_activations saved, t_saved, d_saved, s_saved; /* those that the map uses */
    agi_call attention;                               /* checked */

    /* jvp_jvp only: attention's jvp along the second tangents of Q, K and V, checked. Its result is the first part of
     * the second tangent of C, to which jvp_jvp adds the rest. Not used if these tangents are zero. */
    agi_call along_st;
    bool has_st;
} agi_layer_call;

/* Checks everything about a call before anything is written. */
ag_status agi_layer_check(agi_layer_call *call, const ag_layer *layer, agi_map map, const ag_layer_args *args,
                          const ag_exec *exec, void *workspace, size_t bytes);

/* ---- Optimisers ---- */

/* Refuses a list in which an array that a step with `states` states writes overlaps another array. Each entry
 * must have been checked by itself before. */
ag_status agi_check_overlaps(const char *call, const ag_param *list, int64_t n, int states);

#endif
