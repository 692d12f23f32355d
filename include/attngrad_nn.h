/* attngrad: the multi-head attention layer, and what trains it.
 *
 *     Q = Xq Wq + bq    K = Xk Wk + bk    V = Xv Wv + bv    C = concat_h attention(Q_h, K_h, V_h)    Y = C Wo + bo
 *
 *     map       reads                                           writes
 *     forward   params x (attention)                            y saved
 *     vjp       forward's inputs, saved dy                      dx d_params d_saved
 *     jvp       forward's inputs, tx t_params                   y ty saved t_saved
 *     vjp_jvp   vjp's and jvp's inputs, all three saved, tdy    tdx td_params
 *     jvp_jvp   params tx t_params sx s_params,                 sty
 *               saved t_saved s_saved
 *
 * The rules of attngrad.h hold here too: zero is every field's default, what can fail returns an
 * ag_status, maps allocate nothing, a layer never changes, the same inputs give the same bits for every
 * number of threads. docs/layer.md has the formulas and an example. */
#ifndef ATTNGRAD_NN_H
#define ATTNGRAD_NN_H

#include "attngrad.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Layer ------------------------------------------------------------------------------------- */

enum {
    AG_LAYER_SELF = 1 << 0,      /* x_q is also the input of keys and values; dx_q is the sum of three */
    AG_LAYER_SHARED_KV = 1 << 1, /* x_k is also the input of values; dx_k is the sum of two */
    AG_LAYER_BIAS_Q = 1 << 2,    /* the parameter bq, and so on */
    AG_LAYER_BIAS_K = 1 << 3,
    AG_LAYER_BIAS_V = 1 << 4,
    AG_LAYER_BIAS_O = 1 << 5,
    AG_LAYER_BIASES = AG_LAYER_BIAS_Q | AG_LAYER_BIAS_K | AG_LAYER_BIAS_V | AG_LAYER_BIAS_O,
    AG_LAYER_NO_LOW = 1 << 6 /* a 16-bit C is saved without its low half, see AG_SAVED */
};

/* The attention inside is a problem of attngrad.h with all its features, heads, lengths and dtypes. Of the
 * layer's arrays, x, the parameters and their tangents have the problem's dtype; y, ty, dy and tdy its out_dtype;
 * all gradients and their tangents its grad_dtype. */
typedef struct ag_layer_desc {
    uint32_t struct_size; /* sizeof(ag_layer_desc) */
    uint32_t flags;       /* AG_LAYER_* */
    const ag_problem *attention;
    int64_t d_model; /* the width of y; 0 = q_width; one of the two is required */
    int64_t q_width; /* the width of x_q; 0 = d_model */
    int64_t k_width; /* of x_k: 0 = q_width */
    int64_t v_width; /* of x_v: 0 = k_width */
} ag_layer_desc;

#define AG_LAYER_DESC_INIT                                                                                   \
    {                                                                                                        \
        sizeof(ag_layer_desc), 0, NULL, 0, 0, 0, 0                                                           \
    }

typedef struct ag_layer ag_layer;

/* options may be NULL; its allocator is used for the layer and its plan. *layer is NULL on failure.
 *
 * With AG_INVARIANT in its flags, the bits of a sequence in y, ty, sty, dx, tdx and in the buffers of saved results
 * depend only on that sequence, its length, the parameters and their tangents: not on the rest of the batch, on
 * padding or packing. Gradients of parameters are sums over the batch. */
AG_API ag_status ag_layer_create(ag_layer **layer, const ag_layer_desc *desc, const ag_options *options);
AG_API void ag_layer_destroy(ag_layer *layer); /* NULL is allowed */

/* The plan of the attention inside; lives as long as the layer. */
AG_API const ag_plan *ag_layer_plan(const ag_layer *layer);

/* The parameters are one block of ag_layer_size() elements: wq bq wk bk wv bv wo bo, each a row-major
 * matrix, one after another; a bias whose flag is not set is left out. */
typedef struct ag_param_view {
    uint32_t struct_size; /* sizeof(ag_param_view), set by the caller */
    int32_t reserved;
    const char *name;   /* "wq", "bq" ...; lives as long as the program */
    int64_t offset;     /* of its first element in the block */
    int64_t rows, cols; /* a bias has one row */
    int64_t count;      /* rows * cols */
} ag_param_view;

#define AG_PARAM_VIEW_INIT                                                                                   \
    {                                                                                                        \
        sizeof(ag_param_view), 0, NULL, 0, 0, 0, 0                                                           \
    }

AG_API int64_t ag_layer_size(const ag_layer *layer);        /* elements of the block */
AG_API int64_t ag_layer_param_count(const ag_layer *layer); /* matrices and biases in it: 4 to 8 */
AG_API ag_status ag_layer_param(const ag_layer *layer, int64_t index, ag_param_view *view);

typedef int32_t ag_init;
enum {
    AG_INIT_NORMAL = 0, /* normal, mean 0, standard deviation sqrt(2 / d_model) */
    AG_INIT_XAVIER = 1  /* uniform in +-sqrt(6 / (rows + cols)) */
};

/* Fills a block of ag_layer_size() elements of any dtype; biases become zero. The seed and the position in the block
 * determine each element: it is the same on every platform and, up to rounding, for every dtype. */
AG_API ag_status ag_layer_init(const ag_layer *layer, ag_init how, uint64_t seed, void *params,
                               ag_dtype dtype);

/* Intermediate results of one map that a later map needs. The caller owns the buffers, which may have any
 * alignment; only the layer that wrote them knows the layout of their contents. */
typedef int32_t ag_saved;
enum {
    AG_SAVED = 0,  /* the layout of saved, Q K V C lse, and of t_saved and s_saved, the tangents of these */
    AG_D_SAVED = 1 /* the layout of d_saved, dQ dK dV dC */
};

/* If out_dtype has 16 bits, saved and t_saved also hold the low half of C: what rounding took from it (o_low and
 * to_low of ag_args). With it vjp and vjp_jvp compute gradients that do not carry the rounding error of C. It takes
 * as much memory as C, in each of the two buffers; AG_LAYER_NO_LOW leaves it out. */

AG_API ag_status ag_layer_saved(const ag_layer *layer, ag_saved which, size_t *bytes);

/* Views into such a buffer: q, k, v, o (C by heads), lse, which is mu in t_saved and absent in d_saved, and the low
 * half of o, absent in d_saved and in a layer that saves none. For saved and for t_saved, set `which` to AG_SAVED. */
typedef struct ag_saved_views {
    uint32_t struct_size; /* sizeof(ag_saved_views), set by the caller */
    int32_t reserved;
    ag_tensor q, k, v, o, lse;
    ag_tensor o_low;
} ag_saved_views;

AG_API ag_status ag_layer_saved_views(const ag_layer *layer, ag_saved which, void *buffer,
                                      ag_saved_views *views);

/* ---- The layer's maps -------------------------------------------------------------------------- */

/* Bits of ag_layer_args.accumulate: this output becomes round(its old value + the result). */
enum {
    AG_LAYER_ACC_Y = 1 << 0,
    AG_LAYER_ACC_TY = 1 << 1,
    AG_LAYER_ACC_DX_Q = 1 << 2,
    AG_LAYER_ACC_DX_K = 1 << 3,
    AG_LAYER_ACC_DX_V = 1 << 4,
    AG_LAYER_ACC_D_PARAMS = 1 << 5,
    AG_LAYER_ACC_TDX_Q = 1 << 6,
    AG_LAYER_ACC_TDX_K = 1 << 7,
    AG_LAYER_ACC_TDX_V = 1 << 8,
    AG_LAYER_ACC_TD_PARAMS = 1 << 9,
    AG_LAYER_ACC_STY = 1 << 10
};

/* Arrays are dense and row-major: [batch][length][width], or [total][width] if the problem is packed. Each
 * map reads and writes the fields that the table at the top lists for it and ignores the others. x_k and x_v,
 * with their tangents and gradients, must be absent if a flag says that another input is used for them. Rows
 * after the end of a sequence are never read; in y and in the gradients they become zero. Absent means
 * NULL. */
typedef struct ag_layer_args {
    uint32_t struct_size; /* sizeof(ag_layer_args) */
    uint32_t accumulate;  /* AG_LAYER_ACC_* */

    /* Lengths, offsets, seed; bias, mask, table, sink, their tangents, gradients and accumulate bits;
     * d_lse and td_lse. Its other tensors must be absent: the layer fills them in. NULL: no such arguments. */
    const ag_args *attention;

    const void *params;
    const void *x_q, *x_k, *x_v;
    void *y;     /* jvp: may be NULL */
    void *saved; /* output of forward and jvp, input of the other maps */

    const void *dy;
    void *dx_q, *dx_k, *dx_v, *d_params; /* absent: not computed */
    void *d_saved;                       /* output of vjp, input of vjp_jvp */

    const void *tx_q, *tx_k, *tx_v, *t_params; /* absent: zero */
    void *ty;
    void *t_saved; /* output of jvp, input of vjp_jvp and jvp_jvp */

    const void *tdy;                         /* absent: zero */
    void *tdx_q, *tdx_k, *tdx_v, *td_params; /* absent: not computed */

    /* jvp_jvp: the second direction (with sbias, stable and ssink of attention), and the second tangent of y along both
     * directions. s_saved is the t_saved of a jvp along s; if s is t, it is t_saved itself. */
    const void *sx_q, *sx_k, *sx_v, *s_params; /* absent: zero */
    void *s_saved;
    void *sty;
} ag_layer_args;

#define AG_LAYER_ARGS_INIT                                                                                   \
    {                                                                                                        \
        sizeof(ag_layer_args), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,    \
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,  \
            NULL, NULL                                                                                       \
    }

/* Bytes of workspace, of any alignment, that are enough for each of these maps (bits of AG_MAP_*). */
AG_API ag_status ag_layer_workspace(const ag_layer *layer, uint32_t maps, size_t *bytes);

AG_API ag_status ag_layer_forward(const ag_layer *layer, const ag_layer_args *args, const ag_exec *exec,
                                  void *workspace, size_t bytes);
AG_API ag_status ag_layer_vjp(const ag_layer *layer, const ag_layer_args *args, const ag_exec *exec,
                              void *workspace, size_t bytes);
AG_API ag_status ag_layer_jvp(const ag_layer *layer, const ag_layer_args *args, const ag_exec *exec,
                              void *workspace, size_t bytes);
AG_API ag_status ag_layer_vjp_jvp(const ag_layer *layer, const ag_layer_args *args, const ag_exec *exec,
                                  void *workspace, size_t bytes);
AG_API ag_status ag_layer_jvp_jvp(const ag_layer *layer, const ag_layer_args *args, const ag_exec *exec,
                                  void *workspace, size_t bytes);

/* ---- Optimisers -------------------------------------------------------------------------------- */

enum {
    AG_PARAM_NO_DECAY = 1 << 0 /* no weight_decay, as for biases and sinks */
};

/* One flat array of parameters with its gradient and the optimiser's state. An optimiser takes a list of them, from
 * any number of layers and other arrays, split in any way. An array that a step writes must overlap no other array
 * of the list; gradients may overlap each other. Like ag_tensor, this struct will never change: it has no
 * struct_size. */
typedef struct ag_param {
    int64_t count;
    ag_dtype dtype;      /* of value and state: AG_F32 or AG_F64 */
    ag_dtype grad_dtype; /* of grad: any */
    ag_dtype copy_dtype; /* of copy: any; read only if copy is given */
    uint32_t flags;      /* AG_PARAM_* */
    void *value;
    const void *grad;
    void *state1; /* AdamW: first moment; SGD with momentum: velocity. Zero before the first step */
    void *state2; /* AdamW: second moment. Zero before the first step */
    void *copy;   /* set to value, rounded, after each step: the weights in the dtype of the maps */
} ag_param;

/* Sets *norm to the norm of all gradients together, each divided by loss_scale (0 = 1), summed in a fixed order, and
 * *non_finite to the number of elements that are not finite after that division; if there are any, the norm has no
 * meaning. */
AG_API ag_status ag_grad_norm(const ag_param *list, int64_t n, double loss_scale, double *norm,
                              int64_t *non_finite);

/* What a step did. If a gradient divided by loss_scale is not finite or if, with all gradients finite, a new value,
 * copy or state would not be, the step writes nothing and applied is 0. */
typedef struct ag_step_report {
    uint32_t struct_size; /* sizeof(ag_step_report), set by the caller */
    int32_t applied;
    int64_t non_finite; /* number of those elements */
    double norm;        /* of all gradients, after loss_scale, before clipping */
    double clip;        /* the clipping factor: at most 1 */
} ag_step_report;

#define AG_STEP_REPORT_INIT                                                                                  \
    {                                                                                                        \
        sizeof(ag_step_report), 0, 0, 0, 0                                                                   \
    }

/* g: the gradient / loss_scale * clip;  w: value;  m, v: state1, state2;  t: number of the step, from 1
 *
 *     sgd     g += weight_decay w;  m = momentum m + g;  w -= rate m    (momentum 0: w -= rate g, no state)
 *     adamw   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g g
 *             w -= rate (weight_decay w + m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon))
 *
 * computed in float64 and rounded to dtype. clip = min(1, max_norm / norm). */
typedef struct ag_sgd {
    uint32_t struct_size; /* sizeof(ag_sgd) */
    uint32_t reserved;    /* zero */
    double rate;
    double momentum; /* in [0, 1) */
    double weight_decay;
    double max_norm;   /* of all gradients together; 0: no clipping */
    double loss_scale; /* what the loss was multiplied by; 0 = 1 */
    int64_t steps;     /* applied so far; counted by the library */
} ag_sgd;

#define AG_SGD_INIT                                                                                          \
    {                                                                                                        \
        sizeof(ag_sgd), 0, 0, 0, 0, 0, 0, 0                                                                  \
    }

typedef struct ag_adamw {
    uint32_t struct_size; /* sizeof(ag_adamw) */
    uint32_t reserved;    /* zero */
    double rate;
    double beta1;   /* in (0, 1); 0 = 0.9 */
    double beta2;   /* in (0, 1); 0 = 0.999 */
    double epsilon; /* 0 = 1e-8 */
    double weight_decay;
    double max_norm;   /* as in ag_sgd */
    double loss_scale; /* as in ag_sgd */
    int64_t steps;     /* applied so far: t - 1; counted by the library, to be kept in a checkpoint */
} ag_adamw;

#define AG_ADAMW_INIT                                                                                        \
    {                                                                                                        \
        sizeof(ag_adamw), 0, 0, 0, 0, 0, 0, 0, 0, 0                                                          \
    }

/* Updates all parameters of the list, after all their gradients were computed. report may be NULL. */
AG_API ag_status ag_sgd_step(ag_sgd *sgd, const ag_param *list, int64_t n, ag_step_report *report);
AG_API ag_status ag_adamw_step(ag_adamw *adamw, const ag_param *list, int64_t n, ag_step_report *report);

/* ---- Learning rate ----------------------------------------------------------------------------- */

typedef int32_t ag_schedule_kind;
enum {
    AG_SCHEDULE_CONSTANT = 0,
    AG_SCHEDULE_COSINE = 1 /* after the warm-up, from rate down to final_rate, reached at step `steps` */
};

typedef struct ag_schedule {
    uint32_t struct_size; /* sizeof(ag_schedule) */
    ag_schedule_kind kind;
    double rate;
    double final_rate; /* AG_SCHEDULE_COSINE */
    int64_t warmup;    /* steps 0 .. warmup - 1 have the rate rate * (step + 1) / warmup */
    int64_t steps;     /* AG_SCHEDULE_COSINE: more than warmup; final_rate from here on */
} ag_schedule;

#define AG_SCHEDULE_INIT                                                                                     \
    {                                                                                                        \
        sizeof(ag_schedule), 0, 0, 0, 0, 0                                                                   \
    }

AG_API ag_status ag_schedule_rate(const ag_schedule *schedule, int64_t step, double *rate);

/* ---- Loss scaling ------------------------------------------------------------------------------ */

/* Float16 loses gradients below 6e-8: so the loss, and with it dy, is multiplied by scale, and the step
 * divides the gradients by it. After each step ag_loss_scale_update() multiplies scale by backoff if the step
 * was not applied, and by growth after interval consecutive applied steps. */
typedef struct ag_loss_scale {
    uint32_t struct_size; /* sizeof(ag_loss_scale) */
    uint32_t reserved;    /* zero */
    double scale;         /* the current scale; 0 = 65536 */
    double growth;        /* more than 1; 0 = 2 */
    double backoff;       /* in (0, 1); 0 = 0.5 */
    double max_scale;     /* growth stops here; 0 = 2^24 */
    int64_t interval;     /* 0 = 2000 */
    int64_t in_a_row;     /* applied steps since scale last changed; counted by the library */
    int64_t skipped;      /* number of steps that were not applied; counted by the library */
} ag_loss_scale;

#define AG_LOSS_SCALE_INIT                                                                                   \
    {                                                                                                        \
        sizeof(ag_loss_scale), 0, 65536, 0, 0, 0, 0, 0, 0                                                    \
    }

AG_API ag_status ag_loss_scale_update(ag_loss_scale *loss_scale, int32_t applied);

#ifdef __cplusplus
}
#endif

#endif
