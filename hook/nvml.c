/* nvml.c: what NVIDIA's management library says within a slice. Programs read it to
 * learn how much memory there is (vLLM, Ray, monitors), and would take the whole
 * GPU's for theirs: here the limit is the total, what the slice uses is what is
 * used, and the processes are its own. GFAAS_NO_NVML=1 leaves all as it is.
 *
 * The library is opened by the program, if at all. What it tells of a GPU that is
 * none of the slice's is left alone. */
#include "hook.h"

#define NVML_EXPORT GF_EXPORT
#include "nvml.h"

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

#define LIST_MOST 65536 /* processes on a GPU */

#define NV_IF_PASS(...)
#define NV_IF_HAND(...) __VA_ARGS__

/* The library's own functions; NULL: it has none of that name. */
static struct {
#define NV(name, sim, hook, params, args) NV_IF_##hook(nvmlReturn_t (*name) params;)
#include "nvml.def"
    nvmlReturn_t (*nvmlDeviceGetUUID)(nvmlDevice_t device, char *uuid, unsigned int length);
    nvmlReturn_t (*nvmlDeviceGetIndex)(nvmlDevice_t device, unsigned int *index);
} real;

/* Found once, without a lock, as in real.c: threads that are here together store the
 * same. False: the program has not opened the library. */
static bool find(void)
{
    static bool found;
    if (__atomic_load_n(&found, __ATOMIC_ACQUIRE))
        return true;
    gf_lookup_init();
    void *handle = gf_real_dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD); /* and it stays */
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

/* Loads the library if the program has not. It stays loaded: the program may open it at
 * the same time. */
void gf_nvml_uuids(const unsigned *numbers, unsigned n, char (*uuids)[GF_UUID])
{
    int saved = errno;
    gf_lookup_init();
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

/* ---- the slice ---- */

static struct gf_identity identity;
static char devices[2048]; /* the instance's GPUs */
static bool whole;         /* the program is in no slice, or wants the whole truth */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Once, since the program may change its environment. */
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

/* The place of a GPU among the instance's, by the words that name them: an index or
 * a UUID. -1: it is none of them. */
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

/* What of a GPU is the slice's: its limit, 0 without one, and what its processes
 * hold together. False: the daemon does not say. */
static bool ask(unsigned place, uint64_t *limit, uint64_t *used)
{
    struct gf_page *page = gf_peek(place, &identity);
    if (!page)
        return false;
    *limit = gf_load(&page->mem_limit);
    *used = gf_mem_on_page(page);
    munmap(page, GF_PAGE_SIZE_MOST);
    return true;
}

static nvmlReturn_t own_memory(nvmlDevice_t device, unsigned long long *total, unsigned long long *free_bytes, unsigned long long *used)
{
    uint64_t limit, held;
    int saved = errno, place = in_slice() ? place_of(device) : -1;
    bool known = place < 0 || ask((unsigned)place, &limit, &held);
    errno = saved;
    if (place < 0)
        return NVML_SUCCESS;
    if (!known)
        return NVML_ERROR_TIMEOUT; /* nor does cuMemGetInfo answer then */
    if (limit && limit < *total)
        *total = limit;
    *used = held; /* more than there is, where the limit was lowered */
    uint64_t left = held < *total ? *total - held : 0;
    if (*free_bytes > left)
        *free_bytes = left;
    return NVML_SUCCESS;
}

#define MEMORY(name, type) \
    GF_EXPORT nvmlReturn_t name(nvmlDevice_t device, type *memory) \
    { \
        if (!find() || !real.name) \
            return NVML_ERROR_FUNCTION_NOT_FOUND; \
        nvmlReturn_t r = real.name(device, memory); \
        return r == NVML_SUCCESS ? own_memory(device, &memory->total, &memory->free, &memory->used) : r; \
    }
MEMORY(nvmlDeviceGetMemoryInfo, nvmlMemory_t)
MEMORY(nvmlDeviceGetMemoryInfo_v2, nvmlMemory_v2_t)

/* ---- processes ---- */

/* Whether an environment, as /proc shows it, says that a process is of this
 * instance: what a slice's programs start keeps it (exec.c). */
static bool says_so(int fd)
{
    char wanted[sizeof "GFAAS_INSTANCE=" + GF_NAME_SIZE], part[4096];
    size_t length = (size_t)snprintf(wanted, sizeof wanted, "GFAAS_INSTANCE=%s", identity.instance) + 1; /* with its end */
    size_t same = 0; /* bytes of this entry that agree; more than there are: it is another */
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

static bool own(unsigned pid)
{
    char path[64];
    if (pid == (unsigned)getpid())
        return true;
    snprintf(path, sizeof path, "/proc/%u/environ", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool found = fd >= 0 && says_so(fd);
    if (fd >= 0)
        close(fd);
    return found;
}

/* Asks the library for a list; `asked` is what else its function is called with. */
typedef nvmlReturn_t lister(nvmlDevice_t device, unsigned int *count, void *infos, const void *asked);

/* The entries of a list, of that size each and with the process's number there, that
 * are of the slice's processes. */
static nvmlReturn_t own_list(lister *list, const void *asked, nvmlDevice_t device, unsigned int *count, void *infos,
                             size_t size, size_t pid_at)
{
    if (!count || !in_slice())
        return list(device, count, infos, asked);
    unsigned n = 64, room = infos ? *count : 0, kept = 0;
    char *all = NULL;
    nvmlReturn_t r = NVML_ERROR_MEMORY;
    int saved = errno;
    for (unsigned have = n; have <= LIST_MOST; have = n + 64) {
        char *more = realloc(all, have * size);
        if (!more)
            break;
        all = more;
        n = have;
        r = list(device, &n, all, asked);
        if (r != NVML_ERROR_INSUFFICIENT_SIZE)
            break;
    }
    for (unsigned i = 0; r == NVML_SUCCESS && i < n; i++) {
        unsigned pid;
        memcpy(&pid, all + i * size + pid_at, sizeof pid);
        if (!own(pid))
            continue;
        if (kept < room)
            memcpy((char *)infos + kept * size, all + i * size, size);
        kept++;
    }
    free(all);
    errno = saved;
    if (r == NVML_SUCCESS)
        *count = kept;
    return r == NVML_SUCCESS && kept > room ? NVML_ERROR_INSUFFICIENT_SIZE : r;
}

#define LIST(name, type) \
    static nvmlReturn_t list_##name(nvmlDevice_t device, unsigned int *count, void *infos, const void *asked) \
    { \
        (void)asked; \
        return real.name(device, count, infos); \
    } \
    GF_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *infoCount, type *infos) \
    { \
        if (!find() || !real.name) \
            return NVML_ERROR_FUNCTION_NOT_FOUND; \
        return own_list(list_##name, NULL, device, infoCount, infos, sizeof *infos, offsetof(type, pid)); \
    }
#define LISTS(name) LIST(name, nvmlProcessInfo_v1_t) LIST(name##_v2, nvmlProcessInfo_t) LIST(name##_v3, nvmlProcessInfo_t)
LISTS(nvmlDeviceGetComputeRunningProcesses)
LISTS(nvmlDeviceGetGraphicsRunningProcesses)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses)

static nvmlReturn_t list_details(nvmlDevice_t device, unsigned int *count, void *infos, const void *asked)
{
    nvmlProcessDetailList_t head = *(const nvmlProcessDetailList_t *)asked;
    head.numProcArrayEntries = *count;
    head.procArray = infos;
    nvmlReturn_t r = real.nvmlDeviceGetRunningProcessDetailList(device, &head);
    *count = head.numProcArrayEntries;
    return r;
}

GF_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *plist)
{
    if (!find() || !real.nvmlDeviceGetRunningProcessDetailList)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!plist)
        return real.nvmlDeviceGetRunningProcessDetailList(device, plist);
    return own_list(list_details, plist, device, &plist->numProcArrayEntries, plist->procArray, sizeof *plist->procArray,
                    offsetof(nvmlProcessDetail_v1_t, pid));
}

/* ---- what each process does ---- */

/* Where there is no sample of a process, its library says so. */
static nvmlReturn_t none_found(nvmlReturn_t r, const unsigned *count)
{
    return r == NVML_SUCCESS && !*count ? NVML_ERROR_NOT_FOUND : r;
}

static nvmlReturn_t list_samples(nvmlDevice_t device, unsigned int *count, void *infos, const void *asked)
{
    return real.nvmlDeviceGetProcessUtilization(device, infos, count, *(const unsigned long long *)asked);
}

GF_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
                                                       unsigned int *processSamplesCount, unsigned long long lastSeenTimeStamp)
{
    if (!find() || !real.nvmlDeviceGetProcessUtilization)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!processSamplesCount)
        return real.nvmlDeviceGetProcessUtilization(device, utilization, processSamplesCount, lastSeenTimeStamp);
    nvmlReturn_t r = own_list(list_samples, &lastSeenTimeStamp, device, processSamplesCount, utilization, sizeof *utilization,
                              offsetof(nvmlProcessUtilizationSample_t, pid));
    return none_found(r, processSamplesCount);
}

static nvmlReturn_t list_utilization(nvmlDevice_t device, unsigned int *count, void *infos, const void *asked)
{
    nvmlProcessesUtilizationInfo_t head = *(const nvmlProcessesUtilizationInfo_t *)asked;
    head.processSamplesCount = *count;
    head.procUtilArray = infos;
    nvmlReturn_t r = real.nvmlDeviceGetProcessesUtilizationInfo(device, &head);
    *count = head.processSamplesCount;
    return r;
}

GF_EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *procesesUtilInfo)
{
    if (!find() || !real.nvmlDeviceGetProcessesUtilizationInfo)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!procesesUtilInfo)
        return real.nvmlDeviceGetProcessesUtilizationInfo(device, procesesUtilInfo);
    nvmlReturn_t r = own_list(list_utilization, procesesUtilInfo, device, &procesesUtilInfo->processSamplesCount,
                              procesesUtilInfo->procUtilArray, sizeof *procesesUtilInfo->procUtilArray,
                              offsetof(nvmlProcessUtilizationInfo_v1_t, pid));
    return none_found(r, &procesesUtilInfo->processSamplesCount);
}

/* What ended processes did is accounted for by number, which says nothing of whose it was. */
GF_EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count, unsigned int *pids)
{
    if (!find() || !real.nvmlDeviceGetAccountingPids)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    return in_slice() ? NVML_ERROR_NOT_SUPPORTED : real.nvmlDeviceGetAccountingPids(device, count, pids);
}

GF_EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned int pid, nvmlAccountingStats_t *stats)
{
    if (!find() || !real.nvmlDeviceGetAccountingStats)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    return in_slice() ? NVML_ERROR_NOT_SUPPORTED : real.nvmlDeviceGetAccountingStats(device, pid, stats);
}

/* ---- lookup ---- */

void *gf_nvml_pick(void *handle, const char *name)
{
    static const struct { const char *name; void *wrapper; } rows[] = {
#define NV(name, sim, hook, params, args) NV_IF_##hook({#name, (void *)name},)
#include "nvml.def"
    };
    if (gf_booting)
        return NULL;
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0) {
            if (!find())
                return NULL;
            /* A library without the function must still be said to have none, and one with
             * a function of its own of that name to have that. */
            if (handle != RTLD_DEFAULT && handle != RTLD_NEXT) {
                void *found = gf_real_dlsym(handle, name);
                if (!found || (found != rows[i].wrapper && !gf_is_of(found, "libnvidia-ml.so")))
                    return NULL;
            }
            dlerror(); /* a dlsym that found something leaves no error */
            return rows[i].wrapper;
        }
    return NULL;
}
