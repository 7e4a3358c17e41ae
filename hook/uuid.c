/* uuid.c: the UUIDs of GPUs, from NVML. */
#include "uuid.h"

#include "loader.h"
#include "nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

/* Loads NVML if the program has not, and does not unload it, because the program may open it at the same
 * time. */
void gf_uuids(const unsigned *numbers, unsigned n, char (*uuids)[GF_UUID])
{
    int saved = errno;
    gf_loader_init();
    void *handle = gf_real_dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (handle) {
        nvmlReturn_t (*init)(void) = gf_real_dlsym(handle, "nvmlInit_v2");
        nvmlReturn_t (*shut)(void) = gf_real_dlsym(handle, "nvmlShutdown");
        nvmlReturn_t (*at)(unsigned int, nvmlDevice_t *) = gf_real_dlsym(handle, "nvmlDeviceGetHandleByIndex_v2");
        nvmlReturn_t (*uuid)(nvmlDevice_t, char *, unsigned int) = gf_real_dlsym(handle, "nvmlDeviceGetUUID");
        bool open = init && shut && at && uuid && init() == NVML_SUCCESS;
        for (unsigned i = 0; open && i < n; i++) {
            nvmlDevice_t device;
            char text[96];
            if (numbers[i] != UINT_MAX && at(numbers[i], &device) == NVML_SUCCESS && uuid(device, text, sizeof text) == NVML_SUCCESS &&
                strlen(text) < GF_UUID + 4 && strncmp(text, "GPU-", 4) == 0)
                strcpy(uuids[i], text + 4);
        }
        if (open)
            shut();
    }
    dlerror();
    errno = saved;
}
