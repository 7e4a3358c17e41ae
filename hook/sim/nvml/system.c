/* system.c: the host, and how its devices are found. The versions are numbers that programs can parse, with a text that
 * says that they are simulated. */
#include "library.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DRIVER "580.0-simulated"

/* Copies a text to the caller's buffer of that length. */
static nvmlReturn_t copy_text(char *to, unsigned length, const char *text)
{
    if (!to)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (length <= strlen(text))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, text);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return copy_text(version, length, DRIVER);
}

nvmlReturn_t sim_nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    return copy_text(version, length, "13." DRIVER);
}

nvmlReturn_t sim_nvmlSystemGetCudaDriverVersion(int *cudaDriverVersion)
{
    return STORE_NV(cudaDriverVersion, SIM_DRIVER_VERSION);
}

/* Returns the first word of a process's command line, truncated to the buffer. */
nvmlReturn_t sim_nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    char path[64];
    if (!name || !length)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NVML_ERROR_NOT_FOUND;
    ssize_t n = read(fd, name, length - 1);
    close(fd);
    name[n > 0 ? n : 0] = 0;
    return n > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t sim_nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
    return STORE_NV(deviceCount, sim_count());
}

nvmlReturn_t sim_nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (!device || index >= sim_count())
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = &sim_devices[index];
    return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    char own[SIM_UUID_BYTES];
    if (!uuid || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < sim_count(); i++) {
        sim_uuid(own, i);
        if (!strcmp(own, uuid)) {
            *device = &sim_devices[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

/* The format is domain:bus:device.function, in which the domain may be missing. */
nvmlReturn_t sim_nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
    unsigned domain = 0, bus, slot;
    if (!pciBusId || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(pciBusId, "%x:%x", &bus, &slot) != 2)
            return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (domain || bus != 1 || slot >= sim_count())
        return NVML_ERROR_NOT_FOUND;
    *device = &sim_devices[slot];
    return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    return copy_text(name, length, SIM_DEVICE_NAME);
}

nvmlReturn_t sim_nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    char own[SIM_UUID_BYTES];
    sim_uuid(own, (unsigned)device->index);
    return copy_text(uuid, length, own);
}
