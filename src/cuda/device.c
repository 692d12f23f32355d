/* Facts about the devices: see device.h. */
#include "cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "cuda/schedule.h"

ag_status agi_cuda_describe_device(const agi_cuda_driver *cu, CUdevice number, agi_cuda_device *device)
{
    int major = 0, minor = 0;
    CUresult result = cu->DeviceGetName(device->name, sizeof device->name, number);
    if (result == 0) {
        result = cu->DeviceGetAttribute(&major, AGI_CU_MAJOR, number);
    }
    if (result == 0) {
        result = cu->DeviceGetAttribute(&minor, AGI_CU_MINOR, number);
    }
    if (result == 0) {
        result = cu->DeviceGetAttribute(&device->shared_limit, AGI_CU_SHARED_LIMIT, number);
    }
    if (result == 0) {
        result = cu->DeviceGetAttribute(&device->processors, AGI_CU_PROCESSORS, number);
    }
    device->capability = 10 * major + minor;
    return result == 0 ? AG_OK : agi_cuda_fail(cu, result, "device");
}

ag_status agi_cuda_lower_limit(agi_cuda_device *device)
{
    enum { SMALLEST = AGI_CUDA_SHARED_SMALL }; /* every kernel for any head size fits it */
    const char *text = getenv("ATTNGRAD_CUDA_SHARED");
    if (text == NULL || *text == '\0') {
        return AG_OK;
    }
    char *end;
    const long bytes = strtol(text, &end, 10);
    if (*end != '\0' || bytes < SMALLEST || bytes > device->shared_limit) {
        return agi_fail_field(
            AG_INVALID_PROBLEM, "ATTNGRAD_CUDA_SHARED",
            "environment: ATTNGRAD_CUDA_SHARED is '%.40s': must be from %d to %d, the limit of %s", text,
            SMALLEST, device->shared_limit, device->name);
    }
    device->shared_limit = (int)bytes;
    return AG_OK;
}

/* ---- Tables of kernels ---- */

/* Portable kernels run from the lowest architecture on that they were compiled for, AGI_CUDA_LOWEST, whose PTX is in
 * the library; instructions of sm_90a on 9.0 alone, and blocks of vjp wait for each other, up to
 * AGI_HOPPER_RING_MOST of them. */
enum { PORTABLE_LOWEST = 80, HOPPER = 90 };

bool agi_cuda_device_runs(const agi_cuda_device *device, ag_isa isa)
{
    return isa == AG_ISA_SM90
               ? device->capability == HOPPER && device->processors >= AGI_HOPPER_RING_MOST
               : device->capability >= PORTABLE_LOWEST && device->capability >= AGI_CUDA_LOWEST;
}

ag_status agi_cuda_refuse_device(const agi_cuda_device *device, CUdevice number, ag_isa isa)
{
    const char *field = isa == AG_ISA_AUTO ? "options.device" : "options.isa";
    char reason[128];
    if (isa == AG_ISA_SM90 && device->capability == HOPPER) {
        snprintf(reason, sizeof reason, "%d multiprocessors: the kernels of sm90 need %d", device->processors,
                 AGI_HOPPER_RING_MOST);
    } else if (isa == AG_ISA_SM90) {
        snprintf(reason, sizeof reason, "compute capability %d.%d: the kernels of sm90 run on 9.0 alone",
                 device->capability / 10, device->capability % 10);
    } else if (device->capability < PORTABLE_LOWEST) {
        snprintf(reason, sizeof reason, "compute capability %d.%d: too old for the kernels, which need 8.0",
                 device->capability / 10, device->capability % 10);
    } else {
        snprintf(reason, sizeof reason, "compute capability %d.%d: this library was compiled for %s alone",
                 device->capability / 10, device->capability % 10, AGI_CUDA_TARGETS);
    }
    return agi_fail_field(AG_UNSUPPORTED, field, "cuda: device %d, %s, has %s", number, device->name, reason);
}

/* Does some device of this machine run it? In a forked process, which cannot know, a plan is refused later. */
static bool is_supported(ag_isa isa)
{
    const agi_cuda_driver *cu = agi_cuda_driver_if_any();
    agi_cuda_device device;
    bool found = agi_cuda_is_forked();
    for (int n = 0; cu != NULL && n < cu->n_devices && !found; n++) {
        found = agi_cuda_describe_device(cu, n, &device) == AG_OK && agi_cuda_device_runs(&device, isa);
    }
    return found;
}

/* The table sm90 is in the library if its images are; AGI_CUDA_HAS_HOPPER: 1 or 0. */
const agi_isa agi_cuda_isas[AGI_N_CUDA_ISAS] = {{AG_ISA_SM80, "sm80", true, is_supported},
                                                {AG_ISA_SM90, "sm90", AGI_CUDA_HAS_HOPPER, is_supported}};

/* ---- A list for people ---- */

enum { DEVICE_TEXT = 160 };

static void describe(const agi_cuda_driver *cu, CUdevice number, char text[DEVICE_TEXT])
{
    agi_cuda_device device;
    size_t bytes = 0;
    text[0] = '\0';
    if (agi_cuda_describe_device(cu, number, &device) == AG_OK && cu->DeviceTotalMem(&bytes, number) == 0) {
        snprintf(text, DEVICE_TEXT, "%d: %s, sm%d, %.0f GiB", number, device.name, device.capability,
                 (double)bytes / 0x1p30);
    }
}

/* As many as fit, and then how many do not. */
void agi_cuda_list_devices(char *text, size_t size)
{
    enum { MORE = 16 }; /* "; and 1234 more" */
    const agi_cuda_driver *cu = agi_cuda_driver_if_any();
    size_t used = 0;
    text[0] = '\0';
    for (int n = 0; cu != NULL && n < cu->n_devices; n++) {
        char device[DEVICE_TEXT];
        describe(cu, n, device);
        const size_t last = n == cu->n_devices - 1 ? 0 : MORE, length = strlen(device) + (used > 0 ? 2 : 0);
        if (used + length + last >= size) {
            snprintf(text + used, size - used, "; and %d more", cu->n_devices - n);
            return;
        }
        if (device[0] != '\0') {
            snprintf(text + used, size - used, "%s%s", used > 0 ? "; " : "", device);
            used += length;
        }
    }
}
