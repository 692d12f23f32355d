/* The layout of the layer's buffers: the workspace and the saved activations. A size is found by a dry run of the
 * layout. */
#include "nn/layer.h"

#include <string.h>

#include "core/status.h"
#include "core/structs.h"

static void *take_matrix(agi_arena *arena, int64_t rows, int64_t cols, ag_dtype dtype)
{
    return agi_take(arena, rows * cols, ag_dtype_size(dtype));
}

/* Q K V in this dtype, and C. */
static void take_heads(agi_activations *x, agi_arena *arena, const ag_layer *layer, ag_dtype dtype)
{
    const agi_weights *w = layer->projection;
    x->at[AGI_Q] = take_matrix(arena, layer->q_rows, w[AGI_Q].cols, dtype);
    x->at[AGI_K] = take_matrix(arena, layer->k_rows, w[AGI_K].cols, dtype);
    x->at[AGI_V] = take_matrix(arena, layer->k_rows, w[AGI_V].cols, dtype);
    x->at[AGI_O] = take_matrix(arena, layer->q_rows, w[AGI_O].rows, layer->plan->p.out_dtype);
}

void agi_activations_lay_out(agi_activations *x, agi_arena *arena, const ag_layer *layer, ag_saved which)
{
    const ag_problem *p = &layer->plan->p;
    take_heads(x, arena, layer, which == AG_SAVED ? p->dtype : p->grad_dtype);
    x->lse = which == AG_SAVED ? take_matrix(arena, layer->q_rows, p->heads, AG_F64) : NULL;
    x->o_low = which == AG_SAVED && layer->low_half
                   ? take_matrix(arena, layer->q_rows, layer->projection[AGI_O].rows, p->out_dtype)
                   : NULL;
}

/* The layer's jvp_jvp also runs attention's jvp. */
static size_t attention_bytes_of(const ag_plan *plan, agi_map map)
{
    const size_t bytes = plan->bytes[map], jvp = plan->bytes[AGI_JVP];
    return map == AGI_JVP_JVP && jvp > bytes ? jvp : bytes;
}

void agi_layer_lay_out(agi_layer_space *space, agi_arena *arena, const ag_layer *layer, agi_map map)
{
    agi_arena products = agi_arena_begin(NULL);
    agi_gemm_lay_out(&space->gemm, &products, layer->plan);
    const size_t products_bytes = agi_arena_bytes(&products);
    const size_t attention_bytes = attention_bytes_of(layer->plan, map);
    const size_t larger = products_bytes > attention_bytes ? products_bytes : attention_bytes;
    space->td = space->st = (agi_activations){.lse = NULL};
    if (map == AGI_VJP_JVP) {
        agi_activations_lay_out(&space->td, arena, layer, AG_D_SAVED);
    }
    if (map == AGI_JVP_JVP) {
        take_heads(&space->st, arena, layer, layer->plan->p.dtype);
    }
    space->attention_bytes = attention_bytes;
    space->attention = agi_take(arena, 1, larger);
    if (space->attention != NULL) {
        products = agi_arena_begin(space->attention);
        agi_gemm_lay_out(&space->gemm, &products, layer->plan);
    }
}

ag_tensor agi_heads_view(const ag_layer *layer, agi_projection which, const void *data)
{
    const ag_problem *p = &layer->plan->p;
    const bool of_keys = which == AGI_K || which == AGI_V;
    return ag_bnhd(data, of_keys ? p->kv_heads : p->heads, of_keys ? p->kv_len : p->q_len,
                   which == AGI_V || which == AGI_O ? p->dim_v : p->dim_qk);
}

/* The layout is [batch][row][head], like that of the heads themselves. */
ag_tensor agi_row_view(const ag_layer *layer, const double *lse)
{
    return ag_bnhd(lse, layer->plan->p.heads, layer->plan->p.q_len, 1);
}

ag_status agi_layer_size_buffers(ag_layer *layer)
{
    size_t largest = 0;
    for (agi_map map = AGI_FORWARD; map < AGI_N_MAPS; map++) {
        agi_layer_space space;
        agi_arena arena = agi_arena_begin(NULL);
        agi_layer_lay_out(&space, &arena, layer, map);
        layer->bytes[map] = agi_arena_bytes(&arena);
        largest = layer->bytes[map] > largest ? layer->bytes[map] : largest;
    }
    for (ag_saved which = AG_SAVED; which <= AG_D_SAVED; which++) {
        agi_activations x;
        agi_arena arena = agi_arena_begin(NULL);
        agi_activations_lay_out(&x, &arena, layer, which);
        layer->saved_bytes[which] = agi_arena_bytes(&arena);
        largest = layer->saved_bytes[which] > largest ? layer->saved_bytes[which] : largest;
    }
    return largest < SIZE_MAX
               ? AG_OK
               : agi_fail_field(AG_UNSUPPORTED, "desc", "the layer's buffers exceed all memory");
}

/* ---- Public ---- */

static ag_status check_which(const ag_layer *layer, ag_saved which, const char *call)
{
    if (layer == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, "layer", "%s: layer is NULL", call);
    }
    return which == AG_SAVED || which == AG_D_SAVED
               ? AG_OK
               : agi_fail_field(AG_INVALID_ARGUMENT, "which",
                                "%s: which is %d: must be AG_SAVED or AG_D_SAVED", call, (int)which);
}

ag_status ag_layer_saved(const ag_layer *layer, ag_saved which, size_t *bytes)
{
    ag_status status = check_which(layer, which, "ag_layer_saved");
    if (status == AG_OK && bytes == NULL) {
        status = agi_fail_field(AG_INVALID_ARGUMENT, "bytes", "ag_layer_saved: bytes is NULL");
    }
    if (status == AG_OK) {
        *bytes = layer->saved_bytes[which];
    }
    return status;
}

ag_status ag_layer_saved_views(const ag_layer *layer, ag_saved which, void *buffer, ag_saved_views *views)
{
    ag_status status = check_which(layer, which, "ag_layer_saved_views");
    if (status == AG_OK && buffer == NULL) {
        status = agi_fail_field(AG_INVALID_ARGUMENT, "buffer", "ag_layer_saved_views: buffer is NULL");
    }
    if (status != AG_OK) {
        return status;
    }
    agi_activations x;
    agi_arena arena = agi_arena_begin(buffer);
    agi_activations_lay_out(&x, &arena, layer, which);
    ag_saved_views found = {.q = agi_heads_view(layer, AGI_Q, x.at[AGI_Q]),
                            .k = agi_heads_view(layer, AGI_K, x.at[AGI_K]),
                            .v = agi_heads_view(layer, AGI_V, x.at[AGI_V]),
                            .o = agi_heads_view(layer, AGI_O, x.at[AGI_O])};
    if (which == AG_SAVED) {
        found.lse = agi_row_view(layer, x.lse);
        found.o_low = agi_heads_view(layer, AGI_O, x.o_low);
    }
    return agi_write_struct(views, &found, sizeof found, "views");
}

ag_status ag_layer_workspace(const ag_layer *layer, uint32_t maps, size_t *bytes)
{
    size_t attention = 0;
    if (layer == NULL || bytes == NULL) {
        return agi_fail_field(AG_INVALID_ARGUMENT, layer == NULL ? "layer" : "bytes",
                              "ag_layer_workspace: %s is NULL", layer == NULL ? "layer" : "bytes");
    }
    const ag_status status = ag_plan_workspace(layer->plan, maps, &attention);
    if (status == AG_OK) {
        *bytes = 0;
        for (int map = 0; map < AGI_N_MAPS; map++) {
            *bytes = maps >> map & 1 && layer->bytes[map] > *bytes ? layer->bytes[map] : *bytes;
        }
    }
    return status;
}
