/* AG_INVARIANT in the layer: each sequence gives the same bits in a batch, padded and packed, in any order, as alone,
 * in every array that belongs to a sequence. Without the flag some of these bits differ: so the layer hands it over. */
#include "nn.h"

enum { BATCH = 6, SEED = 51 };

/* A layer, and the lengths of the sequences of its batch. */
typedef struct {
    const char *rest; /* the words of the problem that are not sizes */
    int64_t heads, kv_heads, d_model;
    int64_t n_q[BATCH], n_k[BATCH];
    int same; /* n_k is n_q, and one input serves all */
} invariant_case;

static const invariant_case cases[] = {
    {"f32 d16 causal", 4, 2, 24, {600, 580, 70, 600, 1, 0}, {64, 60, 64, 10, 3, 7}, 0},
    {"f32 d16 sink table=5", 4, 4, 24, {4, 1, 3, 4, 2, 4}, {4200, 4100, 2000, 4200, 30, 4200}, 0},
    {"bf16 d16", 4, 2, 320, {10, 600, 40, 23, 200, 17}, {0}, 1},
    {"bf16 d16 grad=f32 softcap=3", 2, 2, 48, {7, 300, 33, 24, 0, 100}, {5, 60, 40, 23, 10, 64}, 0},
    {"f16 d8 window=20,3", 2, 1, 40, {30, 500, 1, 40, 100, 64}, {0}, 1},
    {"f64 d8", 2, 1, 10, {300, 30, 1, 40, 100, 64}, {0}, 1},
};

enum { N_CASES = sizeof cases / sizeof cases[0] };

/* ---- Layers ---- */

static int64_t keys_of(const invariant_case *c, int b)
{
    return c->same ? c->n_q[b] : c->n_k[b];
}

static void make(nn_model *m, const invariant_case *c, const char *sizes, int32_t threads, uint32_t flags)
{
    char text[256];
    ag_options options = AG_OPTIONS_INIT;
    const nn_config config = {
        text, AG_LAYER_BIASES | (c->same ? (uint32_t)AG_LAYER_SELF : 0), c->d_model, 0, 0, 0, 0};
    options.threads = threads;
    options.flags = flags;
    snprintf(text, sizeof text, "h%d kv%d %s %s", (int)c->heads, (int)c->kv_heads, sizes, c->rest);
    nn_make_with(m, &config, &options, SEED);
}

/* A batch, and where its sequences are. */
typedef struct {
    nn_model m;
    int packed;
    int order[BATCH];           /* the sequence at each place */
    int64_t list[2][BATCH + 1]; /* of the queries, of the keys: lengths, or packed offsets */
    int64_t row[2][BATCH];      /* the first row of each place */
} batch;

/* Fills in order, lists and rows; sequence `first` has place 0. Sets the longest lengths and the sums of all lengths,
 * of the queries and of the keys, both with room for padding. */
static void place_sequences(batch *x, const invariant_case *c, int first, int64_t max[2], int64_t sum[2])
{
    for (int of = 0; of < 2; of++) {
        max[of] = sum[of] = 0;
        for (int place = 0; place < BATCH; place++) {
            const int b = x->order[place] = (first + place) % BATCH;
            const int64_t n = of == 0 ? c->n_q[b] : keys_of(c, b);
            x->row[of][place] = sum[of];
            sum[of] += n;
            max[of] = n > max[of] ? n : max[of];
            x->list[of][x->packed ? place + 1 : place] = x->packed ? sum[of] : n;
        }
        max[of] += 3;
        sum[of] += 3;
        for (int place = 0; place < BATCH && !x->packed; place++) {
            x->row[of][place] = place * max[of];
        }
    }
}

static void make_batch(batch *x, const invariant_case *c, int packed, int first, uint32_t flags)
{
    char sizes[128], total[64] = "";
    int64_t max[2], sum[2];
    *x = (batch){.packed = packed};
    place_sequences(x, c, first, max, sum);
    if (packed) {
        snprintf(total, sizeof total, "packed=%d,%d", (int)sum[0], (int)sum[1]);
    }
    snprintf(sizes, sizeof sizes, "b%d q%d k%d %s", BATCH, (int)max[0], (int)max[1], total);
    make(&x->m, c, sizes, 3, flags);
    *(packed ? &x->m.attention.q_packed : &x->m.attention.q_lengths) = x->list[0];
    *(packed ? &x->m.attention.k_packed : &x->m.attention.kv_lengths) = x->list[1];
}

/* ---- Rows ---- */

/* Bytes of a row of the array; its rows belong to queries (x_q, y) or to keys. */
static size_t row_bytes(const nn_model *m, int kind, int array)
{
    const ag_problem *p = m->p;
    const int packed = (p->flags & AG_PACKED) != 0, of_keys = array == X_K || array == X_V;
    const int64_t rows =
        of_keys ? (packed ? p->kv_total : p->batch * p->kv_len) : (packed ? p->q_total : p->batch * p->q_len);
    return (size_t)(m->count[array] / rows) * ag_dtype_size(m->dtype[kind][array]);
}

/* The rows of the array that the sequence at this place has. */
static char *rows_at(const batch *x, int place, int kind, int array)
{
    const int64_t row = x->row[array == X_K || array == X_V][place];
    return (char *)x->m.at[kind][array] + (size_t)row * row_bytes(&x->m, kind, array);
}

static size_t bytes_of(const nn_model *m, int kind, int array)
{
    return (size_t)m->count[array] * ag_dtype_size(m->dtype[kind][array]);
}

/* Gives the layer of one sequence the parameters, tables and rows of the batch. */
static void copy_inputs(nn_model *alone, const batch *x, int place)
{
    const int kinds[] = {VALUE, T, S};
    for (int array = 0; array < N_VARS; array++) {
        for (int n = 0; n < 3 && alone->count[array] > 0; n++) {
            const int kind = kinds[n];
            const void *from = array <= X_V ? rows_at(x, place, kind, array) : x->m.at[kind][array];
            memcpy(alone->at[kind][array], from, bytes_of(alone, kind, array));
        }
    }
    memcpy(alone->at[D][Y], rows_at(x, place, D, Y), bytes_of(alone, D, Y));
    memcpy(alone->at[TD][Y], rows_at(x, place, TD, Y), bytes_of(alone, TD, Y));
}

/* ---- Comparing ---- */

typedef struct {
    int kind, array;
} output;

static const output outputs[] = {{VALUE, Y}, {T, Y},   {S, Y},    {ST, Y},   {D, X_Q},
                                 {D, X_K},   {D, X_V}, {TD, X_Q}, {TD, X_K}, {TD, X_V}};

enum { N_OUTPUTS = sizeof outputs / sizeof outputs[0] };

/* How many arrays of the sequence at this place have other bits than alone. */
static int differing(const invariant_case *c, const batch *x, int place, uint32_t flags)
{
    const int b = x->order[place];
    char sizes[64];
    nn_model alone;
    int count = 0;
    snprintf(sizes, sizeof sizes, "b1 q%d k%d", (int)c->n_q[b], (int)keys_of(c, b));
    make(&alone, c, sizes, 2, flags);
    copy_inputs(&alone, x, place);
    nn_run_all(&alone);
    for (int o = 0; o < N_OUTPUTS; o++) {
        const int kind = outputs[o].kind, array = outputs[o].array;
        const int differs =
            alone.count[array] > 0 &&
            memcmp(alone.at[kind][array], rows_at(x, place, kind, array), bytes_of(&alone, kind, array)) != 0;
        CHECK(!differs || !(flags & AG_INVARIANT), "%s: %s of kind %d of sequence %d depends on its batch",
              c->rest, nn_names[array], kind, b);
        count += differs;
    }
    nn_free(&alone);
    return count;
}

static int check_batch(const invariant_case *c, int packed, int first, uint32_t flags)
{
    batch x;
    int count = 0;
    make_batch(&x, c, packed, first, flags);
    nn_run_all(&x.m);
    for (int place = 0; place < BATCH; place++) {
        count += c->n_q[x.order[place]] > 0 ? differing(c, &x, place, flags) : 0;
    }
    nn_free(&x.m);
    return count;
}

static int on_reference(void)
{
    nn_model m;
    ag_plan_info info = {.struct_size = sizeof info};
    make(&m, &cases[0], "q2", 1, 0);
    CHECK_OK(ag_plan_info_get(ag_layer_plan(m.layer), &info));
    nn_free(&m);
    return info.backend == AG_BACKEND_REFERENCE;
}

int main(void)
{
    for (int n = 0; n < N_CASES; n++) {
        check_batch(&cases[n], 0, 0, AG_INVARIANT);
        check_batch(&cases[n], 1, 2, AG_INVARIANT); /* from sequence 2 on, then 0 and 1 */
    }
    if (on_reference()) {
        printf("without the flag: not run, the reference does not look at the batch\n");
        return test_summary();
    }
    for (int n = 0; n < 2; n++) {
        CHECK(check_batch(&cases[n], 0, 0, 0) > 0, "%s: without the flag no bit depends on the batch",
              cases[n].rest);
    }
    return test_summary();
}
