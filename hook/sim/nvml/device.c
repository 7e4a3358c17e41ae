/* device.c: what a device is and does, as the processes on it have it written down. */
#include "library.h"

#include <stdio.h>
#include <string.h>

#define MHZ_SM 1410u /* what cuDeviceGetAttribute says too */
#define MHZ_MEM 1215u
#define CELSIUS 40u /* at all times: nothing here gets warm */

nvmlReturn_t sim_nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    if (!index)
        return NVML_ERROR_INVALID_ARGUMENT;
    *index = (unsigned)device->index;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minorNumber)
{
    return sim_nvmlDeviceGetIndex(device, minorNumber);
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
    (void)device;
    if (!major || !minor)
        return NVML_ERROR_INVALID_ARGUMENT;
    *major = 8;
    *minor = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
    (void)device;
    if (!currentMode || !pendingMode)
        return NVML_ERROR_INVALID_ARGUMENT;
    *currentMode = *pendingMode = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct sight s;
    nvmlReturn_t r = memory ? sim_see(device, &s) : NVML_ERROR_INVALID_ARGUMENT;
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

/* Those of a kind, to be called until it answers false. Clients of MPS are among
 * those that compute, and listed apart too. */
static bool next(const struct sight *s, int kind, unsigned *at, struct user *u)
{
    while (kind != GRAPHICS && *at < s->n) {
        *u = s->user[(*at)++];
        if (kind == COMPUTE || u->mps)
            return true;
    }
    return false;
}

/* Fills in one list of one kind: `more` gives the entry its further fields. */
#define LIST(device, kind, count, infos, more)                                          \
    struct sight s;                                                                     \
    struct user u;                                                                      \
    if (!(count))                                                                       \
        return NVML_ERROR_INVALID_ARGUMENT;                                             \
    nvmlReturn_t r = sim_see(device, &s);                                               \
    if (r != NVML_SUCCESS)                                                              \
        return r;                                                                       \
    unsigned room = (infos) ? *(count) : 0, n = 0;                                      \
    for (unsigned at = 0; next(&s, kind, &at, &u); n++) {                               \
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

static nvmlReturn_t list_v1(nvmlDevice_t device, int kind, unsigned *infoCount, nvmlProcessInfo_v1_t *infos)
{
    LIST(device, kind, infoCount, infos, NOTHING)
}

static nvmlReturn_t list(nvmlDevice_t device, int kind, unsigned *infoCount, nvmlProcessInfo_t *infos)
{
    LIST(device, kind, infoCount, infos, NO_MIG)
}

static nvmlReturn_t list_details(nvmlDevice_t device, int kind, unsigned *count, nvmlProcessDetail_v1_t *infos)
{
    LIST(device, kind, count, infos, NO_MIG)
}

#define LISTS(name, kind)                                                                                      \
    nvmlReturn_t sim_nvmlDeviceGet##name##RunningProcesses(nvmlDevice_t device, unsigned int *infoCount,       \
                                                           nvmlProcessInfo_v1_t *infos)                        \
    {                                                                                                          \
        return list_v1(device, kind, infoCount, infos);                                                        \
    }                                                                                                          \
    nvmlReturn_t sim_nvmlDeviceGet##name##RunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount,    \
                                                              nvmlProcessInfo_t *infos)                        \
    {                                                                                                          \
        return list(device, kind, infoCount, infos);                                                           \
    }                                                                                                          \
    nvmlReturn_t sim_nvmlDeviceGet##name##RunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,    \
                                                              nvmlProcessInfo_t *infos)                        \
    {                                                                                                          \
        return list(device, kind, infoCount, infos);                                                           \
    }
LISTS(Compute, COMPUTE)
LISTS(Graphics, GRAPHICS)
LISTS(MPSCompute, MPS)

nvmlReturn_t sim_nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *plist)
{
    if (!plist || plist->mode > MPS)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (plist->version != NVML_VERSION(nvmlProcessDetailList_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return list_details(device, (int)plist->mode, &plist->numProcArrayEntries, plist->procArray);
}

/* ---- what it does ---- */

/* Fills in what each process did, of those that did something. A sample is of the time up
 * to when it is asked for, so that each is new. */
#define SAMPLES(device, count, infos)                                                   \
    struct sight s;                                                                     \
    nvmlReturn_t r = sim_see(device, &s);                                               \
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
    (void)lastSeenTimeStamp;
    if (!processSamplesCount)
        return NVML_ERROR_INVALID_ARGUMENT;
    SAMPLES(device, processSamplesCount, utilization)
}

nvmlReturn_t sim_nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *procesesUtilInfo)
{
    if (!procesesUtilInfo)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (procesesUtilInfo->version != NVML_VERSION(nvmlProcessesUtilizationInfo_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SAMPLES(device, &procesesUtilInfo->processSamplesCount, procesesUtilInfo->procUtilArray)
}

/* Of processes that have ended nobody keeps anything. */
nvmlReturn_t sim_nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
    (void)device, (void)count, (void)pids;
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t sim_nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats)
{
    (void)device, (void)pid, (void)stats;
    return NVML_ERROR_NOT_SUPPORTED;
}

/* How busy its memory is nobody measures. */
nvmlReturn_t sim_nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    struct sight s;
    nvmlReturn_t r = utilization ? sim_see(device, &s) : NVML_ERROR_INVALID_ARGUMENT;
    if (r == NVML_SUCCESS)
        *utilization = (nvmlUtilization_t){.gpu = s.busy};
    return r;
}

nvmlReturn_t sim_nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power)
{
    struct sight s;
    nvmlReturn_t r = power ? sim_see(device, &s) : NVML_ERROR_INVALID_ARGUMENT;
    if (r == NVML_SUCCESS)
        *power = SIM_POWER_IDLE + (SIM_POWER_MOST - SIM_POWER_IDLE) / 100 * s.busy;
    return r;
}

nvmlReturn_t sim_nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *minLimit, unsigned int *maxLimit)
{
    (void)device;
    if (!minLimit || !maxLimit)
        return NVML_ERROR_INVALID_ARGUMENT;
    *minLimit = *maxLimit = SIM_POWER_MOST;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetTemperature(nvmlDevice_t device, int sensorType, unsigned int *temp)
{
    (void)device;
    if (!temp || sensorType != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *temp = CELSIUS;
    return NVML_SUCCESS;
}

/* Graphics, SM, memory, video. */
nvmlReturn_t sim_nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *clock)
{
    (void)device;
    if (!clock || type < 0 || type > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    *clock = type == 2 ? MHZ_MEM : MHZ_SM;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned int *clock)
{
    return sim_nvmlDeviceGetClockInfo(device, type, clock);
}

nvmlReturn_t sim_nvmlDeviceGetApplicationsClock(nvmlDevice_t device, int type, unsigned int *clock)
{
    return sim_nvmlDeviceGetClockInfo(device, type, clock);
}

nvmlReturn_t sim_nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, int type, unsigned int *clock)
{
    return sim_nvmlDeviceGetClockInfo(device, type, clock);
}
