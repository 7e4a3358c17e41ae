/* waits: streams that wait for something outside the GPU, with work queued behind the wait.
 *
 *   waits KIND STREAM FRONT_US BEHIND_US
 *
 * The program launches a kernel that takes FRONT_US microseconds and waits until it has finished. Then it
 * queues a wait of KIND on the stream and behind it a kernel that takes BEHIND_US, and prints "queued".
 * When it reads a line from its input, it ends the wait. When all work has finished, it prints "done". It
 * repeats all this until its input ends.
 *
 * KIND is what the stream waits for:
 *
 *   value32, value64, batch   a value in memory (cuStreamWaitValue32, cuStreamWaitValue64, cuStreamBatchMemOp)
 *   host, callback            the return of a host function (cuLaunchHostFunc, cuStreamAddCallback)
 *   node                      the return of a host function that is a node of a graph; the kernel is in the
 *                             same graph
 *   semaphore                 an external semaphore
 *   event                     an event of another process. That process has recorded it on a stream that
 *                             waits for a value, and this program makes it end that wait
 *
 * STREAM selects two streams, one for the wait and one for the kernel behind it:
 *
 *   created    one non-blocking stream for both
 *   blocking   one blocking stream for both
 *   legacy     the legacy stream for both
 *   thread     the per-thread stream for both
 *   after      two non-blocking streams; the second waits for an event that was recorded behind the wait
 *   beneath    the wait is on a blocking stream, and the kernel on the legacy stream
 *   above      the wait is on the legacy stream, and the kernel on a blocking stream
 *   copy       the wait is on the legacy stream; in place of the kernel, a second thread makes a synchronous
 *              copy, which also uses the legacy stream
 *
 *   waits rounds KIND a|b FILE ROUNDS
 *
 * Runs as one of two processes, a and b, whose kernels wait for each other. In each of ROUNDS rounds, a
 * launches a kernel, b waits for it and launches its own, and a waits for that and launches another. KIND is
 * what the streams wait for: value32 (a value in device memory of process a), host (a host function that
 * polls FILE) or semaphore (external semaphores in the files FILE.0 and FILE.1). */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *kind, *streams; /* the arguments KIND and STREAM */
static CUcontext context;
static volatile uint64_t *word; /* the value that ends the waits, except those for an event */
static CUdeviceptr device_word; /* the address of the word on the device */
static CUexternalSemaphore semaphore;
static uint64_t wait_number; /* number of the current wait, which ends when the word is at least that number */
static int to_peer[2], from_peer[2]; /* pipes to and from the process that records the event */
static CUevent shared;               /* that event, of both processes */

static bool is_kind(const char *name) { return !strcmp(kind, name); }
static bool is_stream(const char *name) { return !strcmp(streams, name); }

/* A host function: returns when the word is at least the value. */
static void await_word(void *value)
{
    while (*word < (uint64_t)(uintptr_t)value)
        usleep(100);
}

static void CUDA_CB await_word_callback(CUstream stream, CUresult result, void *value)
{
    (void)stream, (void)result;
    await_word(value);
}

static CUexternalSemaphore import_semaphore(int fd)
{
    CUexternalSemaphore imported;
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC desc = {.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD, .handle.fd = fd};
    ASSERT_SUCCESS(cuImportExternalSemaphore(&imported, &desc));
    return imported;
}

/* Runs the process that records the event. First it sends the handle of the event. When it then receives a
 * byte, it records the event behind a wait and answers with a byte. When it receives the next byte, it ends
 * the wait. The process never requests a lease, because it launches nothing. */
static void run_peer(void)
{
    char byte = 0;
    void *own_word;
    CUdeviceptr device_own_word;
    CUipcEventHandle handle;
    primary_context();
    ASSERT_SUCCESS(cuEventCreate(&shared, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    ASSERT_SUCCESS(cuIpcGetEventHandle(&handle, shared));
    ASSERT_SUCCESS(cuMemHostAlloc(&own_word, 8, CU_MEMHOSTALLOC_DEVICEMAP));
    ASSERT_SUCCESS(cuMemHostGetDevicePointer(&device_own_word, own_word, 0));
    ASSERT(write(from_peer[1], &handle, sizeof handle) == sizeof handle);
    CUstream stream = new_stream();
    for (uint32_t n = 1; read(to_peer[0], &byte, 1) == 1; n++) {
        ASSERT_SUCCESS(cuStreamWaitValue32(stream, device_own_word, n, CU_STREAM_WAIT_VALUE_GEQ));
        ASSERT_SUCCESS(cuEventRecord(shared, stream));
        ASSERT(write(from_peer[1], &byte, 1) == 1);
        if (read(to_peer[0], &byte, 1) != 1)
            break;
        *(volatile uint32_t *)own_word = n;
        ASSERT_SUCCESS(cuStreamSynchronize(stream));
    }
}

static void start_peer(void)
{
    ASSERT(pipe(to_peer) == 0 && pipe(from_peer) == 0);
    if (fork() == 0) {
        close(to_peer[1]);
        close(from_peer[0]);
        run_peer();
        _exit(0);
    }
    close(to_peer[0]);
    close(from_peer[1]);
}

/* Creates what the waits of KIND need. */
static void prepare(void)
{
    CUipcEventHandle handle;
    void *memory;
    ASSERT_SUCCESS(cuMemHostAlloc(&memory, 16, CU_MEMHOSTALLOC_DEVICEMAP));
    ASSERT_SUCCESS(cuMemHostGetDevicePointer(&device_word, memory, 0));
    word = memory;
    *word = 0;
    if (is_kind("semaphore")) {
        int fd = memfd_create("semaphore", MFD_CLOEXEC);
        ASSERT(ftruncate(fd, 4096) == 0);
        word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        semaphore = import_semaphore(fd);
    }
    if (is_kind("event")) {
        ASSERT(read(from_peer[0], &handle, sizeof handle) == sizeof handle);
        ASSERT_SUCCESS(cuIpcOpenEventHandle(&shared, handle));
    }
}

/* Queues the next wait on the stream. */
static void add_wait(CUstream stream)
{
    char byte = 0;
    CUstreamBatchMemOpParams p[1];
    wait_number++;
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS until = {.params.fence.value = wait_number};
    memset(p, 0, sizeof p);
    p[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    p[0].waitValue.address = device_word;
    p[0].waitValue.value64 = wait_number;
    if (is_kind("value32"))
        ASSERT_SUCCESS(cuStreamWaitValue32(stream, device_word, (uint32_t)wait_number, CU_STREAM_WAIT_VALUE_GEQ));
    else if (is_kind("value64"))
        ASSERT_SUCCESS(cuStreamWaitValue64(stream, device_word, wait_number, CU_STREAM_WAIT_VALUE_GEQ));
    else if (is_kind("batch"))
        ASSERT_SUCCESS(cuStreamBatchMemOp(stream, 1, p, 0));
    else if (is_kind("host"))
        ASSERT_SUCCESS(cuLaunchHostFunc(stream, await_word, (void *)(uintptr_t)wait_number));
    else if (is_kind("callback"))
        ASSERT_SUCCESS(cuStreamAddCallback(stream, await_word_callback, (void *)(uintptr_t)wait_number, 0));
    else if (is_kind("semaphore"))
        ASSERT_SUCCESS(cuWaitExternalSemaphoresAsync(&semaphore, &until, 1, stream));
    else if (is_kind("event")) {
        ASSERT(write(to_peer[1], &byte, 1) == 1 && read(from_peer[0], &byte, 1) == 1);
        ASSERT_SUCCESS(cuStreamWaitEvent(stream, shared, 0));
    } else {
        fprintf(stderr, "waits: unknown KIND %s\n", kind);
        exit(1);
    }
}

/* Launches a graph of two nodes: a host function, which is the next wait, and the kernel behind it. */
static void launch_graph(CUfunction behind, CUstream stream)
{
    CUgraph graph;
    CUgraphExec exec;
    CUstream captured = new_stream();
    wait_number++;
    ASSERT_SUCCESS(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_SUCCESS(cuLaunchHostFunc(captured, await_word, (void *)(uintptr_t)wait_number));
    launch_block(behind, captured);
    ASSERT_SUCCESS(cuStreamEndCapture(captured, &graph));
    ASSERT_SUCCESS(cuGraphInstantiateWithFlags(&exec, graph, 0));
    ASSERT_SUCCESS(cuGraphLaunch(exec, stream));
}

/* Makes a synchronous copy, which uses the legacy stream, in a thread of its own. */
static void *copy(void *unused)
{
    (void)unused;
    int to;
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    CUdeviceptr from = new_memory(sizeof to);
    ASSERT_SUCCESS(cuMemcpyDtoH(&to, from, sizeof to));
    return NULL;
}

static void end_wait(void)
{
    char byte = 0;
    if (is_kind("event"))
        ASSERT(write(to_peer[1], &byte, 1) == 1);
    else
        *word = wait_number;
}

/* Runs one round: launches the kernel in front, queues the wait and the kernel behind it, and ends the wait
 * after a line on the input. Ends the program if the input ends. */
static void run_round(CUfunction front, CUfunction behind)
{
    CUstream wait_stream = is_stream("legacy") || is_stream("above") || is_stream("copy") ? CU_STREAM_LEGACY
                           : is_stream("thread")                                          ? CU_STREAM_PER_THREAD
                                                                                          : new_stream();
    CUstream kernel_stream = wait_stream;
    CUevent event;
    pthread_t thread = 0;
    if (is_stream("blocking") || is_stream("beneath"))
        ASSERT_SUCCESS(cuStreamCreate(&wait_stream, CU_STREAM_DEFAULT));
    if (is_stream("after"))
        kernel_stream = new_stream();
    else if (is_stream("above"))
        ASSERT_SUCCESS(cuStreamCreate(&kernel_stream, CU_STREAM_DEFAULT));
    else
        kernel_stream = is_stream("beneath") ? CU_STREAM_LEGACY : wait_stream;
    launch_block(front, wait_stream);
    ASSERT_SUCCESS(cuStreamSynchronize(wait_stream));
    if (is_kind("node")) {
        launch_graph(behind, wait_stream);
    } else {
        add_wait(wait_stream);
        if (is_stream("after")) {
            ASSERT_SUCCESS(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
            ASSERT_SUCCESS(cuEventRecord(event, wait_stream));
            ASSERT_SUCCESS(cuStreamWaitEvent(kernel_stream, event, 0));
        }
        if (is_stream("copy"))
            thread = start_thread(copy, NULL);
        else
            launch_block(behind, kernel_stream);
    }
    say_line("queued");
    int c;
    while ((c = getchar()) != '\n')
        if (c == EOF)
            _exit(0);
    end_wait();
    if (is_stream("copy"))
        pthread_join(thread, NULL);
    ASSERT_SUCCESS(cuCtxSynchronize());
    say_line("done");
}

/* ---- rounds ---- */

/* A process announces a round when its kernel of that round has finished, and the other process waits for
 * the announcement. How it is made depends on KIND:
 *
 *   host       a host function sets a word of FILE, and another one polls it
 *   value32    a stream operation sets a word of device_rounds, and another one waits for it
 *   semaphore  a stream operation signals the semaphore of the process, and another one waits for it
 *
 * FILE consists of 64-bit words:
 *
 *   word 0     the last round that process a has announced (KIND host)
 *   word 1     1: word 8 and those after it are set (KIND value32)
 *   word 2     1: process b has finished
 *   word 8     the IPC handle of device_rounds, which is longer than one word (KIND value32)
 *   word 512   the last round that process b has announced (KIND host) */
static uint64_t *file_words;
static CUdeviceptr device_rounds; /* two 32-bit words: the last rounds that a and b have announced */
static CUexternalSemaphore semaphores[2]; /* of a and of b */
static CUstream stream;

/* In the functions below, process 0 is a and process 1 is b. */
static uint64_t *announced(int process) { return &file_words[512 * process]; }
static void set_a(void *value) { __atomic_store_n(announced(0), (uint64_t)(uintptr_t)value, __ATOMIC_RELEASE); }
static void set_b(void *value) { __atomic_store_n(announced(1), (uint64_t)(uintptr_t)value, __ATOMIC_RELEASE); }

static void await_process(int process, void *value)
{
    while (__atomic_load_n(announced(process), __ATOMIC_ACQUIRE) < (uint64_t)(uintptr_t)value)
        usleep(100);
}
static void await_a(void *value) { await_process(0, value); }
static void await_b(void *value) { await_process(1, value); }

/* Queues on the stream the announcement that the process has finished its kernel of round i. */
static void announce(int process, int i)
{
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS to = {.params.fence.value = (uint64_t)i};
    if (is_kind("value32"))
        ASSERT_SUCCESS(cuStreamWriteValue32(stream, device_rounds + 4 * (CUdeviceptr)process, (uint32_t)i, 0));
    else if (is_kind("semaphore"))
        ASSERT_SUCCESS(cuSignalExternalSemaphoresAsync(&semaphores[process], &to, 1, stream));
    else
        ASSERT_SUCCESS(cuLaunchHostFunc(stream, process ? set_b : set_a, (void *)(uintptr_t)i));
}

/* Queues on the stream a wait for the announcement of round i by the process. */
static void wait_for(int process, int i)
{
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS until = {.params.fence.value = (uint64_t)i};
    if (is_kind("value32"))
        ASSERT_SUCCESS(cuStreamWaitValue32(stream, device_rounds + 4 * (CUdeviceptr)process, (uint32_t)i,
                                           CU_STREAM_WAIT_VALUE_GEQ));
    else if (is_kind("semaphore"))
        ASSERT_SUCCESS(cuWaitExternalSemaphoresAsync(&semaphores[process], &until, 1, stream));
    else
        ASSERT_SUCCESS(cuLaunchHostFunc(stream, process ? await_b : await_a, (void *)(uintptr_t)i));
}

/* Sets device_rounds. Process a allocates the memory and stores its handle in FILE, and b opens it. */
static void open_device_rounds(bool is_a)
{
    CUipcMemHandle handle;
    if (is_a) {
        ASSERT_SUCCESS(cuMemAlloc(&device_rounds, 4096));
        ASSERT_SUCCESS(cuMemsetD32(device_rounds, 0, 1024));
        ASSERT_SUCCESS(cuIpcGetMemHandle(&handle, device_rounds));
        memcpy(&file_words[8], &handle, sizeof handle);
        __atomic_store_n(&file_words[1], 1, __ATOMIC_RELEASE);
        return;
    }
    while (!__atomic_load_n(&file_words[1], __ATOMIC_ACQUIRE))
        usleep(1000);
    memcpy(&handle, &file_words[8], sizeof handle);
    ASSERT_SUCCESS(cuIpcOpenMemHandle(&device_rounds, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

static CUexternalSemaphore open_semaphore(const char *file, const char *suffix)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s", file, suffix);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT(fd >= 0 && ftruncate(fd, 4096) == 0);
    return import_semaphore(fd);
}

/* Runs n rounds as process a or b. */
static void run_rounds(bool is_a, const char *file, int n)
{
    int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT(fd >= 0 && ftruncate(fd, 8192) == 0);
    file_words = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ASSERT(file_words != MAP_FAILED);
    primary_context();
    if (is_kind("value32"))
        open_device_rounds(is_a);
    for (int i = 0; i < 2 && is_kind("semaphore"); i++)
        semaphores[i] = open_semaphore(file, i ? ".1" : ".0");
    CUfunction f = timed_kernel(2000);
    stream = new_stream();
    for (int i = 1; i <= n; i++) {
        if (!is_a)
            wait_for(0, i);
        launch_block(f, stream);
        announce(!is_a, i);
        if (is_a) {
            wait_for(1, i);
            launch_block(f, stream);
        }
        ASSERT_SUCCESS(cuStreamSynchronize(stream));
    }
    if (is_kind("value32") && is_a) /* the memory must exist until b has finished */
        while (__atomic_load_n(&file_words[2], __ATOMIC_ACQUIRE) == 0)
            usleep(1000);
    __atomic_store_n(&file_words[2], 1, __ATOMIC_RELEASE);
    printf("done\n");
}

int main(int argc, char **argv)
{
    if (argc == 6 && !strcmp(argv[1], "rounds")) {
        kind = argv[2];
        run_rounds(argv[3][0] == 'a', argv[4], atoi(argv[5]));
        return 0;
    }
    ASSERT(argc == 5);
    kind = argv[1];
    streams = argv[2];
    if (is_kind("event"))
        start_peer();
    context = primary_context();
    prepare();
    CUfunction front = timed_kernel(atoi(argv[3])), behind = timed_kernel(atoi(argv[4]));
    for (;;)
        run_round(front, behind);
}
