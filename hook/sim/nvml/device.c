/* device.c: the properties and the activity of a device, from the state that its processes share. */
#include "library.h"

#include <stdio.h>
#include <string.h>

#define MHZ_SM 1410u /* the same as in cuDeviceGetAttribute */
#define MHZ_MEM 1215u
#define CELSIUS 40u /* constant */

nvmlReturn_t sim_nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    return STORE_NV(index, (unsigned)device->index);
}

nvmlReturn_t sim_nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    *pci = (nvmlPciInfo_t){.bus = 1, .device = (unsigned)device->index};
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:01:%02x.0", pci->device & 0xff);
    snprintf(pci->busId, sizeof pci->busId, "00000000:01:%02x.0", pci->device & 0xff);
    return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    if (!major || !minor)
        return NVML_ERROR_INVALID_ARGUMENT;
    *major = 8;
    *minor = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
    if (!currentMode || !pendingMode)
        return NVML_ERROR_INVALID_ARGUMENT;
    *currentMode = *pendingMode = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct sight s;
    nvmlReturn_t r = memory ? sim_read(device, &s) : NVML_ERROR_INVALID_ARGUMENT;
    if (r == NVML_SUCCESS)
        *memory = (nvmlMemory_t){.total = s.total, .free = s.total - s.used, .used = s.used};
    return r;
}

nvmlReturn_t sim_nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t all;
    if (memory && memory->version != NVML_VERSION(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t r = memory ? sim_nvmlDeviceGetMemoryInfo(device, &all) : NVML_ERROR_INVALID_ARGUMENT;
    if (r != NVML_SUCCESS)
        return r;
    memory->total = all.total;
    memory->reserved = 0;
    memory->free = all.free;
    memory->used = all.used;
    return r;
}

/* ---- processes ---- */

enum { COMPUTE, GRAPHICS, MPS };

/* Returns the next process of a kind in *u; false after the last. MPS clients are also listed as compute processes. */
static bool next_process(const struct sight *s, int kind, unsigned *at, struct user *u)
{
    while (kind != GRAPHICS && *at < s->n) {
        *u = s->user[(*at)++];
        if (kind == COMPUTE || u->mps)
            return true;
    }
    return false;
}

/* Fills the program's list of one kind; `more` sets further fields of an entry. */
#define LIST(device, kind, count, infos, more)                                          \
    struct sight s;                                                                     \
    struct user u;                                                                      \
    if (!(count))                                                                       \
        return NVML_ERROR_INVALID_ARGUMENT;                                             \
    nvmlReturn_t r = sim_read(device, &s);                                               \
    if (r != NVML_SUCCESS)                                                              \
        return r;                                                                       \
    unsigned room = (infos) ? *(count) : 0, n = 0;                                      \
    for (unsigned at = 0; next_process(&s, kind, &at, &u); n++) {                               \
        if (n >= room)                                                                  \
            continue;                                                                   \
        memset(&(infos)[n], 0, sizeof *(infos));                                        \
        (infos)[n].pid = u.pid;                                                         \
        (infos)[n].usedGpuMemory = u.mem;                                               \
        more((infos)[n]);                                                               \
    }                                                                                   \
    *(count) = n;                                                                       \
    return n <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;

#define NOTHING(entry)
#define NO_MIG(entry) (entry).gpuInstanceId = (entry).computeInstanceId = NVML_NO_INSTANCE

#define RUNNING(name, kind, info, more)                                                                          \
    nvmlReturn_t sim_nvmlDeviceGet##name(nvmlDevice_t device, unsigned int *infoCount, info *infos)             \
    {                                                                                                           \
        LIST(device, kind, infoCount, infos, more)                                                              \
    }
#define LISTS(name, kind)                                              \
    RUNNING(name##RunningProcesses, kind, nvmlProcessInfo_v1_t, NOTHING) \
    RUNNING(name##RunningProcesses_v2, kind, nvmlProcessInfo_t, NO_MIG)  \
    RUNNING(name##RunningProcesses_v3, kind, nvmlProcessInfo_t, NO_MIG)
LISTS(Compute, COMPUTE)
LISTS(Graphics, GRAPHICS)
LISTS(MPSCompute, MPS)

nvmlReturn_t sim_nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *plist)
{
    if (!plist || plist->mode > MPS)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (plist->version != NVML_VERSION(nvmlProcessDetailList_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    LIST(device, (int)plist->mode, &plist->numProcArrayEntries, plist->procArray, NO_MIG)
}

/* ---- activity ---- */

/* Fills the program's list with the utilization of each active process. A sample ends at the time of the call, so each
 * one is new. */
#define SAMPLES(device, count, infos)                                                   \
    struct sight s;                                                                     \
    nvmlReturn_t r = sim_read(device, &s);                                               \
    if (r != NVML_SUCCESS)                                                              \
        return r;                                                                       \
    unsigned room = (infos) ? *(count) : 0, n = 0;                                      \
    for (unsigned i = 0; i < s.n; i++) {                                                \
        if (!s.user[i].busy || n++ >= room)                                             \
            continue;                                                                   \
        memset(&(infos)[n - 1], 0, sizeof *(infos));                                    \
        (infos)[n - 1].pid = s.user[i].pid;                                             \
        (infos)[n - 1].timeStamp = s.at / 1000;                                         \
        (infos)[n - 1].smUtil = s.user[i].busy;                                         \
    }                                                                                   \
    *(count) = n;                                                                       \
    return !n ? NVML_ERROR_NOT_FOUND : n <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;

nvmlReturn_t sim_nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
                                                 unsigned int *processSamplesCount, unsigned long long lastSeenTimeStamp)
{
    if (!processSamplesCount)
        return NVML_ERROR_INVALID_ARGUMENT;
    SAMPLES(device, processSamplesCount, utilization)
}

nvmlReturn_t sim_nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                       nvmlProcessesUtilizationInfo_t *procesesUtilInfo)
{
    if (!procesesUtilInfo)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (procesesUtilInfo->version != NVML_VERSION(nvmlProcessesUtilizationInfo_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SAMPLES(device, &procesesUtilInfo->processSamplesCount, procesesUtilInfo->procUtilArray)
}

/* Ended processes are not recorded. */
nvmlReturn_t sim_nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t sim_nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats)
{
    return NVML_ERROR_NOT_SUPPORTED;
}

/* The utilization of memory is not simulated, and stays 0. */
nvmlReturn_t sim_nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    struct sight s;
    nvmlReturn_t r = utilization ? sim_read(device, &s) : NVML_ERROR_INVALID_ARGUMENT;
    if (r == NVML_SUCCESS)
        *utilization = (nvmlUtilization_t){.gpu = s.busy};
    return r;
}

nvmlReturn_t sim_nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power)
{
    struct sight s;
    nvmlReturn_t r = power ? sim_read(device, &s) : NVML_ERROR_INVALID_ARGUMENT;
    if (r == NVML_SUCCESS)
        *power = SIM_POWER_IDLE + (SIM_POWER_MOST - SIM_POWER_IDLE) / 100 * s.busy;
    return r;
}

nvmlReturn_t sim_nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *minLimit, unsigned int *maxLimit)
{
    if (!minLimit || !maxLimit)
        return NVML_ERROR_INVALID_ARGUMENT;
    *minLimit = *maxLimit = SIM_POWER_MOST;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetTemperature(nvmlDevice_t device, int sensorType, unsigned int *temp)
{
    if (!temp || sensorType != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *temp = CELSIUS;
    return NVML_SUCCESS;
}

/* type: graphics, SM, memory, video. */
nvmlReturn_t sim_nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *clock)
{
    if (!clock || type < 0 || type > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    *clock = type == 2 ? MHZ_MEM : MHZ_SM;
    return NVML_SUCCESS;
}
