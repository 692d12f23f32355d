/* The number that a file of this folder computes in. Files that include this are compiled twice: for
 * float32 (also float16 and bfloat16 problems, converted at the tiles' edges), and, with AGI_REAL64,
 * for float64. The names that such files share get an ending, so that the two can be linked together. */
#ifndef AGI_CPU_REAL_H
#define AGI_CPU_REAL_H

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef AGI_REAL64
typedef double real;
#define REAL(x) x##_f64
#define REAL_NAME(x) x##_f64
#define REAL_DTYPE AG_F64
#define REAL_MAX DBL_MAX
#define REAL_MIN DBL_MIN
#define REAL_EPSILON DBL_EPSILON
#define AGI_HAS_AMX 0 /* the unit computes in float32 alone */
#else
typedef float real;
#define REAL(x) x##_f32
#define REAL_NAME(x) x##_f32
#define REAL_DTYPE AG_F32
#define REAL_MAX FLT_MAX
#define REAL_MIN FLT_MIN
#define REAL_EPSILON FLT_EPSILON
#define AGI_HAS_AMX 1
#endif

#define agi_add_key_gradient REAL_NAME(agi_add_key_gradient)
#define agi_add_query_gradient REAL_NAME(agi_add_query_gradient)
#define agi_add_sums REAL_NAME(agi_add_sums)
#define agi_additive REAL_NAME(agi_additive)
#define agi_all_hidden REAL_NAME(agi_all_hidden)
#define agi_backward_lay_out REAL_NAME(agi_backward_lay_out)
#define agi_backward_run REAL_NAME(agi_backward_run)
#define agi_band_at REAL_NAME(agi_band_at)
#define agi_begin_sums REAL_NAME(agi_begin_sums)
#define agi_bias_is_full REAL_NAME(agi_bias_is_full)
#define agi_bias_needs_copy REAL_NAME(agi_bias_needs_copy)
#define agi_clean_rows REAL_NAME(agi_clean_rows)
#define agi_clear_around REAL_NAME(agi_clear_around)
#define agi_clear_sums REAL_NAME(agi_clear_sums)
#define agi_clip_keys REAL_NAME(agi_clip_keys)
#define agi_convert_rows REAL_NAME(agi_convert_rows)
#define agi_dropout_tile REAL_NAME(agi_dropout_tile)
#define agi_forward_tile REAL_NAME(agi_forward_tile)
#define agi_get_panel REAL_NAME(agi_get_panel)
#define agi_head_begin REAL_NAME(agi_head_begin)
#define agi_jvp_tile REAL_NAME(agi_jvp_tile)
#define agi_kernels_avx2 REAL_NAME(agi_kernels_avx2)
#define agi_kernels_avx512 REAL_NAME(agi_kernels_avx512)
#define agi_kernels_neon REAL_NAME(agi_kernels_neon)
#define agi_kernels_of REAL_NAME(agi_kernels_of)
#define agi_kernels_scalar REAL_NAME(agi_kernels_scalar)
#define agi_key_range REAL_NAME(agi_key_range)
#define agi_load_tile REAL_NAME(agi_load_tile)
#define agi_next_chunk REAL_NAME(agi_next_chunk)
#define agi_note_unseen REAL_NAME(agi_note_unseen)
#define agi_patch_product REAL_NAME(agi_patch_product)
#define agi_patch_of REAL_NAME(agi_patch_of)
#define agi_patch_weights REAL_NAME(agi_patch_weights)
#define agi_put_sums REAL_NAME(agi_put_sums)
#define agi_row_item REAL_NAME(agi_row_item)
#define agi_row_join REAL_NAME(agi_row_join)
#define agi_row_join_row REAL_NAME(agi_row_join_row)
#define agi_row_lay_out REAL_NAME(agi_row_lay_out)
#define agi_row_panel_of REAL_NAME(agi_row_panel_of)
#define agi_row_product REAL_NAME(agi_row_product)
#define agi_row_scores REAL_NAME(agi_row_scores)
#define agi_row_states REAL_NAME(agi_row_states)
#define agi_scale_and_put_rows REAL_NAME(agi_scale_and_put_rows)
#define agi_score_product REAL_NAME(agi_score_product)
#define agi_seen_rows REAL_NAME(agi_seen_rows)
#define agi_small_call REAL_NAME(agi_small_call)
#define agi_small_forward REAL_NAME(agi_small_forward)
#define agi_small_head REAL_NAME(agi_small_head)
#define agi_small_vjp REAL_NAME(agi_small_vjp)
#define agi_trim_hidden REAL_NAME(agi_trim_hidden)
#define agi_vjp_jvp_patch REAL_NAME(agi_vjp_jvp_patch)
#define agi_vjp_jvp_tile REAL_NAME(agi_vjp_jvp_tile)
#define agi_vjp_patch REAL_NAME(agi_vjp_patch)
#define agi_vjp_tile REAL_NAME(agi_vjp_tile)

#endif
