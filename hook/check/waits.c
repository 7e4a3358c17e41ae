/* waits: streams that wait for what is not on the GPU, with work behind that.
 *
 *   waits KIND STREAM FRONT_US BEHIND_US
 *
 * launches a kernel of FRONT_US and waits for its end; has the stream wait in the way
 * of KIND, launches a kernel of BEHIND_US behind that, and prints "queued". With a line
 * on its input it lets the stream go on, waits for its end and prints "done". So again
 * for each further line.
 *
 * KIND is value32, value64, batch, host, callback, semaphore, event (recorded by another
 * process, which waits for the line), or node: a graph with a host function in it.
 * STREAM is created (and not blocking), blocking, legacy, thread; or how the kernel behind
 * depends on a stream that is not its own: after (an event of that), beneath (it is on the
 * legacy stream, that blocks), above (the wait is on the legacy stream). With copy there
 * is a synchronous copy behind the wait instead, by a thread of its own.
 *
 *   waits rounds KIND a|b FILE ROUNDS
 *
 * so many rounds of two processes by turns, of KIND value32 (in memory of process a),
 * host (in FILE) or semaphore (FILE): each has a kernel, then the other has. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *kind, *how;
static CUcontext context;
static volatile uint64_t *host; /* what is waited for */
static CUdeviceptr seen;        /* as the device sees it */
static CUexternalSemaphore semaphore;
static uint64_t round_; /* the value that ends the wait */
static int peer[2][2];  /* pipes to and from the process whose event is waited for */
static CUevent shared;

static bool is(const char *name) { return !strcmp(kind, name); }

static void launch(CUfunction f, CUstream stream) { MUST(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL)); }

static void sleeps(void *value)
{
    while (*host < (uint64_t)(uintptr_t)value)
        usleep(100);
}

static void CUDA_CB calls_back(CUstream stream, CUresult result, void *value)
{
    (void)stream, (void)result;
    sleeps(value);
}

static CUexternalSemaphore import(int fd)
{
    CUexternalSemaphore got;
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC desc = {.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD, .handle.fd = fd};
    MUST(cuImportExternalSemaphore(&got, &desc));
    return got;
}

/* The other process: for each byte records its event behind a wait, and ends that with
 * the next byte. It is not in the slice's account: it launches nothing. */
static void be_peer(void)
{
    char byte = 0;
    void *word;
    CUdeviceptr at;
    CUipcEventHandle handle;
    primary_context();
    MUST(cuEventCreate(&shared, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    MUST(cuIpcGetEventHandle(&handle, shared));
    MUST(cuMemHostAlloc(&word, 8, CU_MEMHOSTALLOC_DEVICEMAP));
    MUST(cuMemHostGetDevicePointer(&at, word, 0));
    ENSURE(write(peer[1][1], &handle, sizeof handle) == sizeof handle);
    CUstream stream = new_stream();
    for (uint32_t n = 1; read(peer[0][0], &byte, 1) == 1; n++) {
        MUST(cuStreamWaitValue32(stream, at, n, CU_STREAM_WAIT_VALUE_GEQ));
        MUST(cuEventRecord(shared, stream));
        ENSURE(write(peer[1][1], &byte, 1) == 1);
        if (read(peer[0][0], &byte, 1) != 1)
            break;
        *(volatile uint32_t *)word = n;
        MUST(cuStreamSynchronize(stream));
    }
}

static void start_peer(void)
{
    ENSURE(pipe(peer[0]) == 0 && pipe(peer[1]) == 0);
    if (fork() == 0) {
        close(peer[0][1]);
        close(peer[1][0]);
        be_peer();
        _exit(0);
    }
    close(peer[0][0]);
    close(peer[1][1]);
}

static void prepare(void)
{
    CUipcEventHandle handle;
    void *both;
    MUST(cuMemHostAlloc(&both, 16, CU_MEMHOSTALLOC_DEVICEMAP));
    MUST(cuMemHostGetDevicePointer(&seen, both, 0));
    host = both;
    *host = 0;
    if (is("semaphore")) {
        int fd = memfd_create("semaphore", MFD_CLOEXEC);
        ENSURE(ftruncate(fd, 4096) == 0);
        host = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        semaphore = import(fd);
    }
    if (is("event")) {
        ENSURE(read(peer[1][0], &handle, sizeof handle) == sizeof handle);
        MUST(cuIpcOpenEventHandle(&shared, handle));
    }
}

static void wait_on(CUstream stream)
{
    char byte = 0;
    CUstreamBatchMemOpParams p[1];
    round_++;
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS until = {.params.fence.value = round_};
    memset(p, 0, sizeof p);
    p[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    p[0].waitValue.address = seen;
    p[0].waitValue.value64 = round_;
    if (is("value32"))
        MUST(cuStreamWaitValue32(stream, seen, (uint32_t)round_, CU_STREAM_WAIT_VALUE_GEQ));
    else if (is("value64"))
        MUST(cuStreamWaitValue64(stream, seen, round_, CU_STREAM_WAIT_VALUE_GEQ));
    else if (is("batch"))
        MUST(cuStreamBatchMemOp(stream, 1, p, 0));
    else if (is("host"))
        MUST(cuLaunchHostFunc(stream, sleeps, (void *)(uintptr_t)round_));
    else if (is("callback"))
        MUST(cuStreamAddCallback(stream, calls_back, (void *)(uintptr_t)round_, 0));
    else if (is("semaphore"))
        MUST(cuWaitExternalSemaphoresAsync(&semaphore, &until, 1, stream));
    else if (is("event")) {
        ENSURE(write(peer[0][1], &byte, 1) == 1 && read(peer[1][0], &byte, 1) == 1);
        MUST(cuStreamWaitEvent(stream, shared, 0));
    } else
        ENSURE(!"a kind");
}

/* The graph: a host function that waits, and the kernel behind it. */
static void launch_graph(CUfunction behind, CUstream stream)
{
    CUgraph graph;
    CUgraphExec exec;
    CUstream captured = new_stream();
    round_++;
    MUST(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuLaunchHostFunc(captured, sleeps, (void *)(uintptr_t)round_));
    launch(behind, captured);
    MUST(cuStreamEndCapture(captured, &graph));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, stream));
}

static void *copies(void *unused)
{
    (void)unused;
    int got;
    CUdeviceptr from;
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc(&from, sizeof got));
    MUST(cuMemcpyDtoH(&got, from, sizeof got)); /* on the legacy stream */
    return NULL;
}

static void satisfy(void)
{
    char byte = 0;
    if (is("event"))
        ENSURE(write(peer[0][1], &byte, 1) == 1);
    else
        *host = round_;
}

static void queue(CUfunction front, CUfunction behind)
{
    CUstream on = !strcmp(how, "legacy") || !strcmp(how, "above") || !strcmp(how, "copy") ? CU_STREAM_LEGACY
                  : !strcmp(how, "thread")                                                ? CU_STREAM_PER_THREAD
                                                                                          : new_stream();
    CUstream next = on;
    CUevent event;
    pthread_t thread;
    if (!strcmp(how, "blocking") || !strcmp(how, "beneath"))
        MUST(cuStreamCreate(&on, CU_STREAM_DEFAULT));
    if (!strcmp(how, "after"))
        next = new_stream();
    else if (!strcmp(how, "above"))
        MUST(cuStreamCreate(&next, CU_STREAM_DEFAULT));
    else
        next = !strcmp(how, "beneath") ? CU_STREAM_LEGACY : on;
    launch(front, on);
    MUST(cuStreamSynchronize(on));
    if (is("node")) {
        launch_graph(behind, on);
    } else {
        wait_on(on);
        if (!strcmp(how, "after")) {
            MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
            MUST(cuEventRecord(event, on));
            MUST(cuStreamWaitEvent(next, event, 0));
        }
        if (strcmp(how, "copy"))
            launch(behind, next);
        else
            ENSURE(pthread_create(&thread, NULL, copies, NULL) == 0);
    }
    printf("queued\n");
    fflush(stdout);
    int c;
    while ((c = getchar()) != '\n')
        if (c == EOF)
            _exit(0);
    satisfy();
    if (!strcmp(how, "copy"))
        pthread_join(thread, NULL);
    MUST(cuCtxSynchronize());
    printf("done\n");
    fflush(stdout);
}

/* ---- rounds ---- */

static uint64_t *place; /* in the file: the numbers that the two have come to, 4096 bytes apart */
static CUdeviceptr at;  /* the same on the device */
static CUexternalSemaphore semaphores[2];
static CUstream line;

static uint64_t *number(int which) { return &place[512 * which]; }
static void writes_0(void *value) { __atomic_store_n(number(0), (uint64_t)(uintptr_t)value, __ATOMIC_RELEASE); }
static void writes_1(void *value) { __atomic_store_n(number(1), (uint64_t)(uintptr_t)value, __ATOMIC_RELEASE); }

static void awaits(int which, void *value)
{
    while (__atomic_load_n(number(which), __ATOMIC_ACQUIRE) < (uint64_t)(uintptr_t)value)
        usleep(100);
}
static void awaits_0(void *value) { awaits(0, value); }
static void awaits_1(void *value) { awaits(1, value); }

/* In the stream's turn: writes the number, or waits for it. */
static void put(int which, int i)
{
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS to = {.params.fence.value = (uint64_t)i};
    if (is("value32"))
        MUST(cuStreamWriteValue32(line, at + 4 * (CUdeviceptr)which, (uint32_t)i, 0));
    else if (is("semaphore"))
        MUST(cuSignalExternalSemaphoresAsync(&semaphores[which], &to, 1, line));
    else
        MUST(cuLaunchHostFunc(line, which ? writes_1 : writes_0, (void *)(uintptr_t)i));
}

static void get(int which, int i)
{
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS until = {.params.fence.value = (uint64_t)i};
    if (is("value32"))
        MUST(cuStreamWaitValue32(line, at + 4 * (CUdeviceptr)which, (uint32_t)i, CU_STREAM_WAIT_VALUE_GEQ));
    else if (is("semaphore"))
        MUST(cuWaitExternalSemaphoresAsync(&semaphores[which], &until, 1, line));
    else
        MUST(cuLaunchHostFunc(line, which ? awaits_1 : awaits_0, (void *)(uintptr_t)i));
}

/* The words on the device, made by the first, whose handle is in the file. */
static CUdeviceptr words(bool first)
{
    CUipcMemHandle handle;
    if (first) {
        MUST(cuMemAlloc(&at, 4096));
        MUST(cuMemsetD32(at, 0, 1024));
        MUST(cuIpcGetMemHandle(&handle, at));
        memcpy(&place[8], &handle, sizeof handle);
        __atomic_store_n(&place[1], 1, __ATOMIC_RELEASE);
        return at;
    }
    while (!__atomic_load_n(&place[1], __ATOMIC_ACQUIRE))
        usleep(1000);
    memcpy(&handle, &place[8], sizeof handle);
    MUST(cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    return at;
}

static CUexternalSemaphore semaphore_in(const char *file, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s", file, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ENSURE(fd >= 0 && ftruncate(fd, 4096) == 0);
    return import(fd);
}

static void rounds(bool first, const char *file, int n)
{
    int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ENSURE(fd >= 0 && ftruncate(fd, 8192) == 0);
    place = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ENSURE(place != MAP_FAILED);
    primary_context();
    if (is("value32"))
        at = words(first);
    for (int i = 0; i < 2 && is("semaphore"); i++)
        semaphores[i] = semaphore_in(file, i ? ".1" : ".0");
    CUfunction f = timed_kernel(2000);
    line = new_stream();
    for (int i = 1; i <= n; i++) {
        if (!first)
            get(0, i);
        launch(f, line);
        put(!first, i);
        if (first) {
            get(1, i);
            launch(f, line);
        }
        MUST(cuStreamSynchronize(line));
    }
    if (is("value32") && first) /* the other has it open */
        while (__atomic_load_n(&place[2], __ATOMIC_ACQUIRE) == 0)
            usleep(1000);
    __atomic_store_n(&place[2], 1, __ATOMIC_RELEASE);
    printf("done\n");
}

int main(int argc, char **argv)
{
    if (argc == 6 && !strcmp(argv[1], "rounds")) {
        kind = argv[2];
        rounds(argv[3][0] == 'a', argv[4], atoi(argv[5]));
        return 0;
    }
    ENSURE(argc == 5);
    kind = argv[1];
    how = argv[2];
    if (is("event"))
        start_peer();
    context = primary_context();
    prepare();
    CUfunction front = timed_kernel(atoi(argv[3])), behind = timed_kernel(atoi(argv[4]));
    for (;;)
        queue(front, behind);
}
