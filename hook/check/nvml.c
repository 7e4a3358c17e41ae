/* nvml: prints which memory and processes a program sees through NVML.
 *
 *   nvml HOW BYTES
 *
 * It allocates BYTES on the GPU, queries NVML, prints the line
 *
 *   total BYTES used BYTES free BYTES v2 ok|differs processes PID...
 *
 * and waits for the end of its standard input. The used memory must equal the sum over the listed
 * processes, and the total minus the free memory of cuMemGetInfo. HOW selects where it looks up the
 * functions: "handle" in the library that it opened, "default" in the whole program. */
#include "check.h"
#include "nvml.h"

#include <stdbool.h>
#include <unistd.h>

static void *scope;

static void *function(const char *name)
{
    void *found = dlsym(scope, name);
    if (!found) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(1);
    }
    return found;
}
#define CALL(name) ((__typeof__(&name))function(#name))
#define NVML_MUST(call) ASSERT((call) == NVML_SUCCESS)

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    alarm(120);
    CUdeviceptr held;
    own_context();
    if (atol(argv[2]))
        ASSERT_SUCCESS(cuMemAlloc_v2(&held, (size_t)atol(argv[2])));
    void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_GLOBAL);
    ASSERT(library);
    scope = strcmp(argv[1], "default") == 0 ? RTLD_DEFAULT : library;
    ASSERT(!dlsym(scope, "nvmlDeviceGetMemoryInfo_v99") && dlerror());
    nvmlDevice_t device;
    NVML_MUST(CALL(nvmlInit_v2)());
    NVML_MUST(CALL(nvmlDeviceGetHandleByIndex_v2)(0, &device));
    nvmlMemory_t one;
    nvmlMemory_v2_t two;
    nvmlProcessInfo_v1_t v1[64];
    nvmlProcessInfo_t v3[64];
    nvmlProcessDetail_v1_t all[64];
    unsigned n1, n3;
    bool same = false, sums = false;
    for (int tries = 0; !same || !sums; tries++) { /* the daemon may have counted a context between two queries */
        ASSERT(tries < 1000);
        one = (nvmlMemory_t){0};
        two = (nvmlMemory_v2_t){.version = NVML_VERSION(nvmlMemory_v2_t, 2)};
        nvmlProcessDetailList_t details = {.version = NVML_VERSION(nvmlProcessDetailList_t, 1), .numProcArrayEntries = 64, .procArray = all};
        unsigned none = 0;
        size_t left, whole;
        n1 = n3 = 64;
        NVML_MUST(CALL(nvmlDeviceGetMemoryInfo)(device, &one));
        NVML_MUST(CALL(nvmlDeviceGetMemoryInfo_v2)(device, &two));
        ASSERT_SUCCESS(cuMemGetInfo_v2(&left, &whole));
        NVML_MUST(CALL(nvmlDeviceGetComputeRunningProcesses)(device, &n1, v1));
        NVML_MUST(CALL(nvmlDeviceGetComputeRunningProcesses_v3)(device, &n3, v3));
        NVML_MUST(CALL(nvmlDeviceGetRunningProcessDetailList)(device, &details));
        ASSERT(CALL(nvmlDeviceGetComputeRunningProcesses_v3)(device, &none, NULL) == NVML_ERROR_INSUFFICIENT_SIZE &&
               none == n3);
        ASSERT(n1 == n3 && n3 == details.numProcArrayEntries);
        unsigned long long sum1 = 0, sum3 = 0, sum = 0;
        for (unsigned i = 0; i < n3; i++) {
            sum1 += v1[i].usedGpuMemory;
            sum3 += v3[i].usedGpuMemory;
            sum += all[i].usedGpuMemory;
        }
        same = one.total == two.total && one.used == two.used && one.free == two.free && two.reserved == 0 && whole == one.total && left == one.free;
        sums = sum1 == one.used && sum3 == one.used && sum == one.used;
    }
    printf("total %llu used %llu free %llu v2 %s processes", one.total, one.used, one.free, same ? "ok" : "differs");
    for (unsigned i = 0; i < n3; i++) {
        ASSERT(v1[i].pid == v3[i].pid && v3[i].pid == all[i].pid);
        printf(" %u", v3[i].pid);
    }
    say_line("");
    await_end();
    NVML_MUST(CALL(nvmlShutdown)());
    return 0;
}
