/* checkpoint.c: checkpoints another process, or is checkpointed itself. It executes the lines on
 * its standard input and answers each with a line, which is the driver's result code unless stated
 * otherwise. It ends with its input.
 *
 *   use DEVICE             makes the context of that device current; creates it on first use
 *   alloc BYTES            allocates, and writes a pattern
 *   check                  "right" if all allocations still hold their patterns
 *   info                   the free memory of the device, in bytes
 *   launch MS              launches a kernel
 *   sync                   waits for the context's work
 *   hold                   queues a host function that ends with the next SIGUSR1
 *   managed, export, ipc, pool   make memory of a kind with which a process cannot be checkpointed;
 *                          export and ipc answer with the arguments of import and open
 *   import PID FD          imports what another process has exported
 *   unshare                frees the memory that managed, export, ipc, pool or import has made
 *   open HEX, close        opens and closes the memory of another process's ipc
 *   thread, join           starts a thread that uses CUDA, and lets it end
 *   burn, stop             starts threads that launch, and stops them; "N right" if each
 *                          launch has had its effect
 *   lock PID MS, checkpoint PID, restore PID, unlock PID
 *   state PID              "state N", or the code
 *   cycle PID              repeats all four steps until it is killed
 *   killed PID N           a child does one cycle, and is killed before its Nth system call
 *                          in it: "killed", or "done" if it makes fewer
 *   seen DEVICE            the device's processes according to NVML, "PID:BYTES" each
 *   args PID               the codes of many calls with invalid arguments
 *   drop                   gives up the capability to checkpoint others
 *
 * With the argument "early", it does not initialise the driver at its start. With "once PID", it does
 * one cycle and ends. */
#include "nvml.h"
#include "objects.h"

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

/* No variables, which would use memory. saxpy processes one element. */
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

enum { DEVICES = 2, MAX_HELD = 64, THREADS = 2 };

static CUcontext contexts[DEVICES];
static CUfunction ticks[DEVICES], saxpys[DEVICES];
static CUdevice current;

static struct {
    CUdeviceptr at;
    size_t size;
    CUcontext ctx;
} held[MAX_HELD];
static int n_held;

static void answer(long code)
{
    printf("%ld\n", code);
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
        ASSERT_SUCCESS(cuModuleLoadData(&m, ptx));
        ASSERT_SUCCESS(cuModuleGetFunction(&ticks[dev], m, "tick"));
        ASSERT_SUCCESS(cuModuleGetFunction(&saxpys[dev], m, "saxpy"));
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
    if (r != CUDA_SUCCESS || n_held == MAX_HELD)
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
    ASSERT_SUCCESS(cuCtxGetCurrent(&before));
    for (int i = 0; i < n_held; i++) {
        unsigned char *want = malloc(held[i].size), *got = malloc(held[i].size);
        pattern(want, held[i].size, i);
        ASSERT_SUCCESS(cuCtxSetCurrent(held[i].ctx));
        ASSERT_SUCCESS(cuMemcpyDtoH(got, held[i].at, held[i].size));
        right &= !memcmp(want, got, held[i].size);
        free(want);
        free(got);
    }
    ASSERT_SUCCESS(cuCtxSetCurrent(before));
    puts(right ? "right" : "wrong");
}

/* ---- memory that blocks checkpoints ---- */

static CUdeviceptr blocking_at;
static CUmemGenericAllocationHandle blocking_handle;
static CUmemoryPool blocking_pool;
static int blocking_fd = -1;

static void export(void)
{
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, current}};
    p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    ASSERT_SUCCESS(cuMemCreate(&blocking_handle, 2 << 20, &p, 0));
    ASSERT_SUCCESS(cuMemExportToShareableHandle(&blocking_fd, blocking_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                                0));
    answer(blocking_fd);
}

static void import(int pid, int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    answer(cuMemImportFromShareableHandle(&blocking_handle, (void *)(intptr_t)fd,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
}

static void ipc(void)
{
    CUipcMemHandle h;
    ASSERT_SUCCESS(cuMemAlloc(&blocking_at, 1 << 20));
    ASSERT_SUCCESS(cuIpcGetMemHandle(&h, blocking_at));
    for (size_t i = 0; i < sizeof h; i++)
        printf("%02x", ((unsigned char *)&h)[i]);
    puts("");
}

static CUresult open_ipc(const char *hex)
{
    CUipcMemHandle h;
    for (size_t i = 0; i < sizeof h; i++)
        sscanf(hex + 2 * i, "%2hhx", (unsigned char *)&h + i);
    return cuIpcOpenMemHandle(&blocking_at, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUresult pool(void)
{
    CUmemPoolProps p = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, current}};
    p.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    ASSERT_SUCCESS(cuMemPoolCreate(&blocking_pool, &p));
    return cuMemPoolExportToShareableHandle(&blocking_fd, blocking_pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

/* Frees the memory. `opened`: it belongs to another process. */
static CUresult unshare(bool opened)
{
    CUresult r = CUDA_SUCCESS;
    if (blocking_at)
        r = opened ? cuIpcCloseMemHandle(blocking_at) : cuMemFree(blocking_at);
    if (blocking_handle)
        r = cuMemRelease(blocking_handle);
    if (blocking_pool)
        r = cuMemPoolDestroy(blocking_pool);
    if (blocking_fd >= 0)
        close(blocking_fd);
    blocking_at = 0;
    blocking_handle = 0;
    blocking_pool = NULL;
    blocking_fd = -1;
    return r;
}

/* ---- work ---- */

static CUresult launch(unsigned ms)
{
    unsigned n = (unsigned)attribute_of(current, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    return cuLaunchKernel(ticks[current], ms ? ms * n : 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

static sem_t may_end;
static void on_usr1(int sig)
{
    (void)sig;
    sem_post(&may_end);
}

static void await(sem_t *sem)
{
    while (sem_wait(sem))
        continue;
}

static void wait_for_signal(void *unused)
{
    (void)unused;
    await(&may_end);
}

static atomic_bool stopping;
static pthread_t burners[THREADS], thread;
static sem_t burning, thread_ready, thread_may_end;

/* Adds 1 to a number with each launch. */
static void *burn(void *unused)
{
    float k = 1, out[2] = {1, 0};
    int one = 1;
    uintptr_t n = 0;
    (void)unused;
    ASSERT_SUCCESS(cuCtxSetCurrent(contexts[0]));
    CUstream s = new_stream();
    CUdeviceptr p = new_memory(sizeof out);
    ASSERT_SUCCESS(cuMemcpyHtoD(p, out, sizeof out));
    CUdeviceptr y = p + sizeof *out;
    void *args[] = {&k, &p, &y, &one};
    sem_post(&burning);
    for (; !atomic_load(&stopping); n++) {
        ASSERT_SUCCESS(cuLaunchKernel(saxpys[0], 1, 1, 1, 1, 1, 1, 0, s, args, NULL));
        if (n % 100 == 99)
            ASSERT_SUCCESS(cuStreamSynchronize(s));
    }
    ASSERT_SUCCESS(cuStreamSynchronize(s));
    ASSERT_SUCCESS(cuMemcpyDtoH(out, p, sizeof out));
    return (void *)(out[1] == (float)n ? n : 0);
}

static void *use_and_wait(void *unused)
{
    (void)unused;
    ASSERT_SUCCESS(cuCtxSetCurrent(contexts[0]));
    ASSERT_SUCCESS(cuStreamQuery(CU_STREAM_PER_THREAD));
    sem_post(&thread_ready);
    await(&thread_may_end);
    return NULL;
}

static void start_thread(void)
{
    int failed = pthread_create(&thread, NULL, use_and_wait, NULL);
    if (!failed)
        await(&thread_ready);
    answer(failed);
}

static void join_thread(void)
{
    sem_post(&thread_may_end);
    answer(pthread_join(thread, NULL));
}

static void start_burners(void)
{
    for (int i = 0; i < THREADS; i++)
        pthread_create(&burners[i], NULL, burn, NULL);
    for (int i = 0; i < THREADS; i++)
        await(&burning);
    answer(0);
}

static void stop_burners(void)
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
}

/* ---- other processes ---- */

static void state(int pid)
{
    CUprocessState s = -1;
    CUresult r = cuCheckpointProcessGetState(pid, &s);
    if (r != CUDA_SUCCESS) {
        answer(r);
        return;
    }
    printf("state %d\n", (int)s);
}

static CUresult lock(int pid, unsigned ms)
{
    CUcheckpointLockArgs a = {.timeoutMs = ms};
    return cuCheckpointProcessLock(pid, ms ? &a : NULL);
}

static void cycle(int pid)
{
    ASSERT_SUCCESS(cuCheckpointProcessLock(pid, NULL));
    ASSERT_SUCCESS(cuCheckpointProcessCheckpoint(pid, NULL));
    ASSERT_SUCCESS(cuCheckpointProcessRestore(pid, NULL));
    ASSERT_SUCCESS(cuCheckpointProcessUnlock(pid, NULL));
}

/* The system call that marks the start of the child's cycle. */
#define MARK() syscall(SYS_getppid)

/* Reports whether the child is stopped before a system call, and stores the number of that call. */
static bool is_before(pid_t child, uint64_t *number)
{
    struct __ptrace_syscall_info info = {0};
    bool got = ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info) > 0 && info.op == PTRACE_SYSCALL_INFO_ENTRY;
    *number = got ? info.entry.nr : 0;
    return got;
}

/* Continues until the child is about to make a system call. Returns false if it has ended. */
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
    waitpid(child, &status, 0); /* the child stops when it begins the program */
    ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
    bool running = true;
    while (running && number != SYS_getppid)
        running = step(child, &number);
    while (running && n-- > 0)
        running = step(child, &number);
    if (running) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
    puts(running ? "killed" : "done");
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

/* Executes a line. Returns false if it is unknown. */
static bool execute(const char *what, const char *first, const char *second)
{
    const int n = atoi(first), m = atoi(second);
    size_t free_bytes, total;
#define ON(name, action)       \
    if (!strcmp(what, name)) { \
        action;                \
        return true;           \
    }
    ON("use", answer(use(n)))
    ON("alloc", answer(alloc(strtoull(first, NULL, 10))))
    ON("check", check())
    ON("info", answer(cuMemGetInfo(&free_bytes, &total) ? -1 : (long)free_bytes))
    ON("launch", answer(launch((unsigned)n)))
    ON("sync", answer(cuCtxSynchronize()))
    ON("hold", answer(cuLaunchHostFunc(NULL, wait_for_signal, NULL)))
    ON("managed", answer(cuMemAllocManaged(&blocking_at, 1 << 20, CU_MEM_ATTACH_GLOBAL)))
    ON("export", export())
    ON("ipc", ipc())
    ON("pool", answer(pool()))
    ON("import", import(n, m))
    ON("unshare", answer(unshare(false)))
    ON("open", answer(open_ipc(first)))
    ON("close", answer(unshare(true)))
    ON("thread", start_thread())
    ON("join", join_thread())
    ON("burn", start_burners())
    ON("stop", stop_burners())
    ON("lock", answer(lock(n, (unsigned)m)))
    ON("checkpoint", answer(cuCheckpointProcessCheckpoint(n, NULL)))
    ON("restore", answer(cuCheckpointProcessRestore(n, NULL)))
    ON("unlock", answer(cuCheckpointProcessUnlock(n, NULL)))
    ON("state", state(n))
    ON("cycle", for (;;) cycle(n))
    ON("killed", killed(first, m))
    ON("seen", seen((unsigned)n))
    ON("args", bad_arguments(n))
    ON("drop", drop())
    return false;
}

int main(int argc, char **argv)
{
    char line[512], what[32], first[256], second[32];
    setlinebuf(stdout);
    sem_init(&may_end, 0, 0);
    sem_init(&burning, 0, 0);
    sem_init(&thread_ready, 0, 0);
    sem_init(&thread_may_end, 0, 0);
    signal(SIGUSR1, on_usr1);
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
        if (!execute(what, first, second))
            return 2;
    }
    return 0; /* without cleanup: that is the driver's task */
}
