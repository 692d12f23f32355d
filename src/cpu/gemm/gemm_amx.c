/* One tile of a matrix product of bfloat16 on AMX. A is read in place if AMX can read it there, B is packed;
 * sums are float32, computed block by block and rounded once. One operand may be float32: it is split into
 * three bfloat16 components, so that each step of its product becomes three. Compiled for AVX-512 and AMX, and called
 * only if the processor has both. */
#include <string.h>

#include "cpu/drivers/tile.h"
#include "cpu/gemm/gemm_amx_block_tmpl.c"
#include "cpu/gemm/gemm_amx_pack.h"
#include "cpu/gemm/gemm_amx_store_tmpl.c"
#include "cpu/gemm/gemm_impl.h"
#include "cpu/gemm/gemm_split.h"

/* A step is AMX_DEPTH terms of a sum. MAX_STEPS: steps that are summed before C is read and written;
 * MAX_STEPS_TRANSPOSED if A is transposed. B_SIZE: elements of B that are packed at once and stay in the
 * L2 cache. C_SIZE: elements of C in scratch, if C is read and written more than once. MAX_COLS: columns of a
 * tile. */
enum { MAX_STEPS = 64, MAX_STEPS_TRANSPOSED = 16, B_SIZE = 576 * 1024, C_SIZE = 256 * 1024, MAX_COLS = 1024 };

/* Max steps whose operands stay in the L1 cache. If there are more, the order of steps is reversed from each panel to
 * the next, so that a panel first uses what the panel before left in that cache. */
enum { MAX_L1_STEPS = 8 };

/* If all operands and C together have no more elements than this, they stay in the L2 cache, and nothing is
 * prefetched. */
enum { MAX_L2_ELEMENTS = 512 * 1024 };

typedef struct {
    uint16_t b[B_SIZE];               /* [panel][b_index][2][AMX_AB] */
    uint16_t a[MAX_STEPS * STRIP_AB]; /* [step][3][AMX_AB] */
    float c[C_SIZE];
    float out[STRIP * PANEL_COLS];
    float bias[MAX_COLS];
    step_tiles strip[MAX_STEPS];
} scratch;

/* The terms of one step. same_a, same_b: A or B has the same tiles as in the step before, because the other
 * operand goes on to its next component. */
typedef struct {
    const agi_product *p;
    agi_amx_terms terms;
    bool same_a, same_b;
    int64_t b_index; /* index of its tiles of B among those that are packed */
} step;

/* A tile of C and the current chunk of steps, which are packed and multiplied at once. */
typedef struct {
    const agi_gemm_op *op;
    const agi_gemm_tile *tile;
    output out;
    int64_t strip_rows;         /* rows of a strip, at most STRIP */
    bool large;                 /* do operands and C have more than MAX_L2_ELEMENTS? */
    int64_t n_b;                /* steps of this chunk whose tiles of B differ */
    int64_t n_steps, max_steps; /* of this chunk; of any chunk */
    bool first, last;           /* is this chunk the first, the last of the sum? */
    step steps[MAX_STEPS];
    scratch *s;
} job;

/* ---- Packing ---- */

/* Number of AMX tiles in the height of the strip at row i. */
static int64_t tiles_of(const job *x, int64_t i)
{
    return (agi_clamp(x->tile->m - i, x->strip_rows) + AMX_ROWS - 1) / AMX_ROWS;
}

/* Packs one step of one panel of B. */
static void pack_b_step(const job *x, const step *t, int64_t panel)
{
    const agi_matrix *b = &t->p->b;
    const int64_t j = x->tile->j0 + panel * PANEL_COLS;
    uint16_t *to = x->s->b + (panel * x->n_b + t->b_index) * 2 * AMX_AB;
    if (!t->same_b) {
        agi_amx_pack(to, b, !b->transposed, b->transposed, j, x->op->n, &t->terms);
        agi_amx_pack(to + AMX_AB, b, !b->transposed, b->transposed, j + AMX_LANES, x->op->n, &t->terms);
    }
}

/* A large B is read along its stored rows, as the hardware prefetches those. */
static void pack_b(const job *x)
{
    const int64_t panels = (x->tile->n + PANEL_COLS - 1) / PANEL_COLS;
    const bool by_steps = x->large && x->n_steps > 0 && !x->steps[0].p->b.transposed;
    for (int64_t n = 0; n < x->n_steps && by_steps; n++) {
        for (int64_t panel = 0; panel < panels; panel++) {
            pack_b_step(x, &x->steps[n], panel);
        }
    }
    for (int64_t panel = 0; panel < panels && !by_steps; panel++) {
        for (int64_t n = 0; n < x->n_steps; n++) {
            pack_b_step(x, &x->steps[n], panel);
        }
    }
}

/* Can AMX read this step of rows i .. i + rows - 1 in place? */
static bool a_in_place(const agi_matrix *a, int64_t i, int64_t rows, const step *t)
{
    bool in_place = a->dtype == AG_BF16 && !a->transposed && t->terms.k == AMX_DEPTH && i + rows <= a->rows;
    for (int64_t r = 0; r < rows && in_place && a->lengths != NULL; r++) {
        in_place = agi_row_is_valid(a, i + r);
    }
    return in_place;
}

/* Fills in the strip's tiles for each step, from row i of A on. Returns whether any of them are in place. */
static bool load_strip(const job *x, int64_t i, int64_t tiles)
{
    bool in_place = false;
    for (int64_t n = 0; n < x->n_steps; n++) {
        const step *t = &x->steps[n];
        const agi_matrix *a = &t->p->a;
        uint16_t *to = x->s->a + n * STRIP_AB;
        step_tiles *at = &x->s->strip[n];
        if (t->same_a) {
            *at = at[-1];
        } else if (a_in_place(a, i, tiles * AMX_ROWS, t)) {
            *at = (step_tiles){.a = (const uint16_t *)a->data + i * a->row_stride + t->terms.k0,
                               .a_tile = AMX_ROWS * a->row_stride,
                               .a_stride = 2 * a->row_stride};
            in_place = true;
        } else {
            for (int64_t r = 0; r < tiles; r++) {
                agi_amx_pack(to + r * AMX_AB, a, a->transposed, a->transposed, i + r * AMX_ROWS, x->op->m,
                             &t->terms);
            }
            *at = (step_tiles){.a = to, .a_tile = AMX_AB, .a_stride = 64};
        }
        at->b = t->b_index * 2 * AMX_AB;
    }
    return in_place;
}

/* Makes the strip refer to the copy that multiply_block() has made. */
static void use_copy(const job *x)
{
    for (int64_t n = 0; n < x->n_steps; n++) {
        x->s->strip[n].a = x->s->a + n * STRIP_AB;
        x->s->strip[n].a_tile = AMX_AB;
        x->s->strip[n].a_stride = 64;
    }
}

/* Distance from the first step's tiles of A to the second step's, in elements. */
static int64_t a_step_of(const job *x)
{
    const step_tiles *at = x->s->strip;
    return x->n_steps < 2 ? 0 : ((intptr_t)at[1].a - (intptr_t)at[0].a) / 2;
}

/* Are the steps equally far apart? See panel_product. */
static bool is_uniform(const job *x)
{
    const step_tiles *at = x->s->strip;
    bool uniform = x->n_steps > 0 && x->n_b == x->n_steps;
    for (int64_t n = 1; n < x->n_steps && uniform; n++) {
        uniform =
            (intptr_t)at[n].a - (intptr_t)at[n - 1].a == 2 * a_step_of(x) && at[n].a_stride == at[0].a_stride;
    }
    return uniform;
}

/* ---- Blocks ---- */

/* Prepares *to for prefetching C of the block at row i, column j. */
static void prefetch_c(const job *x, int64_t i, int64_t j, block_prefetch *to)
{
    const agi_gemm_op *op = x->op;
    const int64_t size = (int64_t)ag_dtype_size(op->dtype);
    to->c = (uintptr_t)op->c + (uintptr_t)(((x->tile->i0 + i) * op->n + x->tile->j0 + j) * size);
    to->c_stride = op->n * size;
    to->c_steps = tiles_of(x, i) * AMX_ROWS / 2;
}

/* Prepares *to for prefetching rows of the strip at row i. The rows are divided among the panels; here the share of the
 * one at column j. */
static void prefetch_strip(const job *x, int64_t i, int64_t j, block_prefetch *to)
{
    const agi_matrix *a = &x->steps[0].p->a;
    const int64_t share = (STRIP * PANEL_COLS + x->tile->n - 1) / x->tile->n, row = j / PANEL_COLS * share;
    if (a->dtype == AG_BF16 && !a->transposed) {
        to->a_stride = 2 * a->row_stride;
        to->a = (uintptr_t)a->data +
                (uintptr_t)((x->tile->i0 + i + row) * to->a_stride + 2 * x->steps[0].terms.k0);
        to->a_rows = agi_clamp(STRIP - row, share);
    }
}

/* Runs the block at row i, column j. copy: also copies A's tiles to scratch. */
static void run_block(const job *x, int64_t i, int64_t j, bool uniform, bool copy)
{
    const agi_gemm_tile *tile = x->tile;
    const bool only_chunk = x->first && x->last;
    const int64_t width = agi_round_up(tile->n, PANEL_COLS), tiles = tiles_of(x, i);
    const c_block b = {i, j, tiles, only_chunk ? PANEL_COLS : width,
                       only_chunk ? x->s->out : x->s->c + i * width + j};
    panel_product product = {.steps = x->s->strip,
                             .b = x->s->b + j * x->n_b * AMX_DEPTH,
                             .n_steps = x->n_steps,
                             .uniform = uniform,
                             .a_step = a_step_of(x),
                             .reverse = x->n_steps > MAX_L1_STEPS && (tile->j0 + j) / PANEL_COLS % 2 != 0,
                             .a_copy = copy ? x->s->a : NULL};
    if (x->large && x->last) {
        prefetch_c(x, i, j, &product.prefetch);
    }
    if (x->large && x->n_steps > MAX_L1_STEPS && i + x->strip_rows < tile->m) {
        prefetch_strip(x, i + x->strip_rows, j, &product.prefetch);
    }
    multiply_block(&product, &b, !x->first);
    if (x->last) {
        store_block(&x->out, &b, agi_clamp(tile->m - i, x->strip_rows));
    }
}

/* A strip that is multiplied by more panels than this is copied during the product with the first one: in
 * place, its rows may map to so few sets of the L1 cache that they evict each other. */
enum { MAX_PANELS_IN_PLACE = 4 };

static void run_strip(const job *x, int64_t i)
{
    const int64_t tiles = tiles_of(x, i);
    const bool in_place = load_strip(x, x->tile->i0 + i, tiles);
    const bool copy =
        in_place && tiles == 3 && x->n_steps > MAX_L1_STEPS && x->tile->n > MAX_PANELS_IN_PLACE * PANEL_COLS;
    bool uniform = is_uniform(x);
    for (int64_t j = 0; j < x->tile->n; j += PANEL_COLS) {
        run_block(x, i, j, uniform, copy && j == 0);
        if (copy && j == 0) {
            use_copy(x);
            uniform = is_uniform(x);
        }
    }
}

/* ---- Steps ---- */

/* Runs the steps gathered so far. */
static void run_chunk(job *x)
{
    pack_b(x);
    for (int64_t i = 0; i < x->tile->m && !agi_cancelled(x->tile->exec); i += x->strip_rows) {
        run_strip(x, i);
    }
    x->n_steps = x->n_b = 0;
    x->first = false;
}

/* Max steps of a chunk. Transposing A takes long; with shorter chunks, more columns of B fit and share
 * a transposed A. */
static int64_t max_steps_of(const agi_gemm_op *op)
{
    bool transposed = false;
    for (int p = 0; p < op->n_products; p++) {
        transposed |= op->products[p].a.transposed;
    }
    return transposed ? MAX_STEPS_TRANSPOSED : MAX_STEPS;
}

static bool is_large(const agi_gemm_op *op)
{
    int64_t elements = op->m * op->n;
    for (int p = 0; p < op->n_products; p++) {
        elements += agi_depth(&op->products[p]) * (op->m + op->n);
    }
    return elements > MAX_L2_ELEMENTS;
}

static int components_of(const agi_product *p)
{
    return p->a.dtype == AG_F32 || p->b.dtype == AG_F32 ? AMX_COMPONENTS : 1;
}

static void add_steps(job *x, const agi_product *p)
{
    const int n_components = components_of(p);
    for (int64_t k0 = 0; k0 < agi_depth(p); k0 += AMX_DEPTH) {
        for (int component = n_components - 1; component >= 0; component--) { /* the smallest first */
            if (x->n_steps == x->max_steps) {
                run_chunk(x);
            }
            const bool same_terms = x->n_steps > 0 && component < n_components - 1;
            const bool same_a = same_terms && p->a.dtype == AG_BF16,
                       same_b = same_terms && p->b.dtype == AG_BF16;
            const agi_amx_terms terms = {k0, agi_clamp(agi_depth(p) - k0, AMX_DEPTH), component};
            x->n_b += !same_b;
            x->steps[x->n_steps++] = (step){p, terms, same_a, same_b, x->n_b - 1};
        }
    }
}

/* ---- The table ---- */

static void run(const ag_plan *plan, const agi_gemm_op *op, const agi_gemm_tile *tile, void *memory)
{
    (void)plan;
    scratch *s = memory;
    job x = {.op = op, .tile = tile, .s = s, .first = true, .large = is_large(op)};
    x.max_steps = max_steps_of(op);
    /* of four AMX tiles of rows, two strips of two are faster than three and one */
    x.strip_rows = tile->m == STRIP + AMX_ROWS ? 2 * AMX_ROWS : STRIP;
    x.out = (output){.op = op, .tile = tile, .bias = find_bias(op), .bias_row = s->bias};
    compute_bias_row(&x.out);
    amx_config saved;
    amx_begin(&saved);
    for (int p = 0; p < op->n_products; p++) {
        if (&op->products[p] != x.out.bias) {
            add_steps(&x, &op->products[p]);
        }
    }
    x.last = true;
    run_chunk(&x);
    amx_end(&saved);
}

static size_t scratch_bytes(const ag_plan *plan)
{
    return plan->isa == AG_ISA_AMX ? sizeof(scratch) : 0;
}

/* AMX needs contiguous rows; one operand may be float32, as components. */
static bool is_readable(const agi_product *p)
{
    const bool a32 = p->a.dtype == AG_F32, b32 = p->b.dtype == AG_F32;
    return (a32 || p->a.dtype == AG_BF16) && (b32 || p->b.dtype == AG_BF16) && !(a32 && b32) &&
           p->a.col_stride == 1 && p->b.col_stride == 1;
}

static bool accepts(const ag_plan *plan, const agi_gemm_op *op)
{
    bool accepted = plan->isa == AG_ISA_AMX && (op->dtype == AG_BF16 || op->dtype == AG_F32);
    for (int p = 0; p < op->n_products && accepted; p++) {
        accepted = is_readable(&op->products[p]);
    }
    return accepted;
}

/* With this many rows or more, tiles consist of whole strips. Fewer rows are divided among threads more
 * evenly in smaller pieces. */
enum { MIN_ROWS_FOR_STRIPS = 16 * STRIP };

static void split(const ag_plan *plan, const agi_gemm_op *op, int64_t n_tiles, agi_gemm_tile *tile)
{
    (void)plan;
    const agi_product *const bias = find_bias(op);
    const int64_t max_steps = max_steps_of(op);
    int64_t all_steps = 0;
    for (int p = 0; p < op->n_products; p++) {
        const int64_t depth = &op->products[p] == bias ? 0 : agi_depth(&op->products[p]);
        all_steps += (depth + AMX_DEPTH - 1) / AMX_DEPTH * components_of(&op->products[p]);
    }
    const int64_t steps = agi_max(1, agi_min(max_steps, all_steps));
    const int64_t cols = agi_min(MAX_COLS, B_SIZE / (steps * AMX_DEPTH) / PANEL_COLS * PANEL_COLS);
    agi_tile_limits limits = {op->m, op->m < MIN_ROWS_FOR_STRIPS ? 2 * AMX_ROWS : STRIP, cols, PANEL_COLS};
    if (all_steps > max_steps) { /* C is summed in scratch */
        limits.max_m = C_SIZE / limits.max_n / STRIP * STRIP;
    }
    agi_split_evenly(op, n_tiles, &limits, tile);
}

const agi_gemm_impl agi_gemm_amx = {
    .accepts = accepts,
    .table = {.scratch = scratch_bytes, .split = split, .run = run},
};
