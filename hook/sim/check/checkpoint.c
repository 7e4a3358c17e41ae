/* checkpoint.c: a process that is taken off its devices, or that does this to another
 * one, as its standard input says line by line; to each it answers with a line, which
 * is the driver's code where nothing else is said. It stops when the input ends.
 *
 *   use DEVICE             makes the context there current, which is made if there is none
 *   alloc BYTES            and writes a pattern
 *   check                  "right" if all that was allocated holds its pattern
 *   info                   bytes that are free on the device
 *   launch MS              a kernel
 *   sync                   waits for the context's work
 *   hold                   a host function that ends with the next SIGUSR1
 *   managed, export, ipc, pool, unshare   what cannot be taken off, and its end;
 *                          export and ipc answer with what others import and open
 *   import PID FD, unshare  what another one has exported, and its end
 *   open HEX, close        what another one has for others by ipc, and its end
 *   thread, join           one that has used CUDA, and its end
 *   burn, stop             threads that launch; "N right" if each launch has had its effect
 *   lock PID MS, checkpoint PID, restore PID, unlock PID
 *   state PID              "state N", or the code
 *   cycle PID              does all that until it is killed
 *   killed PID N           a child does it once, and is killed before its Nth system call
 *                          of it: "killed", or "done" if it makes fewer
 *   seen DEVICE            the processes on it: "PID:BYTES" of each, by the management library
 *   args PID               what is wrong with arguments: the codes of many calls
 *   drop                   the capability to do so
 */
#include "nvml.h"
#include "tap.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* No variables, which would take memory; saxpy is of one element. */
static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    "// gfaas-sim: tick block_us=1000\n"
    "// gfaas-sim: saxpy block_us=20 op=saxpy_f32\n"
    ".visible .entry tick()\n{\n ret;\n}\n"
    ".visible .entry saxpy(.param .f32 k, .param .u64 x, .param .u64 y, .param .u32 n)\n{\n"
    " .reg .f32 %f<5>;\n .reg .b64 %rd<3>;\n"
    " ld.param.f32 %f1, [k];\n ld.param.u64 %rd1, [x];\n ld.param.u64 %rd2, [y];\n"
    " ld.global.f32 %f2, [%rd1];\n ld.global.f32 %f3, [%rd2];\n fma.rn.f32 %f4, %f1, %f2, %f3;\n"
    " st.global.f32 [%rd2], %f4;\n ret;\n}\n";

enum { DEVICES = 2, MOST = 64, THREADS = 2 };

static CUcontext contexts[DEVICES];
static CUfunction ticks[DEVICES], saxpys[DEVICES];
static CUdevice current;

static struct {
    CUdeviceptr at;
    size_t size;
    CUcontext ctx;
} held[MOST];
static int n_held;

static void answer(long code)
{
    printf("%ld\n", code);
    fflush(stdout);
}

/* ---- memory ---- */

static CUresult use(CUdevice dev)
{
    CUmodule m;
    CUresult r = CUDA_SUCCESS;
    if (!contexts[dev]) {
        r = cuCtxCreate(&contexts[dev], 0, dev);
        if (r != CUDA_SUCCESS)
            return r;
        MUST(cuModuleLoadData(&m, ptx));
        MUST(cuModuleGetFunction(&ticks[dev], m, "tick"));
        MUST(cuModuleGetFunction(&saxpys[dev], m, "saxpy"));
    }
    current = dev;
    return cuCtxSetCurrent(contexts[dev]);
}

static void pattern(unsigned char *to, size_t n, int seed)
{
    uint32_t x = 2463534242u + (uint32_t)seed;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        to[i] = (unsigned char)(x >> 24);
    }
}

static CUresult alloc(size_t size)
{
    CUdeviceptr p;
    CUresult r = cuMemAlloc(&p, size);
    if (r != CUDA_SUCCESS || n_held == MOST)
        return r;
    unsigned char *bytes = malloc(size);
    pattern(bytes, size, n_held);
    r = cuMemcpyHtoD(p, bytes, size);
    free(bytes);
    held[n_held].at = p;
    held[n_held].size = size;
    held[n_held++].ctx = contexts[current];
    return r;
}

static void check(void)
{
    CUcontext before;
    bool right = true;
    MUST(cuCtxGetCurrent(&before));
    for (int i = 0; i < n_held; i++) {
        unsigned char *want = malloc(held[i].size), *got = malloc(held[i].size);
        pattern(want, held[i].size, i);
        MUST(cuCtxSetCurrent(held[i].ctx));
        MUST(cuMemcpyDtoH(got, held[i].at, held[i].size));
        right &= !memcmp(want, got, held[i].size);
        free(want);
        free(got);
    }
    MUST(cuCtxSetCurrent(before));
    puts(right ? "right" : "wrong");
    fflush(stdout);
}

/* ---- what cannot be taken off ---- */

static CUdeviceptr fixed_at;
static CUmemGenericAllocationHandle fixed_handle;
static CUmemoryPool fixed_pool;
static int fixed_fd = -1;

static void export(void)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, current}};
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    MUST(cuMemCreate(&fixed_handle, 2 << 20, &p, 0));
    MUST(cuMemExportToShareableHandle(&fixed_fd, fixed_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    answer(fixed_fd);
}

static void import(int pid, int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    answer(cuMemImportFromShareableHandle(&fixed_handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
}

static void ipc(void)
{
    CUipcMemHandle h;
    MUST(cuMemAlloc(&fixed_at, 1 << 20));
    MUST(cuIpcGetMemHandle(&h, fixed_at));
    for (size_t i = 0; i < sizeof h; i++)
        printf("%02x", ((unsigned char *)&h)[i]);
    puts("");
    fflush(stdout);
}

static CUresult open_ipc(const char *hex)
{
    CUipcMemHandle h;
    for (size_t i = 0; i < sizeof h; i++)
        sscanf(hex + 2 * i, "%2hhx", (unsigned char *)&h + i);
    return cuIpcOpenMemHandle(&fixed_at, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUresult pool(void)
{
    CUmemPoolProps p = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, current}};
    p.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    MUST(cuMemPoolCreate(&fixed_pool, &p));
    return cuMemPoolExportToShareableHandle(&fixed_fd, fixed_pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

static CUresult unshare(bool opened)
{
    CUresult r = CUDA_SUCCESS;
    if (fixed_at)
        r = opened ? cuIpcCloseMemHandle(fixed_at) : cuMemFree(fixed_at);
    if (fixed_handle)
        r = cuMemRelease(fixed_handle);
    if (fixed_pool)
        r = cuMemPoolDestroy(fixed_pool);
    if (fixed_fd >= 0)
        close(fixed_fd);
    fixed_at = 0;
    fixed_handle = 0;
    fixed_pool = NULL;
    fixed_fd = -1;
    return r;
}

/* ---- work ---- */

static CUresult launch(unsigned ms)
{
    unsigned n;
    MUST(cuDeviceGetAttribute((int *)&n, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, current));
    return cuLaunchKernel(ticks[current], ms ? ms * n : 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static sem_t may_end;
static void let(int sig)
{
    (void)sig;
    sem_post(&may_end);
}

static void wait_for_signal(void *unused)
{
    (void)unused;
    while (sem_wait(&may_end))
        continue;
}

static atomic_bool stopping;
static pthread_t burners[THREADS], other;
static sem_t burning, other_used, other_ends;

/* Adds 1 to a number with each launch. */
static void *burn(void *unused)
{
    CUstream s;
    CUdeviceptr p;
    float k = 1, out[2] = {1, 0};
    int one = 1;
    uintptr_t n = 0;
    (void)unused;
    MUST(cuCtxSetCurrent(contexts[0]));
    MUST(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&p, sizeof out));
    MUST(cuMemcpyHtoD(p, out, sizeof out));
    CUdeviceptr y = p + sizeof *out;
    void *args[] = {&k, &p, &y, &one};
    sem_post(&burning);
    for (; !atomic_load(&stopping); n++) {
        MUST(cuLaunchKernel(saxpys[0], 1, 1, 1, 1, 1, 1, 0, s, args, NULL));
        if (n % 100 == 99)
            MUST(cuStreamSynchronize(s));
    }
    MUST(cuStreamSynchronize(s));
    MUST(cuMemcpyDtoH(out, p, sizeof out));
    return (void *)(out[1] == (float)n ? n : 0);
}

static void *use_and_wait(void *unused)
{
    (void)unused;
    MUST(cuCtxSetCurrent(contexts[0]));
    MUST(cuStreamQuery(CU_STREAM_PER_THREAD));
    sem_post(&other_used);
    while (sem_wait(&other_ends))
        continue;
    return NULL;
}

static void stop(void)
{
    uintptr_t sum = 0, n;
    bool right = true;
    atomic_store(&stopping, true);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(burners[i], (void **)&n);
        right &= n != 0;
        sum += n;
    }
    printf("%lu %s\n", (unsigned long)sum, right ? "right" : "wrong");
    fflush(stdout);
}

/* ---- what is done to others ---- */

static void state(int pid)
{
    CUprocessState s = -1;
    CUresult r = cuCheckpointProcessGetState(pid, &s);
    if (r != CUDA_SUCCESS) {
        answer(r);
        return;
    }
    printf("state %d\n", (int)s);
    fflush(stdout);
}

static CUresult lock(int pid, unsigned ms)
{
    CUcheckpointLockArgs a = {.timeoutMs = ms};
    return cuCheckpointProcessLock(pid, ms ? &a : NULL);
}

static void cycle(int pid)
{
    MUST(cuCheckpointProcessLock(pid, NULL));
    MUST(cuCheckpointProcessCheckpoint(pid, NULL));
    MUST(cuCheckpointProcessRestore(pid, NULL));
    MUST(cuCheckpointProcessUnlock(pid, NULL));
}

/* What the child calls before it begins. */
#define MARK() syscall(SYS_getppid)

/* Whether it is stopped before a system call, and before which. */
static bool is_before(pid_t child, uint64_t *number)
{
    struct __ptrace_syscall_info info = {0};
    bool got = ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info) > 0 && info.op == PTRACE_SYSCALL_INFO_ENTRY;
    *number = got ? info.entry.nr : 0;
    return got;
}

/* Goes on until a child is about to make a system call; false when it has ended. */
static bool step(pid_t child, uint64_t *number)
{
    int status, sig = 0;
    do {
        if (ptrace(PTRACE_SYSCALL, child, NULL, (void *)(intptr_t)sig) || waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
            return false;
        sig = WSTOPSIG(status) == (SIGTRAP | 0x80) ? 0 : WSTOPSIG(status);
    } while (sig || !is_before(child, number));
    return true;
}

static void killed(const char *pid, int n)
{
    int status;
    uint64_t number = 0;
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execl("/proc/self/exe", "checkpoint", "once", pid, (char *)NULL);
        _exit(127);
    }
    waitpid(child, &status, 0); /* it is stopped as it begins the program */
    ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
    bool there = true;
    while (there && number != SYS_getppid)
        there = step(child, &number);
    while (there && n-- > 0)
        there = step(child, &number);
    if (there) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
    puts(there ? "killed" : "done");
    fflush(stdout);
}

#define NVML(name) ((__typeof__(&name))dlsym(library, #name))

static void seen(unsigned index)
{
    static void *library;
    nvmlDevice_t device;
    nvmlProcessInfo_t all[64];
    unsigned n = 64;
    if (!library) {
        library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
        if (!library || NVML(nvmlInit_v2)())
            exit(1);
    }
    if (NVML(nvmlDeviceGetHandleByIndex_v2)(index, &device) || NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &n, all))
        exit(1);
    for (unsigned i = 0; i < n; i++)
        printf("%s%u:%llu", i ? " " : "", all[i].pid, all[i].usedGpuMemory);
    puts("");
    fflush(stdout);
}

static void bad_arguments(int pid)
{
    CUcheckpointLockArgs l[2] = {{.reserved0 = 1}, {.reserved1 = {[6] = 1}}};
    CUcheckpointCheckpointArgs c = {.reserved = {[7] = 1}};
    CUcheckpointRestoreArgs r[3] = {{.reserved = {[0] = 1}}, {.reserved1 = 1}, {.gpuPairsCount = 1}};
    CUcheckpointUnlockArgs u = {.reserved = {[0] = 1}};
    printf("%d %d %d %d %d %d %d %d %d\n", cuCheckpointProcessLock(pid, &l[0]), cuCheckpointProcessLock(pid, &l[1]),
           cuCheckpointProcessCheckpoint(pid, &c), cuCheckpointProcessRestore(pid, &r[0]),
           cuCheckpointProcessRestore(pid, &r[1]), cuCheckpointProcessRestore(pid, &r[2]),
           cuCheckpointProcessUnlock(pid, &u), cuCheckpointProcessGetState(pid, NULL), cuCheckpointProcessLock(-pid, NULL));
    fflush(stdout);
}

static void drop(void)
{
    struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct d[_LINUX_CAPABILITY_U32S_3] = {0};
    bool got = syscall(SYS_capget, &h, d) == 0;
    d[CAP_TO_INDEX(CAP_SYS_PTRACE)].effective &= ~CAP_TO_MASK(CAP_SYS_PTRACE);
    answer(!got || syscall(SYS_capset, &h, d));
}

/* ---- */

/* A line that says what to do to others, or to look at; false if it says something else. */
static bool obey_for_others(const char *what, const char *first, const char *second)
{
    int pid = atoi(first);
    if (!strcmp(what, "lock"))
        answer(lock(pid, (unsigned)atoi(second)));
    else if (!strcmp(what, "checkpoint"))
        answer(cuCheckpointProcessCheckpoint(pid, NULL));
    else if (!strcmp(what, "restore"))
        answer(cuCheckpointProcessRestore(pid, NULL));
    else if (!strcmp(what, "unlock"))
        answer(cuCheckpointProcessUnlock(pid, NULL));
    else if (!strcmp(what, "state"))
        state(pid);
    else if (!strcmp(what, "cycle"))
        for (;;)
            cycle(pid);
    else if (!strcmp(what, "killed"))
        killed(first, atoi(second));
    else if (!strcmp(what, "seen"))
        seen((unsigned)pid);
    else if (!strcmp(what, "args"))
        bad_arguments(pid);
    else if (!strcmp(what, "drop"))
        drop();
    else
        return false;
    return true;
}

static bool obey_for_memory(const char *what, const char *first, const char *second)
{
    size_t free_bytes, total;
    if (!strcmp(what, "use"))
        answer(use(atoi(first)));
    else if (!strcmp(what, "alloc"))
        answer(alloc(strtoull(first, NULL, 10)));
    else if (!strcmp(what, "check"))
        check();
    else if (!strcmp(what, "info"))
        answer(cuMemGetInfo(&free_bytes, &total) ? -1 : (long)free_bytes);
    else if (!strcmp(what, "managed"))
        answer(cuMemAllocManaged(&fixed_at, 1 << 20, CU_MEM_ATTACH_GLOBAL));
    else if (!strcmp(what, "export"))
        export();
    else if (!strcmp(what, "ipc"))
        ipc();
    else if (!strcmp(what, "pool"))
        answer(pool());
    else if (!strcmp(what, "import"))
        import(atoi(first), atoi(second));
    else if (!strcmp(what, "open"))
        answer(open_ipc(first));
    else if (!strcmp(what, "unshare"))
        answer(unshare(false));
    else if (!strcmp(what, "close"))
        answer(unshare(true));
    else
        return false;
    return true;
}

static bool obey_for_work(const char *what, const char *first)
{
    if (!strcmp(what, "launch")) {
        answer(launch((unsigned)atoi(first)));
    } else if (!strcmp(what, "sync")) {
        answer(cuCtxSynchronize());
    } else if (!strcmp(what, "hold")) {
        answer(cuLaunchHostFunc(NULL, wait_for_signal, NULL));
    } else if (!strcmp(what, "thread")) {
        int failed = pthread_create(&other, NULL, use_and_wait, NULL);
        while (!failed && sem_wait(&other_used))
            continue;
        answer(failed);
    } else if (!strcmp(what, "join")) {
        sem_post(&other_ends);
        answer(pthread_join(other, NULL));
    } else if (!strcmp(what, "burn")) {
        for (int i = 0; i < THREADS; i++)
            pthread_create(&burners[i], NULL, burn, NULL);
        for (int i = 0; i < THREADS; i++)
            while (sem_wait(&burning))
                continue;
        answer(0);
    } else if (!strcmp(what, "stop")) {
        stop();
    } else {
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    char line[512], what[32], first[256], second[32];
    sem_init(&may_end, 0, 0);
    sem_init(&burning, 0, 0);
    sem_init(&other_used, 0, 0);
    sem_init(&other_ends, 0, 0);
    signal(SIGUSR1, let);
    if (argc < 2 || strcmp(argv[1], "early"))
        first_device();
    if (argc > 2 && !strcmp(argv[1], "once")) {
        MARK();
        cycle(atoi(argv[2]));
        return tap_failed;
    }
    while (fgets(line, sizeof line, stdin)) {
        *what = *first = *second = 0;
        sscanf(line, "%31s %255s %31s", what, first, second);
        if (!obey_for_others(what, first, second) && !obey_for_memory(what, first, second) && !obey_for_work(what, first))
            return 2;
    }
    return 0; /* without tidying up: leaving is the driver's business */
}
