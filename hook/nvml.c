/* nvml.c: the answers of NVIDIA's management library within a slice.
 *
 * Programs read NVML to learn how much memory there is (vLLM, Ray, monitors), and would take all
 * of the GPU's. Within a slice, the total is the limit, the used memory is the slice's, and the
 * processes are its own. Memory is always what counts towards the limit: the used memory is the
 * sum over the listed processes, and equals total minus free of cuMemGetInfo. GFAAS_NO_NVML=1
 * turns this off.
 *
 * The program opens NVML, if at all. Answers about a GPU that does not belong to the slice are
 * unchanged. */
#include "lookup.h"

#include "handshake.h"
#include "limit.h"
#include "loader.h"
#include "nvml.h"
#include "real.h"
#include "visible.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LIST_MOST 65536 /* most processes on a GPU */

#define NV_IF_PASS(...)
#define NV_IF_HAND(...) __VA_ARGS__

/* NVML's own functions; NULL if it lacks one. */
static struct {
#define NV(name, sim, hook, params, args) NV_IF_##hook(nvmlReturn_t (*name) params;)
#include "nvml.def"
    nvmlReturn_t (*nvmlDeviceGetUUID)(nvmlDevice_t device, char *uuid, unsigned int length);
    nvmlReturn_t (*nvmlDeviceGetIndex)(nvmlDevice_t device, unsigned int *index);
} real;

/* Finds the functions once, without a lock, as in real.c: threads that do it at the same time
 * store the same values. Returns false if the program has not opened NVML. */
static bool find(void)
{
    static bool found;
    if (__atomic_load_n(&found, __ATOMIC_ACQUIRE))
        return true;
    gf_loader_init();
    void *handle = gf_real_dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD); /* never closed */
    if (handle) {
#define FIND(name) gf_store((void **)&real.name, gf_real_dlsym(handle, #name));
#define NV(name, sim, hook, params, args) NV_IF_##hook(FIND(name))
#include "nvml.def"
        FIND(nvmlDeviceGetUUID)
        FIND(nvmlDeviceGetIndex)
        __atomic_store_n(&found, true, __ATOMIC_RELEASE);
    }
    dlerror();
    return handle != NULL;
}

/* ---- the slice ---- */

static struct gf_identity identity;
static char devices[2048]; /* the instance's GPUs */
static bool whole;         /* the program is in no slice, or GFAAS_NO_NVML is set */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Reads the environment once, since the program may change it. */
static void read_environment(void)
{
    const char *list = getenv("GFAAS_DEVICES"), *no = getenv("GFAAS_NO_NVML");
    snprintf(devices, sizeof devices, "%s", list ? list : "");
    whole = (no && *no && strcmp(no, "0") != 0 && strcmp(no, "false") != 0) || !gf_identify(&identity);
}

static bool in_slice(void)
{
    pthread_once(&once, read_environment);
    return !whole;
}

/* Returns the position of a GPU in the instance's list, which names GPUs by index or UUID, or -1
 * if it is not in the list. */
static int place_of(nvmlDevice_t device)
{
    char uuid[96] = "";
    unsigned number;
    if (real.nvmlDeviceGetUUID && real.nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS)
        *uuid = 0;
    if (strncmp(uuid, "MIG-", 4) == 0 || !real.nvmlDeviceGetIndex || real.nvmlDeviceGetIndex(device, &number) != NVML_SUCCESS)
        number = UINT_MAX;
    unsigned place = gf_visible_find(devices, number, uuid);
    return place < GF_DEVICES ? (int)place : -1;
}

/* ---- memory ---- */

/* Sets the slice's memory limit on a GPU (0: none) and the memory of all its processes. Returns
 * false if the daemon does not answer. */
static bool slice_memory(unsigned place, uint64_t *limit, uint64_t *used)
{
    struct gf_page *page = gf_peek(place, &identity);
    if (!page)
        return false;
    *limit = gf_load(&page->mem_limit);
    *used = gf_mem_on_page(page);
    munmap(page, GF_PAGE_SIZE_MOST);
    return true;
}

/* Replaces the GPU's memory by the slice's; `reserved` may be NULL. */
static nvmlReturn_t own_memory(nvmlDevice_t device, unsigned long long *total, unsigned long long *reserved,
                               unsigned long long *free_bytes, unsigned long long *used)
{
    uint64_t limit, held;
    int saved = errno, place = in_slice() ? place_of(device) : -1;
    bool known = place < 0 || slice_memory((unsigned)place, &limit, &held);
    errno = saved;
    if (place < 0)
        return NVML_SUCCESS;
    if (!known)
        return NVML_ERROR_TIMEOUT; /* cuMemGetInfo does not answer then, either */
    if (limit && limit < *total) {
        *total = limit;
        if (reserved)
            *reserved = 0; /* reserved memory is the GPU's */
    }
    *used = held; /* more than the total if the limit was lowered */
    uint64_t left = held < *total ? *total - held : 0;
    if (*free_bytes > left)
        *free_bytes = left;
    return NVML_SUCCESS;
}

#define MEMORY(name, type, reserved_of) \
    nvmlReturn_t name(nvmlDevice_t device, type *memory) \
    { \
        nvmlReturn_t r = real.name(device, memory); \
        return r == NVML_SUCCESS ? own_memory(device, &memory->total, reserved_of, &memory->free, &memory->used) : r; \
    }
MEMORY(nvmlDeviceGetMemoryInfo, nvmlMemory_t, NULL)
MEMORY(nvmlDeviceGetMemoryInfo_v2, nvmlMemory_v2_t, &memory->reserved)

/* ---- processes ---- */

/* Reports whether a process's environment, read from /proc, belongs to this instance. Programs
 * that a slice starts keep the variable (exec.c). */
static bool names_instance(int fd)
{
    char wanted[sizeof "GFAAS_INSTANCE=" + GF_NAME_SIZE], part[4096];
    size_t length = (size_t)snprintf(wanted, sizeof wanted, "GFAAS_INSTANCE=%s", identity.instance) + 1; /* with the final NUL */
    size_t same = 0; /* matching bytes of the current entry; length + 1 after a mismatch */
    for (ssize_t n; (n = read(fd, part, sizeof part)) > 0;)
        for (ssize_t i = 0; i < n; i++) {
            same = same < length && part[i] == wanted[same] ? same + 1 : length + 1;
            if (same == length)
                return true;
            if (!part[i])
                same = 0;
        }
    return false;
}

/* Reports whether a process belongs to this instance. */
static bool own(unsigned pid)
{
    char path[64];
    if (pid == (unsigned)getpid())
        return true;
    snprintf(path, sizeof path, "/proc/%u/environ", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool found = fd >= 0 && names_instance(fd);
    if (fd >= 0)
        close(fd);
    return found;
}

/* Queries NVML for a list. `argument` is the function's further argument. */
typedef nvmlReturn_t lister(nvmlDevice_t device, unsigned int *count, void *infos, const void *argument);

/* Layout of a list's entries: size, offset of the process ID, and offset of the process's GPU
 * memory (0: the list has no memory). If `blank` is not NULL, a process without an entry gets a
 * copy of it. */
struct entry {
    size_t size, pid, memory;
    const void *blank;
};

static unsigned pid_of(const struct entry *e, const char *at)
{
    unsigned pid;
    memcpy(&pid, at + e->pid, sizeof pid);
    return pid;
}

static void set_memory(const struct entry *e, char *at, uint64_t bytes)
{
    unsigned long long n = bytes;
    memcpy(at + e->memory, &n, sizeof n);
}

/* Sets the memory of each entry to what counts towards its process's limit; the sum is own_memory's
 * `used`. Frees the list and returns NULL if it runs out of memory. */
static char *own_entries(const struct entry *e, char *list, unsigned *n, struct gf_page *page)
{
    for (unsigned i = 0; i < *n; i++)
        set_memory(e, list + i * e->size, 0);
    for (unsigned i = 0; i < page->used && i < GF_PAGE_SLOTS_MOST; i++) {
        uint64_t bytes = gf_mem_in_slot(&page->slots[i]);
        unsigned pid = gf_load(&page->slots[i].pid), at = 0;
        if (!pid)
            pid = (unsigned)getpid(); /* the daemon cannot see its process ID */
        while (at < *n && pid_of(e, list + at * e->size) != pid)
            at++;
        if (!bytes || (at == *n && !e->blank))
            continue;
        if (at == *n) {
            char *more = realloc(list, (*n + 1) * e->size);
            if (!more) {
                free(list);
                return NULL;
            }
            list = more;
            memcpy(list + at * e->size, e->blank, e->size);
            memcpy(list + at * e->size + e->pid, &pid, sizeof pid);
            ++*n;
        }
        unsigned long long has;
        memcpy(&has, list + at * e->size + e->memory, sizeof has);
        set_memory(e, list + at * e->size, has + bytes);
    }
    return list;
}

/* Reports whether a process has a slot in the page. */
static bool on_page(struct gf_page *page, unsigned pid)
{
    for (unsigned i = 0; pid && i < page->used && i < GF_PAGE_SLOTS_MOST; i++)
        if (gf_load(&page->slots[i].pid) == pid)
            return true;
    return false;
}

/* Returns NVML's whole list, and its length in *n. */
static char *list_all(lister *list, const void *argument, nvmlDevice_t device, const struct entry *e, unsigned *n, nvmlReturn_t *r)
{
    char *all = NULL;
    *r = NVML_ERROR_MEMORY;
    for (unsigned have = 64; have <= LIST_MOST; have = *n + 64) {
        char *more = realloc(all, have * e->size);
        if (!more)
            break;
        all = more;
        *n = have;
        *r = list(device, n, all, argument);
        if (*r != NVML_ERROR_INSUFFICIENT_SIZE)
            break;
    }
    return all;
}

/* Returns to the program the entries that belong to the slice's processes. */
static nvmlReturn_t own_list(lister *list, const void *argument, nvmlDevice_t device, unsigned int *count, void *infos,
                             const struct entry *e)
{
    if (!count || !in_slice())
        return list(device, count, infos, argument);
    unsigned n = 0, room = infos ? *count : 0, kept = 0;
    int saved = errno, place = e->memory ? place_of(device) : -1;
    struct gf_page *page = place < 0 ? NULL : gf_peek((unsigned)place, &identity);
    nvmlReturn_t r = place < 0 || page ? NVML_SUCCESS : NVML_ERROR_TIMEOUT;
    char *all = r == NVML_SUCCESS ? list_all(list, argument, device, e, &n, &r) : NULL;
    bool known = page && gf_load(&page->flags) & GF_PAGE_PIDS;
    for (unsigned i = 0; r == NVML_SUCCESS && i < n; i++) {
        unsigned pid = pid_of(e, all + i * e->size);
        if ((known && on_page(page, pid)) || own(pid))
            memmove(all + kept++ * e->size, all + i * e->size, e->size);
    }
    if (r == NVML_SUCCESS && known && !(all = own_entries(e, all, &kept, page)))
        r = NVML_ERROR_MEMORY;
    if (page)
        munmap(page, GF_PAGE_SIZE_MOST);
    if (r == NVML_SUCCESS) {
        *count = kept;
        if (room)
            memcpy(infos, all, (kept < room ? kept : room) * e->size);
        r = kept > room ? NVML_ERROR_INSUFFICIENT_SIZE : r;
    }
    free(all);
    errno = saved;
    return r;
}

/* Each process that computes has an entry, even if NVML does not list it: NVML may know it by another
 * process ID, or its memory may be on the host. */
#define BLANK_Compute(type) (&(const type)blank_##type)
#define BLANK_Graphics(type) NULL
#define BLANK_MPSCompute(type) NULL
#define blank_nvmlProcessInfo_v1_t {0}
#define blank_nvmlProcessInfo_t {.gpuInstanceId = NVML_NO_INSTANCE, .computeInstanceId = NVML_NO_INSTANCE}
#define blank_nvmlProcessDetail_v1_t {.gpuInstanceId = NVML_NO_INSTANCE, .computeInstanceId = NVML_NO_INSTANCE}
#define ENTRY(type, blank_of) {sizeof(type), offsetof(type, pid), offsetof(type, usedGpuMemory), blank_of}

#define LIST(name, type, kind) \
    static nvmlReturn_t list_##name(nvmlDevice_t device, unsigned int *count, void *infos, const void *argument) \
    { \
        (void)argument; \
        return real.name(device, count, infos); \
    } \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *infoCount, type *infos) \
    { \
        const struct entry e = ENTRY(type, BLANK_##kind(type)); \
        return own_list(list_##name, NULL, device, infoCount, infos, &e); \
    }
#define LISTS(name, kind) \
    LIST(name, nvmlProcessInfo_v1_t, kind) LIST(name##_v2, nvmlProcessInfo_t, kind) LIST(name##_v3, nvmlProcessInfo_t, kind)
LISTS(nvmlDeviceGetComputeRunningProcesses, Compute)
LISTS(nvmlDeviceGetGraphicsRunningProcesses, Graphics)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, MPSCompute)

static nvmlReturn_t list_details(nvmlDevice_t device, unsigned int *count, void *infos, const void *argument)
{
    nvmlProcessDetailList_t head = *(const nvmlProcessDetailList_t *)argument;
    head.numProcArrayEntries = *count;
    head.procArray = infos;
    nvmlReturn_t r = real.nvmlDeviceGetRunningProcessDetailList(device, &head);
    *count = head.numProcArrayEntries;
    return r;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *plist)
{
    if (!plist)
        return real.nvmlDeviceGetRunningProcessDetailList(device, plist);
    const struct entry e = ENTRY(nvmlProcessDetail_v1_t, plist->mode ? NULL : BLANK_Compute(nvmlProcessDetail_v1_t));
    return own_list(list_details, plist, device, &plist->numProcArrayEntries, plist->procArray, &e);
}

/* ---- utilization by process ---- */

/* Returns NVML_ERROR_NOT_FOUND for an empty list of samples, as NVML does. */
static nvmlReturn_t none_found(nvmlReturn_t r, const unsigned *count)
{
    return r == NVML_SUCCESS && !*count ? NVML_ERROR_NOT_FOUND : r;
}

static nvmlReturn_t list_samples(nvmlDevice_t device, unsigned int *count, void *infos, const void *argument)
{
    return real.nvmlDeviceGetProcessUtilization(device, infos, count, *(const unsigned long long *)argument);
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
                                                       unsigned int *processSamplesCount, unsigned long long lastSeenTimeStamp)
{
    if (!processSamplesCount)
        return real.nvmlDeviceGetProcessUtilization(device, utilization, processSamplesCount, lastSeenTimeStamp);
    static const struct entry e = {sizeof *utilization, offsetof(nvmlProcessUtilizationSample_t, pid), 0, NULL};
    nvmlReturn_t r = own_list(list_samples, &lastSeenTimeStamp, device, processSamplesCount, utilization, &e);
    return none_found(r, processSamplesCount);
}

static nvmlReturn_t list_utilization(nvmlDevice_t device, unsigned int *count, void *infos, const void *argument)
{
    nvmlProcessesUtilizationInfo_t head = *(const nvmlProcessesUtilizationInfo_t *)argument;
    head.processSamplesCount = *count;
    head.procUtilArray = infos;
    nvmlReturn_t r = real.nvmlDeviceGetProcessesUtilizationInfo(device, &head);
    *count = head.processSamplesCount;
    return r;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *procesesUtilInfo)
{
    if (!procesesUtilInfo)
        return real.nvmlDeviceGetProcessesUtilizationInfo(device, procesesUtilInfo);
    static const struct entry e = {sizeof *procesesUtilInfo->procUtilArray, offsetof(nvmlProcessUtilizationInfo_v1_t, pid), 0, NULL};
    nvmlReturn_t r = own_list(list_utilization, procesesUtilInfo, device, &procesesUtilInfo->processSamplesCount,
                              procesesUtilInfo->procUtilArray, &e);
    return none_found(r, &procesesUtilInfo->processSamplesCount);
}

/* Accounting lists ended processes by process ID, so their slice is unknown. */
nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
    return in_slice() ? NVML_ERROR_NOT_SUPPORTED : real.nvmlDeviceGetAccountingPids(device, count, pids);
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats)
{
    return in_slice() ? NVML_ERROR_NOT_SUPPORTED : real.nvmlDeviceGetAccountingStats(device, pid, stats);
}

/* ---- lookup ---- */

#define LIBRARY "libnvidia-ml.so"
#define NV(name, sim, hook, params, args) NV_IF_##hook(GF_NAME(nvmlReturn_t, name, LIBRARY, params, args, find() && real.name, \
                                                             NVML_ERROR_FUNCTION_NOT_FOUND))
#include "nvml.def"

void *gf_nvml_pick(void *handle, const char *name, const void *caller)
{
    static const struct { const char *name; void **real, *exported, *gated; } rows[] = {
#define NV(name, sim, hook, params, args) NV_IF_##hook({#name, (void **)&real.name, (void *)named_##name, (void *)name},)
#include "nvml.def"
    };
    if (gf_booting)
        return NULL;
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0 && find() && *rows[i].real) {
            void *wrapper = gf_next(NULL, name, LIBRARY) ? rows[i].gated : rows[i].exported;
            return gf_stand_in(handle, name, caller, LIBRARY, *rows[i].real, wrapper);
        }
    return NULL;
}
