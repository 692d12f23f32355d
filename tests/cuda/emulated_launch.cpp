/* Finds the emulated kernel of a launch and runs it. */
#define AGI_EMULATE
#include "kernels.h"
#include "cuda/hopper_emulate.h"
#include "emulated_launch.h"

static void (*runs[AGI_CUDA_N_KERNELS])(const agi_cuda_entry *launch);
static bool has_run[AGI_CUDA_N_KERNELS];

emulated_image::emulated_image(const emulated_kernel *kernels, size_t count)
{
    for (size_t n = 0; n < count; n++) {
        runs[kernels[n].kernel] = kernels[n].run;
    }
}

extern "C" void emulate_schedule(int late, int order)
{
    emulate_late = late != 0;
    emulate_backwards = order == EMULATE_BACKWARDS;
    emulate_slow = order == EMULATE_SLOW;
}

extern "C" void emulate_schedule_number(unsigned number)
{
    emulate_schedule(number & 1, (int)(number / 2 % EMULATE_ORDERS));
}

extern "C" const char *emulate_plant(int fault)
{
    static const char *const names[] = {"no fault",        "no barriers",         "no even barriers",
                                        "no odd barriers", "no waits for copies", "no zeros",
                                        "wrong lanes"};
    emulate_fault = fault;
    return fault < (int)(sizeof names / sizeof names[0]) ? names[fault] : nullptr;
}

extern "C" const char *emulate_plant_hopper(int fault)
{
    static const char *const names[] = {"no fault",
                                        "no waits for barriers in shared memory",
                                        "the wrong parity",
                                        "one arrival too few",
                                        "no zeros outside of a tensor",
                                        "no fences after plain stores",
                                        "one group of products is not waited for",
                                        "stored boxes are not waited for",
                                        "no named barriers",
                                        "no exchange of chunks",
                                        "no block waits for another",

                                        "slots of queries are filled too early"};
    emulate_fault = fault == 0 ? 0 : EMULATE_HOPPER_FAULTS + fault - 1;
    return fault < (int)(sizeof names / sizeof names[0]) ? names[fault] : nullptr;
}

static uint32_t wrong_feature;
static const char *wrong_kernel;

extern "C" void emulate_plant_feature(uint32_t feature, const char *kernel)
{
    wrong_feature = feature;
    wrong_kernel = kernel;
}

static void spoil_feature(agi_cuda_params &p, agi_hopper_features &x)
{
    switch (wrong_feature) {
    case AGI_HAS_SOFTCAP: x.minus_two_caps *= 0.5f; break;
    case AGI_HAS_RELATIVE: x.relative++; break;
    case AGI_HAS_BIAS: p.a.bias.strides[3] = 0; break;
    case AGI_HAS_MASK: p.a.mask.strides[2] = p.a.mask.strides[3] = 0; break;
    case WRONG_BIAS_TILE: break;
    case WRONG_TANGENT: p.a.tbias.strides[3] = 0; break;
    default: p.a.seed ^= 1; break;
    }
}
/* A map of the bias that has only its first keys, or begins with the second tile of them. */
static void spoil_bias(agi_cuda_tensor_map &map)
{
    agi_cuda_box_view *const view = (agi_cuda_box_view *)map.words;
    if (wrong_feature == AGI_HAS_BIAS) {
        view->size[3] = 8;
    } else if (wrong_feature == WRONG_BIAS_TILE) {
        view->data = (uint16_t *)view->data + 64;
        view->size[3] -= 64;
    }
}
template <class P> static void spoil_maps(P &)
{
}
template <> void spoil_maps(agi_hopper_forward &f)
{
    spoil_bias(f.bias);
}
template <> void spoil_maps(agi_hopper_ring &f)
{
    spoil_bias(f.bias);
}
template <> void spoil_maps(agi_hopper_jvp &f)
{
    if (wrong_feature != WRONG_TANGENT) {
        spoil_bias(f.bias);
    } else if (f.tbias_in_boxes) {
        ((agi_cuda_box_view *)f.o.words)->size[3] = 8;
    }
    f.relative_tangents += wrong_feature == WRONG_TANGENT && f.relative_tangents != nullptr;
}
template <class P> static void run_spoiled(const agi_cuda_entry *launch)
{
    P copy = *(const P *)launch->parameter;
    agi_cuda_entry other = *launch;
    other.parameter = &copy;
    spoil_feature(copy.p, copy.x);
    spoil_maps(copy);
    runs[launch->kernel](&other);
}

static int changed_classes;

extern "C" void emulate_change_classes(int kind)
{
    changed_classes = kind;
}

/* After hopper_classes. */
static void change_classes(const agi_hopper_features &x)
{
    enum { MIXED = AGI_TILE_SEEN | AGI_TILE_HIDDEN };
    static const uint8_t becomes[CLASSES_KINDS][4] = {{0, AGI_TILE_SEEN, AGI_TILE_HIDDEN, MIXED},
                                                      {MIXED, MIXED, MIXED, MIXED},
                                                      {0, AGI_TILE_SEEN, AGI_TILE_HIDDEN, AGI_TILE_HIDDEN},
                                                      {0, AGI_TILE_SEEN, AGI_TILE_HIDDEN, AGI_TILE_SEEN},
                                                      {0, AGI_TILE_HIDDEN, AGI_TILE_HIDDEN, MIXED},
                                                      {0, AGI_TILE_SEEN, AGI_TILE_SEEN, MIXED}};
    const int32_t *n = x.class_tiles;
    for (int64_t i = 0; i < (int64_t)n[0] * n[1] * n[2] * n[3]; i++) {
        x.classes[i] = becomes[changed_classes][x.classes[i]];
    }
}

static int changed_visits;

extern "C" void emulate_change_visits(int kind)
{
    changed_visits = kind;
}

/* A step's rank and flags: see VISIT_RANK and ring_note of the kernels. */
static void change_visit(agi_hopper_visit &visit)
{
    enum : uint32_t { LAST = 4, ALONE = 8, MIXED = 3 << 7, RANK = 1 << 9 };
    switch (changed_visits) {
    case VISITS_RANK_TOO_LOW: visit.about -= visit.about >= RANK ? (uint32_t)RANK : 0; break;
    case VISITS_FIRST_IS_LAST: visit.about = (visit.about & ~LAST) | (visit.about < RANK ? LAST : 0u); break;
    case VISITS_NONE_IS_LAST: visit.about &= ~(LAST | ALONE); break;
    case VISITS_ALL_FULL: visit.about &= ~MIXED; break;
    }
}
/* After hopper_visits and hopper_second_visits. */
template <class Call> static void change_visits(const Call &f)
{
    const int64_t lists = f.p.B * f.x.class_tiles[1] * f.key_blocks;
    for (int64_t n = 0; n < lists && changed_visits != VISITS_AS_MADE; n++) {
        agi_hopper_visit *visit = f.visits + n * f.most_visits;
        for (; visit->tile >= 0; visit++) {
            change_visit(*visit);
        }
        if (changed_visits == VISITS_ONE_TOO_FEW && visit > f.visits + n * f.most_visits) {
            visit[-1].tile = -1;
        }
    }
}
/* hopper_statistics and hopper_second_statistics that know nothing of the mask. */
template <class Call> static void run_without_classes(const agi_cuda_entry *launch)
{
    Call copy = *(const Call *)launch->parameter;
    agi_cuda_entry other = *launch;
    other.parameter = &copy;
    copy.x.classes = nullptr;
    runs[launch->kernel](&other);
}
static bool has_name(const agi_cuda_entry *launch, const char *name)
{
    return strncmp(agi_cuda_kernels[launch->kernel].name, name, strlen(name)) == 0;
}

extern "C" ag_status emulate_make_map(const void *, const agi_cuda_box_view *view, agi_cuda_tensor_map *map)
{
    static_assert(sizeof *view <= sizeof *map, "a tensor map of the emulation is its view");
    memcpy(map->words, view, sizeof *view);
    for (int64_t size : view->size) { /* as the driver does */
        if (size < 1) {
            return AG_DEVICE;
        }
    }
    return AG_OK;
}

extern "C" int emulate_report(int first, int end)
{
    int count = 0;
    for (int n = first; n < end; n++) {
        count += has_run[n];
        if (!has_run[n]) {
            printf("never run: %s\n", agi_cuda_kernels[n].name);
        }
    }
    return count;
}

extern "C" ag_status emulate_launch_kernel(void *, const agi_cuda_entry *launch)
{
    if (runs[launch->kernel] == nullptr) {
        fprintf(stderr, "no emulated kernel %s\n", agi_cuda_kernels[launch->kernel].name);
        return AG_UNSUPPORTED;
    }
    if (changed_visits == VISITS_NO_ZEROS && has_name(launch, "hopper_statistics")) {
        run_without_classes<agi_hopper_ring>(launch);
    } else if (changed_visits == VISITS_NO_ZEROS && has_name(launch, "hopper_second_statistics")) {
        run_without_classes<agi_hopper_second_ring>(launch);
    } else if (wrong_feature == 0 || !has_name(launch, wrong_kernel)) {
        runs[launch->kernel](launch);
    } else if (strcmp(wrong_kernel, "hopper_forward") == 0) {
        run_spoiled<agi_hopper_forward>(launch);
    } else if (strcmp(wrong_kernel, "hopper_jvp") == 0) {
        run_spoiled<agi_hopper_jvp>(launch);
    } else if (strcmp(wrong_kernel, "hopper_ring") == 0) {
        run_spoiled<agi_hopper_ring>(launch);
    } else if (strcmp(wrong_kernel, "hopper_second_ring") == 0) {
        run_spoiled<agi_hopper_second_ring>(launch);
    } else if (strcmp(wrong_kernel, "hopper_dbias") == 0) {
        run_spoiled<agi_hopper_dbias>(launch);
    } else {
        run_spoiled<agi_hopper_backward>(launch);
    }
    if (launch->kernel == agi_kernel_hopper_classes) {
        change_classes(((const agi_hopper_before *)launch->parameter)->x);
    }
    if (has_name(launch, "hopper_visits")) {
        change_visits(*(const agi_hopper_ring *)launch->parameter);
    }
    if (has_name(launch, "hopper_second_visits")) {
        change_visits(*(const agi_hopper_second_ring *)launch->parameter);
    }
    has_run[launch->kernel] = true;
    return AG_OK;
}
