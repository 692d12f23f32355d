/* Loads embedded images and finds kernels in them: see images.h. */
#include "cuda/images.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"

enum { MAX_IMAGES = 64 };

/* Written by the build into images.S; ended by a NULL. */
typedef struct {
    const char *family;
    const void *bytes;
} image;
extern const image agi_cuda_images[];

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static CUlibrary libraries[MAX_IMAGES]; /* of agi_cuda_images; NULL: not loaded yet */

/* Returns -1 if there is none. */
static int image_of(const char *family)
{
    for (int i = 0; i < MAX_IMAGES && agi_cuda_images[i].family != NULL; i++) {
        if (strcmp(agi_cuda_images[i].family, family) == 0) {
            return i;
        }
    }
    return -1;
}

static CUresult load(const agi_cuda_driver *cu, int index, CUlibrary *library)
{
    CUresult result = 0;
    pthread_mutex_lock(&loading);
    if (libraries[index] == NULL) {
        result = cu->LibraryLoadData(&libraries[index], agi_cuda_images[index].bytes, NULL, NULL, 0, NULL,
                                     NULL, 0);
    }
    *library = libraries[index];
    pthread_mutex_unlock(&loading);
    return result;
}

ag_status agi_cuda_find_kernel(const agi_cuda_driver *cu, const char *family, const char *name,
                               CUkernel *kernel)
{
    CUlibrary library;
    char what[96];
    const int index = image_of(family);
    if (index < 0) {
        return agi_fail(AG_UNSUPPORTED, "cuda: this library has no image of the kernels %s", family);
    }
    snprintf(what, sizeof what, "image %s, kernel %s", family, name);
    CUresult result = load(cu, index, &library);
    if (result == 0) {
        result = cu->LibraryGetKernel(kernel, library, name);
    }
    return result == 0 ? AG_OK : agi_cuda_fail(cu, result, what);
}
