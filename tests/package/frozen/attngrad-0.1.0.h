/* attngrad: attention and all its exact derivatives.
 *
 * Describe attention as a problem (shapes, dtypes, features), make a plan of it once, and run the plan's five
 * maps as often as you like:
 *
 *     map       reads                                      writes
 *     forward   q k v (bias mask table sink)               o lse (o_low)
 *     vjp       forward's inputs, o lse d_o (d_lse o_low)  dq dk dv dbias dtable dsink
 *     jvp       forward's inputs, tq tk tv (tbias ...)     o lse to mu (o_low to_low)
 *     vjp_jvp   vjp's and jvp's inputs, to mu (td_o ...)   tdq tdk tdv tdbias tdtable tdsink
 *     jvp_jvp   jvp's inputs, sq sk sv (sbias ...),        sto nu
 *               o lse mu smu (o_low)
 *
 * dX is the cotangent of X (the gradient of a loss), tX its tangent (a direction), lse the logarithm of each
 * row's sum of exponentials, mu the tangent of lse. vjp is reverse-mode differentiation, jvp is forward mode,
 * vjp_jvp differentiates vjp along the tangents (Hessian-vector products), jvp_jvp differentiates jvp along a second
 * direction sX: sto and nu are the second tangents of o and lse. docs/math.md derives every formula.
 *
 * Rules that hold everywhere:
 *   - Zero is every field's default. A struct that is passed by pointer starts with its own size, so that
 *     programs and libraries of different versions work together: set struct_size to sizeof, or initialise
 *     the struct with its _INIT macro if there is one.
 *   - A function that can fail returns an ag_status; ag_last_message() then says, for this thread,
 *     which field was wrong and its value, and ag_last_field() gives the field's name alone.
 *   - Maps allocate nothing; the caller gives a workspace of the size that ag_plan_workspace() returns.
 *   - A plan never changes: any number of threads may use one at once, each with its own workspace.
 *   - The same inputs give the same bits for every number of threads. */
#ifndef ATTNGRAD_H
#define ATTNGRAD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define AG_API __attribute__((visibility("default")))
#else
#define AG_API
#endif

#define AG_VERSION_MAJOR 0
#define AG_VERSION_MINOR 1
#define AG_VERSION_PATCH 0

/* The version of the library that is linked: major * 10000 + minor * 100 + patch, and "0.1.0". */
AG_API int32_t ag_version(void);
AG_API const char *ag_version_string(void);

/* ---- Status ------------------------------------------------------------------------------------ */

typedef int32_t ag_status;
enum {
    AG_OK = 0,
    AG_INVALID_PROBLEM = 1,  /* the problem, its text or the options are wrong */
    AG_INVALID_ARGUMENT = 2, /* a call's argument is wrong; nothing was written */
    AG_UNSUPPORTED = 3,      /* legal, but this build, backend or machine cannot do it */
    AG_NO_MEMORY = 4,        /* the allocator returned NULL, or a device has no memory left */
    AG_WORKSPACE = 5,        /* the workspace is NULL or too small */
    AG_DEVICE = 6,           /* a device or its driver failed */
    AG_CANCELLED = 7,        /* ag_exec.poll returned non-zero: the outputs are undefined */
    AG_TIMEOUT = 8           /* a call did not end in time: the outputs are undefined */
};

AG_API const char *ag_status_string(ag_status status);

/* One line about the last call on this thread that failed. Never NULL. */
AG_API const char *ag_last_message(void);

/* The name of the argument that the message is about, for programs; "" if no argument caused the failure, for
 * instance if memory ran out. Never NULL; valid until the next failure on this thread. The name is
 *   - for an argument of the function, its name in this header: "plan", "workspace", "problem"; also if the
 *     struct_size of that struct is wrong
 *   - for a field of ag_problem or of the call's struct of arguments, the name of the field: "kv_heads", "q",
 *     "q_lengths"; for an array without the index
 *   - for a field of another struct, the same after the name of what points to that struct:
 *     "options.threads", "exec.run", "attention.bias"
 *   - for an environment variable, its name: "ATTNGRAD_THREADS"
 *   - if several values do not fit together, the name of the one that depends on the others: "kv_heads" if it
 *     does not divide heads */
AG_API const char *ag_last_field(void);

/* ---- Numbers ----------------------------------------------------------------------------------- */

typedef int32_t ag_dtype;
enum {
    AG_F64 = 1,
    AG_F32 = 2,
    AG_F16 = 3,
    AG_BF16 = 4,
    AG_F8_E4M3 = 5, /* reserved: refused as AG_UNSUPPORTED */
    AG_F8_E5M2 = 6  /* reserved: refused as AG_UNSUPPORTED */
};

AG_API size_t ag_dtype_size(ag_dtype dtype);      /* in bytes; 0 if it is not a dtype */
AG_API const char *ag_dtype_name(ag_dtype dtype); /* "f32"; "?" if it is not a dtype */

/* Converts n elements, each rounded once, to nearest with ties to even. dst and src must not overlap. */
AG_API ag_status ag_convert(void *dst, ag_dtype dst_dtype, const void *src, ag_dtype src_dtype, int64_t n);

/* ---- Problem ----------------------------------------------------------------------------------- */

/* Features that a flag switches on; the fields named here are read only if it is set. */
enum {
    AG_CAUSAL = 1 << 0, /* a query sees no key at a later position */
    AG_WINDOW = 1 << 1, /* window_left, window_right */
    AG_SCALE = 1 << 2,  /* scale */
    AG_SINK = 1 << 3,   /* one extra logit per head: it joins the softmax denominator and has no value row */
    AG_BIAS = 1 << 4,   /* bias_size */
    AG_MASK = 1 << 5,   /* mask_size */
    AG_TABLE = 1 << 6,  /* relative-position bias: table_radius, table_buckets, table_heads, buckets */
    AG_ALIBI = 1 << 7,  /* ALiBi with its default slopes */
    AG_SLOPES = 1 << 8, /* ALiBi with alibi_slopes */
    AG_PACKED = 1 << 9, /* q_total, kv_total: sequences of different lengths, concatenated without padding */
    AG_PAGED = 1 << 10  /* reserved (a page table for K and V): refused as AG_UNSUPPORTED */
};

typedef int32_t ag_align;
enum {
    AG_ALIGN_TOP_LEFT = 0,    /* query 0 is at the position of key 0 */
    AG_ALIGN_BOTTOM_RIGHT = 1 /* the last query is at the position of the last key */
};

/* Shapes, dtypes and constants: all that a plan needs. Query i is at position
 *     p_i = i + q_offset + (align == AG_ALIGN_BOTTOM_RIGHT ? n_k - n_q : 0)
 * and key j at g_j = j + k_offset, with n_q and n_k the lengths of this sequence of the batch. Query i
 * sees key j if j < n_k and, with AG_CAUSAL, g_j <= p_i, and, with AG_WINDOW, p_i - left <= g_j <= p_i + right,
 * and the mask is not zero, and the bias is not minus infinity. The output of a query that sees no key is
 * zero. */
typedef struct ag_problem {
    uint32_t struct_size; /* sizeof(ag_problem) */
    uint32_t flags;       /* AG_CAUSAL and so on */

    ag_dtype dtype;      /* q, k, v and their tangents; required */
    ag_dtype out_dtype;  /* o, to, d_o, td_o: 0 = dtype; may be wider: AG_F32 (its digits: see AG_ISA_AMX) */
    ag_dtype grad_dtype; /* dq, dk, dv, tdq, tdk, tdv: likewise */
    ag_dtype aux_dtype;  /* bias, table, sink, their tangents and gradients: likewise */

    ag_align align;
    int32_t reserved; /* zero */

    int64_t batch;    /* B >= 0: sequences */
    int64_t heads;    /* H >= 1: query heads */
    int64_t kv_heads; /* Hk divides H; 0 = H. Query head h uses kv head h / (H / Hk) */
    int64_t q_len;    /* Nq >= 0; with AG_PACKED the longest sequence */
    int64_t kv_len;   /* Nk >= 0; likewise */
    int64_t dim_qk;   /* Dk: 1 to 512 */
    int64_t dim_v;    /* Dv: 1 to 512; 0 = dim_qk */

    int64_t q_total;  /* AG_PACKED: rows of q, o and so on, all sequences together */
    int64_t kv_total; /* AG_PACKED: rows of k and v */

    double scale;   /* AG_SCALE; default 1 / sqrt(dim_qk) */
    double softcap; /* c > 0: scores become c tanh(score / c), before any bias; 0 = none */
    double dropout; /* in [0, 1): the probability that a weight is dropped */

    int64_t window_left;  /* AG_WINDOW: keys up to this far before the query are seen; -1 = all */
    int64_t window_right; /* AG_WINDOW: keys up to this far after the query are seen; -1 = all */

    int64_t bias_size[4]; /* AG_BIAS: [1|B, 1|H, 1|Nq, 1|Nk] */
    int64_t mask_size[4]; /* AG_MASK: likewise */

    /* AG_TABLE: bias += T[h][buckets[clamp(g_j - p_i, -R, R) + R]] */
    int64_t table_radius;   /* R >= 0 */
    int64_t table_buckets;  /* columns of T; 0 = 2R + 1 */
    int64_t table_heads;    /* rows of T: H (0 = H), or 1, shared by all heads */
    const int32_t *buckets; /* [2R + 1], copied by the plan; NULL = identity, for 2R + 1 columns */

    const double *alibi_slopes; /* AG_SLOPES: [H], copied by the plan; bias -= slope_h |p_i - g_j| */

    /* Index of the first head in the whole layer, if these heads are a shard: for dropout; refused with
     * AG_ALIBI, whose shards need AG_SLOPES. */
    int64_t head_offset;
} ag_problem;

/* clang-format off */
#define AG_PROBLEM_INIT {sizeof(ag_problem), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
                         {0, 0, 0, 0}, {0, 0, 0, 0}, 0, 0, 0, NULL, NULL, 0}
/* clang-format on */

/* A problem in one line of text: words in any order, separated by spaces, each at most once.
 *
 *     b2 h8 kv2 q128 k96 d64 dv32    batch, heads, kv_heads, q_len, kv_len, dim_qk, dim_v
 *                                    q and d are required; b and h default to 1, k to q
 *     f64 f32 f16 bf16               dtype; required
 *     out=f32 grad=f32 aux=f32       wider outputs, gradients, biases
 *     causal  align=bottom-right  window=L,R  scale=X  softcap=X  dropout=P  sink
 *     bias  bias=1hqk  mask=b11k     sizes of the four axes: the letter for full, 1 for broadcast;
 *                                    the bare word means bhqk
 *     table=R  table=R,NB  table=R,shared  table=R,NB,shared
 *     alibi  alibi=slopes            default slopes; slopes given by the caller
 *     packed=QT,KT  head_offset=N
 *
 * The arrays buckets and alibi_slopes have no text: parse leaves them NULL for the caller to set.
 * On failure the problem is left as it was. */
AG_API ag_status ag_problem_parse(const char *text, ag_problem *problem);

/* Writes the text of the problem, terminated, into buf[size] and its length into *length. buf may be NULL with size
 * 0; length may be NULL. Returns AG_INVALID_ARGUMENT if size is too small; *length is set in that case too. */
AG_API ag_status ag_problem_format(const ag_problem *problem, char *buf, size_t size, size_t *length);

/* ---- Plan -------------------------------------------------------------------------------------- */

typedef struct ag_plan ag_plan;

typedef int32_t ag_backend;
enum {
    /* The fastest backend of the host. If it refuses a problem, the call fails even if a slower backend could run it,
     * so that no program becomes slower unnoticed. */
    AG_BACKEND_AUTO = 0,
    AG_BACKEND_REFERENCE = 1, /* the formulas as written, in float64: slow; the specification */
    AG_BACKEND_CPU = 2,       /* fused, in memory proportional to the sequence */
    AG_BACKEND_CUDA = 3       /* an NVIDIA GPU, only if it is asked for; see below */
};

/* AG_BACKEND_CUDA runs on one device, an NVIDIA GPU of compute capability 8.0 or higher (Ampere and later). docs/gpu.md
 * says on which ones it was tested.
 *
 * It is taken only if options or ATTNGRAD_BACKEND name it, never by AG_BACKEND_AUTO, and the driver is opened by the
 * first plan that asks for it. A library that was built without it, or a machine without a driver or a device, refuses
 * it as AG_UNSUPPORTED with the reason. Its plans differ from those of the host in this:
 *   - All tensors and the workspace are memory of the plan's device (or managed memory); memory of the host or of
 *     another device is refused. Lists and the seed are host memory, read before the call returns, or device memory in
 *     the fields *_device.
 *   - AG_OK means enqueued on ag_exec.stream. A call allocates nothing and waits for nothing: it can be captured in a
 *     graph. A fault on the device is reported by a later call, as AG_DEVICE.
 *   - The calling thread's current context is used if it is on the plan's device, else the device's primary context.
 *     A plan with buckets or slopes has copies of them in the context that it was made in, and runs in that one only.
 *     It cannot be made while a stream of the thread is being captured, and must live as long as a graph that was
 *     captured from its calls.
 *   - ag_exec.run, ag_exec.poll and ag_trace are refused; options.threads has no effect.
 *   - At most 2^28 - 512 queries and keys, of a sequence or packed, and 2^31 - 1 heads: else AG_UNSUPPORTED.
 *   - The same inputs give the same bits on every device with the same table of kernels and the same limit of shared
 *     memory of a block, which the plan's description names: 99 KB, 163 KB, or 227 KB if it names none. In float64 this
 *     has not been compared between devices before compute capability 9.0 and later ones. */

/* A table of kernels inside a backend, named after the instruction set that it needs. Each backend has its
 * own (see ag_backend_isa): first the CPU backend's, then CUDA's. */
typedef int32_t ag_isa;
enum {
    AG_ISA_AUTO = 0, /* the best that the machine has and the problem can use */
    AG_ISA_SCALAR = 1,
    AG_ISA_AVX2 = 2,
    AG_ISA_AVX512 = 3,
    AG_ISA_AMX = 4, /* tile products of bfloat16; see below */
    AG_ISA_NEON = 5,
    AG_ISA_SM80 = 6, /* any device of compute capability 8.0 or higher for which the library has code */
    AG_ISA_SM90 = 7  /* devices of compute capability 9.0 (Hopper) with at least 64 multiprocessors */
};
/* AG_ISA_AMX runs the maps of problems whose dtype is AG_BF16, with kv_len of at least 24 or, with AG_INVARIANT, any.
 * Other problems that ask for it run on the vector kernels of AG_ISA_AVX512. ag_plan_info_get reports which of the two
 * a plan uses.
 *
 * On AMX weights are rounded to bfloat16, also if out_dtype or grad_dtype is AG_F32, and so are d_o and td_o if they
 * are float32. Such outputs are stored from float32 sums, never from 16 bits, but have the error of those roundings.
 * With both dtypes AG_F32, 1,024 queries and keys, 64 channels and random inputs that is a relative error (Frobenius
 * norm) of 1.6e-3 in o, 2.4e-3 in dq and dk, 2.2e-3 in dv; in 16 bits it is 2.3e-3 to 2.4e-3. AG_ISA_AVX512 computes
 * all of it in float32, and has 4e-7 there, but takes about 4 times as long: choose it if float32 outputs must have
 * float32's digits. */

enum {
    /* Reference backend only: round every intermediate matrix to the dtype, as an unfused implementation
     * in that dtype would; scores to float32 at least. The baseline of the error rule. */
    AG_ROUND_INTERMEDIATES = 1 << 0,

    /* The bits of o, lse, to, mu, dq, tdq, sto and nu of a query head, and of dk, dv, tdk and tdv of a kv head, depend
     * only on the inputs of their sequence and of their group of heads, on n_q, n_k and the sizes of a head: not on the
     * rest of the batch, on other groups, on their order, on padding or packing. Gradients that are sums over sequences
     * or groups have the ordinary promise: the same bits for any number of threads. docs/design.md has the cost. */
    AG_INVARIANT = 1 << 1
};

typedef struct ag_options {
    uint32_t struct_size; /* sizeof(ag_options) */
    uint32_t flags;       /* AG_ROUND_INTERMEDIATES, AG_INVARIANT */
    ag_backend backend;   /* AUTO: ATTNGRAD_BACKEND (cpu reference cuda), else the fastest of the host */
    ag_isa isa;           /* AUTO: ATTNGRAD_ISA (scalar avx2 avx512 amx neon sm80 sm90), else the best */
    int32_t threads;      /* 0: ATTNGRAD_THREADS, else one per CPU; at most 1024 */
    int32_t device;       /* AG_BACKEND_CUDA, 0: the thread's current device; n: device n - 1. Others: 0 */

    /* The allocator of the plan's own memory: set both functions or neither. alloc returns memory that is aligned
     * like malloc's, or NULL. */
    void *alloc_ctx;
    void *(*alloc)(void *ctx, size_t size);
    void (*release)(void *ctx, void *memory);
} ag_options;

/* clang-format off */
#define AG_OPTIONS_INIT {sizeof(ag_options), 0, 0, 0, 0, 0, NULL, NULL, NULL}
/* clang-format on */

/* Checks the problem, chooses a backend and copies what it needs of the problem. options may be NULL. On failure
 * *plan is NULL. */
AG_API ag_status ag_plan_create(ag_plan **plan, const ag_problem *problem, const ag_options *options);
AG_API void ag_plan_destroy(ag_plan *plan); /* NULL is allowed */

/* Describes for people what the plan runs on: "cpu, avx512, float32 inside, tile 192x176, 2 threads, deterministic", or
 * "cuda, sm80, float32 inside, device 0, NVIDIA H200, deterministic".
 * Lives as long as the plan. Its wording may change: programs use ag_plan_info_get. */
AG_API const char *ag_plan_describe(const ag_plan *plan);

typedef struct ag_plan_info {
    uint32_t struct_size; /* sizeof(ag_plan_info), set by the caller */
    ag_backend backend;
    ag_isa isa;           /* the table of kernels that the maps use; AG_ISA_AUTO if the backend has none */
    int32_t threads;      /* 0: the plan runs on a device */
    int64_t tile_queries; /* size of the tiles that vjp works on; 0 if the backend has no tiles */
    int64_t tile_keys;
    ag_dtype compute_dtype; /* of the arithmetic inside: AG_F32 or AG_F64 */
    int32_t deterministic;  /* 1: the same inputs give the same bits for every number of threads */
    char backend_name[16];  /* "cpu" */
    char isa_name[16];      /* "avx512"; "" if the backend has none */
} ag_plan_info;

AG_API ag_status ag_plan_info_get(const ag_plan *plan, ag_plan_info *info);

/* The plan's problem with every default filled in; lives as long as the plan. */
AG_API const ag_problem *ag_plan_problem(const ag_plan *plan);

enum {
    AG_MAP_FORWARD = 1 << 0,
    AG_MAP_VJP = 1 << 1,
    AG_MAP_JVP = 1 << 2,
    AG_MAP_VJP_JVP = 1 << 3,
    AG_MAP_JVP_JVP = 1 << 4
};

/* Sets *bytes to the size of a workspace, of any alignment, that is enough for each of these maps (bits of
 * AG_MAP_*). */
AG_API ag_status ag_plan_workspace(const ag_plan *plan, uint32_t maps, size_t *bytes);

/* ---- The five maps ----------------------------------------------------------------------------- */

/* A view: element (b, h, i, c) is at data + b*strides[0] + h*strides[1] + i*strides[2] + c*strides[3], with
 * strides in elements, for the axes [batch, head, position, channel]. The stride of an axis of size 1 is
 * ignored. Strides may be negative, those of inputs also zero; no two elements of an output may overlap. data
 * NULL: the tensor is absent.
 *
 * No element of an output may be an element of another tensor of the call, and no tensor may lie in the workspace. A
 * call is refused if a tensor's addresses, from its first to its last element, meet those of the workspace, or if an
 * output begins where another tensor does, or if those of an output and another tensor meet and both are contiguous.
 * Overlaps of views with gaps between their elements are not checked. */
typedef struct ag_tensor {
    void *data;
    int64_t strides[4];
} ag_tensor;

/* Dense views: [batch][head][n][channel], and [batch][n][head][channel] (also [total][head][channel]
 * for packed sequences, whose batch stride is not used). */
static inline ag_tensor ag_bhnd(const void *data, int64_t heads, int64_t n, int64_t channels)
{
    ag_tensor t;
    t.data = (void *)(uintptr_t)data;
    t.strides[0] = heads * n * channels;
    t.strides[1] = n * channels;
    t.strides[2] = channels;
    t.strides[3] = 1;
    return t;
}

static inline ag_tensor ag_bnhd(const void *data, int64_t heads, int64_t n, int64_t channels)
{
    ag_tensor t = ag_bhnd(data, heads, n, channels);
    t.strides[1] = channels;
    t.strides[2] = heads * channels;
    return t;
}

/* Bits of ag_args.accumulate: this output becomes round(its old value + the result). One exception, which saves a copy
 * of the bias: if dbias or tdbias has every query and key, sequences or heads share it, and its dtype is
 * ag_plan_info.compute_dtype, then the CPU backend adds the part of one head of one sequence after another to the old
 * value and rounds each sum: sequences in order, in each its heads in order. */
enum {
    AG_ACC_O = 1 << 0,
    AG_ACC_LSE = 1 << 1,
    AG_ACC_TO = 1 << 2,
    AG_ACC_MU = 1 << 3,
    AG_ACC_DQ = 1 << 4,
    AG_ACC_DK = 1 << 5,
    AG_ACC_DV = 1 << 6,
    AG_ACC_DBIAS = 1 << 7,
    AG_ACC_DTABLE = 1 << 8,
    AG_ACC_DSINK = 1 << 9,
    AG_ACC_TDQ = 1 << 10,
    AG_ACC_TDK = 1 << 11,
    AG_ACC_TDV = 1 << 12,
    AG_ACC_TDBIAS = 1 << 13,
    AG_ACC_TDTABLE = 1 << 14,
    AG_ACC_TDSINK = 1 << 15,
    AG_ACC_STO = 1 << 16,
    AG_ACC_NU = 1 << 17
};

/* Bits of ag_args.flags. */
enum {
    /* jvp reads o, lse and, if given, o_low, which forward wrote for the same inputs, instead of writing them. The
     * other maps ignore it. On AG_ISA_SM90 most problems have it computed again instead of read. */
    AG_GIVEN_O = 1 << 0
};

/* Every variable of the five maps. Each map reads and writes the fields that the table at the top lists for it and
 * ignores the others, so one struct can be used for all maps one after another. Shapes are given as padded | packed. A
 * tensor of a feature that the problem does not have must be absent. */
typedef struct ag_args {
    uint32_t struct_size; /* sizeof(ag_args) */
    uint32_t accumulate;  /* AG_ACC_* */

    /* Scalars, and pointers to host memory that is read before the call returns. */
    int64_t q_offset;         /* positions of query 0 and of key 0, if this is a shard of a longer sequence */
    int64_t k_offset;         /*   (not with AG_ALIGN_BOTTOM_RIGHT) */
    int64_t batch_offset;     /* index of the first sequence in the whole batch, for dropout */
    uint64_t seed;            /* dropout's seed; the other maps need the one that forward had */
    const int64_t *q_lengths; /* [B], each in 0 .. q_len; NULL = q_len. Not with AG_PACKED */
    const int64_t *kv_lengths; /* [B], each in 0 .. kv_len; NULL = kv_len. Not with AG_PACKED */
    const int64_t *q_packed; /* AG_PACKED: [B + 1]: sequence b has rows q_packed[b] .. q_packed[b + 1] - 1 */
    const int64_t *k_packed; /* AG_PACKED: [B + 1]; both start at 0; rows after the last are padding */

    /* Inputs of every map. */
    ag_tensor q;     /* [B, H, Nq, Dk] | [1, H, q_total, Dk]    dtype */
    ag_tensor k;     /* [B, Hk, Nk, Dk] | [1, Hk, kv_total, Dk] dtype */
    ag_tensor v;     /* [B, Hk, Nk, Dv] | [1, Hk, kv_total, Dv] dtype */
    ag_tensor bias;  /* bias_size; with AG_PACKED indexed within the sequence; aux_dtype */
    ag_tensor mask;  /* mask_size, uint8: not zero = may attend */
    ag_tensor table; /* [1, table_heads, 1, table_buckets]      aux_dtype */
    ag_tensor sink;  /* [1, H, 1, 1]                            aux_dtype */

    /* Outputs of forward and jvp, inputs of vjp, vjp_jvp and jvp_jvp. lse may be absent from forward; o and lse from
     * jvp. If a query sees no key and its lse says so (minus infinity, or the sink's logit), the maps that are given
     * its o, to, mu and smu do not use them: they may be NaN. */
    ag_tensor o;   /* [B, H, Nq, Dv] | [1, H, q_total, Dv]      out_dtype */
    ag_tensor lse; /* [B, H, Nq, 1]  | [1, H, q_total, 1]       float64 */

    /* Cotangents (d_lse absent: zero) and gradients (absent: not computed). */
    ag_tensor d_o;    /* as o */
    ag_tensor d_lse;  /* as lse */
    ag_tensor dq;     /* as q, grad_dtype */
    ag_tensor dk;     /* as k, grad_dtype */
    ag_tensor dv;     /* as v, grad_dtype */
    ag_tensor dbias;  /* as bias */
    ag_tensor dtable; /* as table */
    ag_tensor dsink;  /* as sink */

    /* Tangents of the inputs (absent: zero). */
    ag_tensor tq, tk, tv, tbias, ttable, tsink;

    /* Tangents of the outputs: written by jvp, where mu may be absent; both required by vjp_jvp, mu by jvp_jvp. */
    ag_tensor to; /* as o */
    ag_tensor mu; /* as lse: the tangent of lse */

    /* Tangents of the cotangents (absent: zero) and of the gradients (absent: not computed). */
    ag_tensor td_o, td_lse;
    ag_tensor tdq, tdk, tdv, tdbias, tdtable, tdsink;

    /* The low halves of a 16-bit o and to (absent: not used): what rounding took from them, itself rounded; for AG_F16
     * times 2^11, which loses no digits. forward and jvp write them; vjp, vjp_jvp and jvp_jvp that are given them use o
     * + o_low and to + to_low, so that the results do not carry the rounding errors of o. The cost is one more 16-bit
     * array of the size of o. Refused if out_dtype is wider than 16 bits, and as outputs together with AG_ACC_O and
     * AG_ACC_TO. */
    ag_tensor o_low;  /* as o */
    ag_tensor to_low; /* as to */

    uint32_t flags;     /* AG_GIVEN_O */
    uint32_t reserved2; /* zero */

    /* [B]: the positions of query 0 and of key 0 of each sequence, in host memory; NULL: q_offset and k_offset, which
     * must be zero if the list is given. Not with AG_ALIGN_BOTTOM_RIGHT. */
    const int64_t *q_offsets, *k_offsets;

    /* jvp_jvp: the second direction (absent: zero), the tangent of lse along it (jvp's mu; required), and the second
     * tangents of o and lse. nu may be absent. Given o, lse, mu and smu of all keys, a call on a part of the keys gives
     * that part's share of sto and nu: the shares add up. */
    ag_tensor sq, sk, sv, sbias, stable, ssink;
    ag_tensor smu; /* as lse */
    ag_tensor sto; /* as o */
    ag_tensor nu;  /* as lse */

    /* The same lists and the seed in the memory of the plan's device, instead of those above; refused as AG_UNSUPPORTED
     * by the backends of the host. They are read when the kernels run, so a captured graph can be replayed with other
     * values. They are not checked: lengths and offsets out of range are clamped to the sizes of the plan. q_offset,
     * k_offset and seed must be zero if their counterpart is given. */
    const int64_t *q_lengths_device, *kv_lengths_device, *q_packed_device, *k_packed_device;
    const int64_t *q_offsets_device, *k_offsets_device;
    const uint64_t *seed_device;
} ag_args;

/* How a call runs. run, the parallel loop, calls task(arg, index) exactly once for each index 0 .. n_tasks - 1, in any
 * order, on any threads or on the caller's alone, and returns when all are done. A task may wait for work that another
 * one has begun, never for a task that has not started. exec NULL or run NULL: the library's own pool of threads.
 *
 * poll, if it is not NULL, is called on the thread that called the map: when the call begins, and then at least every
 * 50 ms while that thread works or waits for others; with run given, only while that thread is in a task. Calls are
 * some milliseconds apart, so a short map may poll once and no more. If poll returns non-zero, no new work starts, and
 * the map returns AG_CANCELLED as soon as all threads have left it: its outputs are then undefined, the plan and the
 * workspace can be used again. poll may not leave by longjmp or an exception. */
typedef void (*ag_task)(void *arg, int64_t index);

typedef struct ag_exec {
    uint32_t struct_size; /* sizeof(ag_exec) */
    uint32_t reserved;    /* zero */
    void *ctx;            /* the first argument of run and of poll */
    void (*run)(void *ctx, int64_t n_tasks, ag_task task, void *arg);
    int32_t (*poll)(void *ctx);
    void *
        stream; /* AG_BACKEND_CUDA: a CUstream or cudaStream_t; NULL: the legacy default stream. Others: NULL */
} ag_exec;

/* clang-format off */
#define AG_EXEC_INIT {sizeof(ag_exec), 0, NULL, NULL, NULL, NULL}
/* clang-format on */

AG_API ag_status ag_forward(const ag_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                            size_t bytes);
AG_API ag_status ag_vjp(const ag_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                        size_t bytes);
AG_API ag_status ag_jvp(const ag_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                        size_t bytes);
AG_API ag_status ag_vjp_jvp(const ag_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                            size_t bytes);
AG_API ag_status ag_jvp_jvp(const ag_plan *plan, const ag_args *args, const ag_exec *exec, void *workspace,
                            size_t bytes);

/* ---- Merging results over disjoint keys -------------------------------------------------------- */

/* Combines the results of two calls on disjoint sets of keys, 1 and 2, into that of both. An output may be the
 * tensor of the same name of set 1 (o = o1, and so on), with the same strides. At most one of the calls may have had
 * the sink. Give to and mu for both sets and the result, or for none; so, smu, sto and nu likewise, and then to and mu
 * too. Here to and mu are the results of jvp along t, so and smu those of jvp along s, and sto and nu those of jvp_jvp
 * given each set's own o, lse, mu and smu. Each low half may be given or absent: an absent one of a set counts as zero,
 * an absent one of the result is not computed. */
typedef struct ag_merge_args {
    uint32_t struct_size; /* sizeof(ag_merge_args) */
    uint32_t reserved;    /* zero */
    ag_tensor o1, lse1, to1, mu1;
    ag_tensor o2, lse2, to2, mu2;
    ag_tensor o, lse, to, mu; /* shapes and dtypes as in ag_args */
    ag_tensor o_low1, to_low1, o_low2, to_low2, o_low, to_low;
    ag_tensor so1, smu1, sto1, nu1;
    ag_tensor so2, smu2, sto2, nu2;
    ag_tensor so, smu, sto, nu;
} ag_merge_args;

AG_API ag_status ag_merge(const ag_plan *plan, const ag_merge_args *args, const ag_exec *exec);

/* ---- Trace: every intermediate of one head ----------------------------------------------------- */

/* Float64 arrays of the caller; NULL: not wanted. Matrices are [q_len][kv_len]; rows and columns after the
 * end of the sequence are zero. Entries of masked pairs are minus infinity in S, plain products in Z, tZ, sZ and
 * stZ, and zero in all other matrices. What the map does not compute is zero. The names are those of docs/math.md. */
typedef struct ag_trace_args {
    uint32_t struct_size; /* sizeof(ag_trace_args) */
    uint32_t reserved;    /* zero */
    int64_t batch, head;  /* which sequence, which query head */
    double *Z, *B, *S, *P, *M, *R;
    double *dP, *dS, *dZ;
    double *tZ, *tS, *tP;
    double *tdP, *tdS, *tdZ;
    double *phi1, *phi2;          /* phi'(Z), phi''(Z) */
    double *L, *Ps, *D, *mu, *tD; /* [q_len] */

    /* [kv_len][kv_len]: the Jacobian of softmax in query row jacobian_row,
     * J[j][k] = the derivative of P_j by S_k */
    double *J;
    int64_t jacobian_row;

    /* Of jvp_jvp. */
    double *sZ, *sS, *sP;
    double *stZ, *stS, *stP;
    double *smu, *nu; /* [q_len] */
} ag_trace_args;

/* Runs the formulas of one map (one bit of AG_MAP_*) for one head and copies out the intermediates. args are the
 * arguments of that map; no tensor in it is written. Needs the same workspace as the map, and a plan made with
 * AG_BACKEND_REFERENCE. */
AG_API ag_status ag_trace(const ag_plan *plan, uint32_t map, const ag_args *args, const ag_trace_args *trace,
                          void *workspace, size_t bytes);

/* ---- Information ------------------------------------------------------------------------------- */

typedef struct ag_info {
    uint32_t struct_size; /* sizeof(ag_info), set by the caller */
    int32_t threads;      /* CPUs that this process may use, at most 1024 */
    char version[16];
    char cpu[64];      /* the name of the processor */
    char isa[128];     /* its instruction sets that matter to this library: "avx2 fma avx512f ..." */
    char backends[64]; /* built into this library: "cpu reference cuda" */
    char compiler[64]; /* what it was built with */
    char devices
        [256]; /* CUDA's: "0: NVIDIA H200, sm90, 140 GiB; 1: ..."; "" if there are none. Opens the driver */
} ag_info;

AG_API ag_status ag_info_get(ag_info *info);

/* The backends that are built into this library, by index from 0 to count - 1: those of the host, the fastest first,
 * then those of devices. */
typedef struct ag_backend_info {
    uint32_t struct_size; /* sizeof(ag_backend_info), set by the caller */
    ag_backend backend;
    char name[16]; /* "cpu", as in ATTNGRAD_BACKEND */
} ag_backend_info;

AG_API int32_t ag_backend_count(void);
AG_API ag_status ag_backend_info_get(int32_t index, ag_backend_info *info);

/* The tables of kernels of a backend, by index from 0 to count - 1, from the slowest to the fastest. The count is 0
 * for a backend that is not built in or has no tables. */
typedef struct ag_isa_info {
    uint32_t struct_size; /* sizeof(ag_isa_info), set by the caller */
    ag_isa isa;
    int32_t built_in; /* 1: this library has it */
    int32_t
        available; /* 1: built in, and this machine can run it. For AG_BACKEND_CUDA this opens the driver */
    char name[16]; /* "avx512", as in ATTNGRAD_ISA */
} ag_isa_info;

AG_API int32_t ag_backend_isa_count(ag_backend backend);
AG_API ag_status ag_backend_isa(ag_backend backend, int32_t index, ag_isa_info *info);

#ifdef __cplusplus
}
#endif

#endif
