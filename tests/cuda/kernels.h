/* The kernels of src/cuda as functions of the processor: see emulated_kernels.cpp. */
#ifndef ATTNGRAD_TEST_CUDA_KERNELS_H
#define ATTNGRAD_TEST_CUDA_KERNELS_H

#include "cuda/kernel_list.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the threads of a block run: see src/cuda/emulate.h. EMULATE_SLOW: the last warps fall behind. */
enum { EMULATE_FORWARDS, EMULATE_BACKWARDS, EMULATE_SLOW, EMULATE_ORDERS };
void emulate_schedule(int late, int order);

/* Plants a fault, 0 to 6; returns its name, or NULL if there is none of this number. */
const char *emulate_plant(int fault);

/* The same for the verbs of Hopper: see src/cuda/hopper_emulate.h. */
const char *emulate_plant_hopper(int fault);

/* Launches of Hopper's kernels whose names begin so get a score feature (AGI_HAS_*) wrong; 0: none; WRONG_BIAS_TILE:
 * each tile of the bias that the copy engine brings is that of the next 64 keys; WRONG_TANGENT, in jvp: that of bias
 * and table. */
enum { WRONG_BIAS_TILE = 1 << 16, WRONG_TANGENT = 1 << 17 };
void emulate_plant_feature(uint32_t feature, const char *kernel);

/* What becomes of the classes of a mask's tiles once hopper_classes has made them. If all are mixed no tile is left
 * out, and each pair is tested. */
enum {
    CLASSES_AS_MADE,
    CLASSES_ALL_MIXED,
    CLASSES_MIXED_EMPTY,
    CLASSES_MIXED_FULL,
    CLASSES_FULL_EMPTY,
    CLASSES_EMPTY_FULL,
    CLASSES_KINDS
};
void emulate_change_classes(int kind);

/* What becomes of the lists of hopper_visits and hopper_second_visits once they are made: ranks are one too low, and
 * the second visitor of a tile stores instead of adding; the first visitor is the last one; nobody is; each list has
 * one step less; every step is full. Or hopper_statistics and hopper_second_statistics store no zeros in tiles that the
 * mask leaves to nobody. */
enum {
    VISITS_AS_MADE,
    VISITS_RANK_TOO_LOW,
    VISITS_FIRST_IS_LAST,
    VISITS_NONE_IS_LAST,
    VISITS_ONE_TOO_FEW,
    VISITS_ALL_FULL,
    VISITS_NO_ZEROS,
    VISITS_KINDS
};
void emulate_change_visits(int kind);

/* A tensor map as the emulation reads it. */
ag_status emulate_make_map(const void *ctx, const agi_cuda_box_view *view, agi_cuda_tensor_map *map);

/* How many of the kernels first to end - 1 have run so far; prints the names of the others. */
int emulate_report(int first, int end);

/* Runs a launch; the images are tried one after another until one has its kernel. */
ag_status emulate_launch_kernel(void *ctx, const agi_cuda_entry *launch);

#ifdef __cplusplus
}
#endif

#endif
