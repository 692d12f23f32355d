/* Everything about the layer that must be refused: the status, a message that names the field, and nothing written.
 * Also each allocation that may fail. */
#include "nn_refusals.h"

/* ---- Descriptions ---- */

static ag_problem problem_of(const char *text)
{
    ag_problem p = AG_PROBLEM_INIT;
    test_need(ag_problem_parse(text, &p) == AG_OK, text);
    return p;
}

static void refuse_desc(const char *text, ag_layer_desc d, ag_status wanted, const char *word, int line)
{
    ag_problem p = problem_of(text);
    ag_layer *layer = (ag_layer *)&p;
    d.struct_size = sizeof d;
    d.attention = &p;
    check_refused(ag_layer_create(&layer, &d, NULL), wanted, word, line);
    CHECK(layer == NULL, "line %d: layer is not NULL", line);
}

#define REFUSED_DESC(text, wanted, word, ...)                                                                \
    refuse_desc(text, (ag_layer_desc){.struct_size = 0, __VA_ARGS__}, wanted, word, __LINE__)

static void check_descriptions(void)
{
    const char *cross = "f32 b2 h2 q5 k6 d4", *same = "f32 b2 h2 q5 d4";
    const int64_t large = INT64_C(1) << 30;
    ag_layer *layer;
    ag_layer_desc d = AG_LAYER_DESC_INIT;
    REFUSED_DESC(same, AG_INVALID_PROBLEM, "flags", .flags = 1 << 7, .d_model = 8);
    REFUSED_DESC(same, AG_INVALID_PROBLEM, "exclude", .flags = AG_LAYER_SELF | AG_LAYER_SHARED_KV,
                 .d_model = 8);
    REFUSED_DESC(same, AG_INVALID_PROBLEM, "d_model is 0", .d_model = 0);
    REFUSED_DESC(same, AG_INVALID_PROBLEM, "d_model is -1", .d_model = -1);
    REFUSED_DESC(same, AG_INVALID_PROBLEM, "q_width", .d_model = 8, .q_width = -8);
    ABOUT("desc.q_width");
    REFUSED_DESC(same, AG_INVALID_PROBLEM, "k_width", .d_model = 8, .k_width = -8);
    REFUSED_DESC(same, AG_INVALID_PROBLEM, "v_width", .d_model = 8, .v_width = -8);
    REFUSED_DESC(same, AG_INVALID_PROBLEM, "v_width", .d_model = 8, .v_width = INT64_C(1) << 31);
    REFUSED_DESC(cross, AG_INVALID_PROBLEM, "rows", .flags = AG_LAYER_SELF, .d_model = 8);
    REFUSED_DESC("f32 b2 h2 q5 k6 d4 packed=8,8", AG_INVALID_PROBLEM, "kv_len", .flags = AG_LAYER_SELF,
                 .d_model = 8);
    REFUSED_DESC(same, AG_INVALID_PROBLEM, "k_width", .flags = AG_LAYER_SELF, .d_model = 8, .k_width = 7);
    REFUSED_DESC(same, AG_INVALID_PROBLEM, "v_width", .flags = AG_LAYER_SELF, .d_model = 8, .v_width = 7);
    REFUSED_DESC(cross, AG_INVALID_PROBLEM, "v_width", .flags = AG_LAYER_SHARED_KV, .d_model = 8,
                 .v_width = 7);
    REFUSED_DESC("f32 b1 h1 q1073741824 k1 d1", AG_INVALID_PROBLEM, "larger than memory", .d_model = large);
    ABOUT("desc");
    REFUSED(ag_layer_create(NULL, &d, NULL), AG_INVALID_ARGUMENT, "layer");
    REFUSED(ag_layer_create(&layer, NULL, NULL), AG_INVALID_PROBLEM, "desc");
    REFUSED(ag_layer_create(&layer, &d, NULL), AG_INVALID_PROBLEM, "attention");
    d.struct_size = 0;
    REFUSED(ag_layer_create(&layer, &d, NULL), AG_INVALID_PROBLEM, "struct_size");
    ag_problem bad = AG_PROBLEM_INIT;
    d = (ag_layer_desc)AG_LAYER_DESC_INIT;
    d.attention = &bad;
    d.d_model = 4;
    REFUSED(ag_layer_create(&layer, &d, NULL), AG_INVALID_PROBLEM, "dtype");
}

/* ---- Allocation ---- */

typedef struct {
    int left; /* allocations that succeed before one fails */
    int held; /* blocks not yet released */
} failing;

static void *fail_alloc(void *ctx, size_t size)
{
    failing *f = ctx;
    if (f->left-- == 0) {
        return NULL;
    }
    f->held++;
    return malloc(size);
}

static void fail_release(void *ctx, void *memory)
{
    ((failing *)ctx)->held--;
    free(memory);
}

static void check_allocation(void)
{
    ag_problem p = problem_of("f32 b2 h2 q5 d4 alibi");
    ag_layer_desc d = AG_LAYER_DESC_INIT;
    ag_options options = AG_OPTIONS_INIT;
    ag_status status = AG_NO_MEMORY;
    int allocations = 0;
    d.attention = &p;
    d.d_model = 8;
    options.alloc = fail_alloc;
    options.release = fail_release;
    for (; status == AG_NO_MEMORY && allocations < 100; allocations++) {
        failing f = {allocations, 0};
        ag_layer *layer = NULL;
        options.alloc_ctx = &f;
        status = ag_layer_create(&layer, &d, &options);
        CHECK((status == AG_OK) == (layer != NULL), "allocation %d: status %d, layer %p", allocations,
              (int)status, (void *)layer);
        ag_layer_destroy(layer);
        CHECK(f.held == 0, "allocation %d: %d blocks were not released", allocations, f.held);
    }
    CHECK(status == AG_OK && allocations == 5,
          "plan, slopes, backend data and layer: %d allocations, status %d", allocations - 1, (int)status);
}

/* ---- Calls ---- */

static const nn_config self = {"f32 b2 h2 q5 d4", AG_LAYER_SELF, 8, 0, 0, 0, 0};
static const nn_config cross = {"f32 b2 h2 q5 k6 d4 sink", AG_LAYER_BIASES, 8, 7, 6, 5, 0};
static const nn_config shared = {"f32 b2 h2 q5 k6 d4", AG_LAYER_SHARED_KV, 8, 7, 6, 0, 0};

/* A call after `change`: refused with a message that has `word`, and no output is written. */
static void refuse_call(const nn_config *c, uint32_t map, void (*change)(nn_model *m), ag_status wanted,
                        const char *word, int line)
{
    nn_model m, untouched;
    nn_make(&m, c, 1, 31);
    nn_make(&untouched, c, 1, 31);
    nn_run_all(&m);
    nn_run_all(&untouched);
    change(&m);
    check_refused(nn_run(&m, map), wanted, word, line);
    for (int kind = 0; kind < N_KINDS; kind++) {
        for (int array = 0; array < N_ARRAYS; array++) {
            for (int64_t i = 0; i < m.count[array]; i++) {
                if (nn_get(&m, kind, array, i) != nn_get(&untouched, kind, array, i)) {
                    CHECK(0, "line %d: %s of kind %d was written", line, nn_names[array], kind);
                    break;
                }
            }
        }
    }
    nn_free(&m);
    nn_free(&untouched);
}

#define REFUSED_CALL(c, map, change, wanted, word) refuse_call(&(c), map, change, wanted, word, __LINE__)

static void no_params(nn_model *m)
{
    m->a.params = NULL;
}
static void no_x_q(nn_model *m)
{
    m->a.x_q = NULL;
}
static void no_x_k(nn_model *m)
{
    m->a.x_k = NULL;
}
static void no_x_v(nn_model *m)
{
    m->a.x_v = NULL;
}
static void no_y(nn_model *m)
{
    m->a.y = NULL;
}
static void no_ty(nn_model *m)
{
    m->a.ty = NULL;
}
static void no_dy(nn_model *m)
{
    m->a.dy = NULL;
}
static void no_saved(nn_model *m)
{
    m->a.saved = NULL;
}
static void no_t_saved(nn_model *m)
{
    m->a.t_saved = NULL;
}
static void no_s_saved(nn_model *m)
{
    m->a.s_saved = NULL;
}
static void no_sty(nn_model *m)
{
    m->a.sty = NULL;
}
static void no_d_saved(nn_model *m)
{
    m->a.d_saved = NULL;
}
static void extra_x_k(nn_model *m)
{
    m->a.x_k = m->at[VALUE][X_Q];
}
static void extra_x_v(nn_model *m)
{
    m->a.x_v = m->at[VALUE][X_K];
}
static void extra_dx_k(nn_model *m)
{
    m->a.dx_k = m->at[D][X_Q];
}
static void extra_sx_k(nn_model *m)
{
    m->a.sx_k = m->at[S][X_Q];
}
static void misaligned_y(nn_model *m)
{
    m->a.y = (char *)m->a.y + 1;
}
static void misaligned_x(nn_model *m)
{
    m->a.x_q = (const char *)m->a.x_q + 2;
}
static void y_is_x(nn_model *m)
{
    m->a.y = m->at[VALUE][X_Q];
}
static void y_in_saved(nn_model *m)
{
    m->a.y = (char *)m->saved + 64;
}
static void y_in_workspace(nn_model *m)
{
    m->a.y = (char *)m->workspace + 64;
}
static void x_v_in_workspace(nn_model *m)
{
    m->a.x_v = m->workspace;
}
static void dx_twice(nn_model *m)
{
    m->a.dx_k = m->a.dx_q;
}
static void saved_is_t_saved(nn_model *m)
{
    m->a.t_saved = m->a.saved;
}
static void sty_is_sx(nn_model *m)
{
    m->a.sty = m->at[S][X_Q];
}
static void d_params_is_params(nn_model *m)
{
    m->a.d_params = m->at[VALUE][PARAMS];
}
static void unknown_bit(nn_model *m)
{
    m->a.accumulate = 1 << 11;
}
static void small_workspace(nn_model *m)
{
    m->bytes = 100;
}
static void no_args(nn_model *m)
{
    m->a.struct_size = 0;
}
static void own_q(nn_model *m)
{
    m->attention.q = ag_bhnd(m->saved, 1, 1, 1);
}
static void own_tdq(nn_model *m)
{
    m->attention.tdq = ag_bhnd(m->saved, 1, 1, 1);
}
static void own_low(nn_model *m)
{
    m->attention.o_low = ag_bhnd(m->saved, 1, 1, 1);
}
static void own_tangent_low(nn_model *m)
{
    m->attention.to_low = ag_bhnd(m->saved, 1, 1, 1);
}
static void own_second_tangent(nn_model *m)
{
    m->attention.sq = ag_bhnd(m->saved, 1, 1, 1);
}
static void own_nu(nn_model *m)
{
    m->attention.nu = ag_bhnd(m->saved, 1, 1, 1);
}
static void own_flag(nn_model *m)
{
    m->attention.flags = AG_GIVEN_O;
}
static void own_bit(nn_model *m)
{
    m->attention.accumulate = AG_ACC_DQ;
}
static void no_sink(nn_model *m)
{
    m->attention.sink.data = NULL;
}
static void bias_without_feature(nn_model *m)
{
    m->attention.bias = ag_bhnd(m->saved, 1, 1, 1);
}
static void bad_size(nn_model *m)
{
    m->attention.struct_size = 1;
}

static void bad_length(nn_model *m)
{
    static const int64_t lengths[2] = {5, 7};
    m->attention.kv_lengths = lengths;
}

static void check_calls(void)
{
    const uint32_t maps[] = {AG_MAP_FORWARD, AG_MAP_VJP, AG_MAP_JVP, AG_MAP_VJP_JVP, AG_MAP_JVP_JVP};
    for (int i = 0; i < 4; i++) { /* jvp_jvp does not read x */
        REFUSED_CALL(cross, maps[i], no_x_q, AG_INVALID_ARGUMENT, "x_q is NULL");
        REFUSED_CALL(cross, maps[i], no_x_k, AG_INVALID_ARGUMENT, "x_k is NULL");
        REFUSED_CALL(cross, maps[i], no_x_v, AG_INVALID_ARGUMENT, "x_v is NULL");
        REFUSED_CALL(self, maps[i], extra_x_k, AG_INVALID_ARGUMENT, "x_q serves");
        REFUSED_CALL(shared, maps[i], extra_x_v, AG_INVALID_ARGUMENT, "x_k serves");
        REFUSED_CALL(self, maps[i], misaligned_x, AG_INVALID_ARGUMENT, "not aligned");
    }
    for (int i = 0; i < 5; i++) {
        REFUSED_CALL(cross, maps[i], no_params, AG_INVALID_ARGUMENT, "params is NULL");
        REFUSED_CALL(cross, maps[i], no_saved, AG_INVALID_ARGUMENT, "saved is NULL");
        REFUSED_CALL(cross, maps[i], small_workspace, AG_WORKSPACE, "100 bytes");
        REFUSED_CALL(cross, maps[i], unknown_bit, AG_INVALID_ARGUMENT, "accumulate");
        REFUSED_CALL(cross, maps[i], no_args, AG_INVALID_ARGUMENT, "struct_size");
        REFUSED_CALL(cross, maps[i], own_q, AG_INVALID_ARGUMENT, "attention has q");
        ABOUT("attention.q");
        REFUSED_CALL(cross, maps[i], own_tdq, AG_INVALID_ARGUMENT, "attention has tdq");
        REFUSED_CALL(cross, maps[i], own_low, AG_INVALID_ARGUMENT, "attention has o_low");
        REFUSED_CALL(cross, maps[i], own_tangent_low, AG_INVALID_ARGUMENT, "attention has to_low");
        REFUSED_CALL(cross, maps[i], own_second_tangent, AG_INVALID_ARGUMENT, "attention has sq");
        REFUSED_CALL(cross, maps[i], own_nu, AG_INVALID_ARGUMENT, "attention has nu");
        REFUSED_CALL(cross, maps[i], own_flag, AG_INVALID_ARGUMENT, "flags of attention is 0x1");
        ABOUT("attention.flags");
        REFUSED_CALL(cross, maps[i], own_bit, AG_INVALID_ARGUMENT, "accumulate of attention");
        REFUSED_CALL(cross, maps[i], no_sink, AG_INVALID_ARGUMENT, "sink is NULL");
        ABOUT("attention.sink");
        REFUSED_CALL(cross, maps[i], bias_without_feature, AG_INVALID_ARGUMENT, "bias is given");
        REFUSED_CALL(cross, maps[i], bad_size, AG_INVALID_ARGUMENT, "attention");
        REFUSED_CALL(cross, maps[i], bad_length, AG_INVALID_ARGUMENT, "kv_lengths[1] is 7");
    }
    REFUSED_CALL(cross, AG_MAP_FORWARD, no_y, AG_INVALID_ARGUMENT, "y is NULL");
    REFUSED_CALL(cross, AG_MAP_JVP, no_ty, AG_INVALID_ARGUMENT, "ty is NULL");
    REFUSED_CALL(cross, AG_MAP_JVP, no_t_saved, AG_INVALID_ARGUMENT, "t_saved is NULL");
    REFUSED_CALL(cross, AG_MAP_VJP_JVP, no_t_saved, AG_INVALID_ARGUMENT, "t_saved is NULL");
    REFUSED_CALL(cross, AG_MAP_JVP_JVP, no_t_saved, AG_INVALID_ARGUMENT, "t_saved is NULL");
    REFUSED_CALL(cross, AG_MAP_JVP_JVP, no_s_saved, AG_INVALID_ARGUMENT, "s_saved is NULL");
    REFUSED_CALL(cross, AG_MAP_JVP_JVP, no_sty, AG_INVALID_ARGUMENT, "sty is NULL");
    REFUSED_CALL(self, AG_MAP_JVP_JVP, extra_sx_k, AG_INVALID_ARGUMENT, "sx_k is given");
    REFUSED_CALL(self, AG_MAP_JVP_JVP, sty_is_sx, AG_INVALID_ARGUMENT, "overlaps input sx_q");
    REFUSED_CALL(cross, AG_MAP_VJP, no_d_saved, AG_INVALID_ARGUMENT, "d_saved is NULL");
    REFUSED_CALL(cross, AG_MAP_VJP_JVP, no_d_saved, AG_INVALID_ARGUMENT, "d_saved is NULL");
    REFUSED_CALL(cross, AG_MAP_VJP, no_dy, AG_INVALID_ARGUMENT, "dy is NULL");
    REFUSED_CALL(cross, AG_MAP_VJP_JVP, no_dy, AG_INVALID_ARGUMENT, "dy is NULL");
    REFUSED_CALL(self, AG_MAP_VJP, extra_dx_k, AG_INVALID_ARGUMENT, "dx_k is given");
    REFUSED_CALL(self, AG_MAP_FORWARD, misaligned_y, AG_INVALID_ARGUMENT, "not aligned");
    REFUSED_CALL(self, AG_MAP_FORWARD, y_is_x, AG_INVALID_ARGUMENT, "overlaps input x_q");
    REFUSED_CALL(self, AG_MAP_FORWARD, y_in_saved, AG_INVALID_ARGUMENT, "overlaps output saved");
    REFUSED_CALL(self, AG_MAP_FORWARD, y_in_workspace, AG_INVALID_ARGUMENT, "y at");
    REFUSED_CALL(cross, AG_MAP_VJP, x_v_in_workspace, AG_INVALID_ARGUMENT, "overlaps the workspace");
    REFUSED_CALL(cross, AG_MAP_VJP, dx_twice, AG_INVALID_ARGUMENT, "overlaps output dx_");
    REFUSED_CALL(cross, AG_MAP_VJP, d_params_is_params, AG_INVALID_ARGUMENT, "overlaps");
    REFUSED_CALL(cross, AG_MAP_JVP, saved_is_t_saved, AG_INVALID_ARGUMENT, "overlaps");
}

static void check_exec_and_null(void)
{
    nn_model m;
    ag_exec exec = AG_EXEC_INIT;
    exec.reserved = 1;
    nn_make(&m, &self, 1, 32);
    REFUSED(ag_layer_forward(NULL, &m.a, NULL, m.workspace, m.bytes), AG_INVALID_ARGUMENT, "layer is NULL");
    REFUSED(ag_layer_vjp(m.layer, NULL, NULL, m.workspace, m.bytes), AG_INVALID_ARGUMENT, "args is NULL");
    REFUSED(ag_layer_jvp(m.layer, &m.a, NULL, NULL, m.bytes), AG_WORKSPACE, "workspace");
    REFUSED(ag_layer_forward(m.layer, &m.a, &exec, m.workspace, m.bytes), AG_INVALID_ARGUMENT, "exec");
    ABOUT("exec.reserved");
    nn_free(&m);
}

static void check_queries(void)
{
    nn_model m;
    size_t bytes = 0;
    ag_param_view view = AG_PARAM_VIEW_INIT;
    ag_saved_views views = {.struct_size = sizeof views};
    float x = 0;
    nn_make(&m, &self, 1, 33);
    REFUSED(ag_layer_param(NULL, 0, &view), AG_INVALID_ARGUMENT, "layer");
    REFUSED(ag_layer_param(m.layer, -1, &view), AG_INVALID_ARGUMENT, "index is -1");
    REFUSED(ag_layer_param(m.layer, 4, &view), AG_INVALID_ARGUMENT, "index is 4");
    REFUSED(ag_layer_param(m.layer, 0, NULL), AG_INVALID_ARGUMENT, "view");
    view.struct_size = 0;
    REFUSED(ag_layer_param(m.layer, 0, &view), AG_INVALID_ARGUMENT, "struct_size");
    REFUSED(ag_layer_saved(NULL, AG_SAVED, &bytes), AG_INVALID_ARGUMENT, "layer");
    REFUSED(ag_layer_saved(m.layer, 2, &bytes), AG_INVALID_ARGUMENT, "which is 2");
    REFUSED(ag_layer_saved(m.layer, AG_SAVED, NULL), AG_INVALID_ARGUMENT, "bytes");
    REFUSED(ag_layer_saved_views(m.layer, -1, m.saved, &views), AG_INVALID_ARGUMENT, "which is -1");
    REFUSED(ag_layer_saved_views(m.layer, AG_SAVED, NULL, &views), AG_INVALID_ARGUMENT, "buffer");
    REFUSED(ag_layer_saved_views(m.layer, AG_SAVED, m.saved, NULL), AG_INVALID_ARGUMENT, "views");
    REFUSED(ag_layer_workspace(NULL, AG_MAP_VJP, &bytes), AG_INVALID_ARGUMENT, "layer");
    REFUSED(ag_layer_workspace(m.layer, AG_MAP_VJP, NULL), AG_INVALID_ARGUMENT, "bytes");
    REFUSED(ag_layer_workspace(m.layer, 0, &bytes), AG_INVALID_ARGUMENT, "maps");
    ABOUT("maps");
    REFUSED(ag_layer_workspace(m.layer, 2 * AG_MAP_JVP_JVP, &bytes), AG_INVALID_ARGUMENT, "maps");
    REFUSED(ag_layer_init(NULL, AG_INIT_NORMAL, 0, &x, AG_F32), AG_INVALID_ARGUMENT, "layer");
    REFUSED(ag_layer_init(m.layer, AG_INIT_NORMAL, 0, NULL, AG_F32), AG_INVALID_ARGUMENT, "params");
    REFUSED(ag_layer_init(m.layer, 2, 0, &x, AG_F32), AG_INVALID_ARGUMENT, "how is 2");
    REFUSED(ag_layer_init(m.layer, AG_INIT_NORMAL, 0, &x, 0), AG_INVALID_ARGUMENT, "dtype is 0");
    CHECK(ag_layer_plan(NULL) == NULL && ag_layer_size(NULL) == 0 && ag_layer_param_count(NULL) == 0,
          "NULL layer");
    ag_layer_destroy(NULL);
    nn_free(&m);
}

int main(void)
{
    check_descriptions();
    check_allocation();
    check_calls();
    check_exec_and_null();
    check_queries();
    return test_summary();
}
