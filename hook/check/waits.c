/* waits: streams that wait for something outside the GPU, with work behind the wait.
 *
 *   waits KIND STREAM FRONT_US BEHIND_US
 *
 * The program launches a kernel of FRONT_US and waits for its end. It adds a wait of KIND to the stream,
 * launches a kernel of BEHIND_US behind it, and prints "queued". After a line on its input, it ends the
 * wait, waits for all work and prints "done". It repeats this for each further line.
 *
 * KIND is what the stream waits for:
 *
 *   value32, value64, batch   a value in memory (cuStreamWaitValue, cuStreamBatchMemOp)
 *   host, callback, node      a host function (cuLaunchHostFunc, cuStreamAddCallback, node of a graph)
 *   semaphore                 an external semaphore
 *   event                     an event that another process has recorded behind a wait; the line ends that wait
 *
 * STREAM is the stream with the wait, and the stream with the kernel behind it:
 *
 *   created, blocking, legacy, thread   both are the same (created: a non-blocking stream)
 *   after      two created streams; the second waits for an event behind the wait
 *   beneath    a blocking stream with the wait, the legacy stream with the kernel
 *   above      the legacy stream with the wait, a blocking stream with the kernel
 *   copy       the legacy stream; instead of the kernel, a thread makes a synchronous copy
 *
 *   waits rounds KIND a|b FILE ROUNDS
 *
 * Two processes, a and b, run ROUNDS rounds: in each, a launches a kernel, b waits for it and
 * launches its own, and a waits for that and launches another. KIND is value32 (in memory of
 * process a), host (in FILE) or semaphore (FILE.0 and FILE.1). */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *kind, *streams; /* the arguments KIND and STREAM */
static CUcontext context;
static volatile uint64_t *word; /* the word that the waits poll */
static CUdeviceptr device_word; /* its address on the device */
static CUexternalSemaphore semaphore;
static uint64_t round_; /* number of the wait; a word of this value or more ends it */
static int peer[2][2];  /* pipes to the process that records the event, and from it */
static CUevent shared;  /* that event */

static bool is(const char *name) { return !strcmp(kind, name); }

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

static CUexternalSemaphore import(int fd)
{
    CUexternalSemaphore imported;
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC desc = {.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD, .handle.fd = fd};
    ASSERT_SUCCESS(cuImportExternalSemaphore(&imported, &desc));
    return imported;
}

/* Runs the process that records the event. After a byte on its input, it records the event behind a wait
 * and answers with a byte; after the next byte, it ends the wait. The library does not account for it in
 * the slice, because it launches nothing. */
static void be_peer(void)
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
    ASSERT(write(peer[1][1], &handle, sizeof handle) == sizeof handle);
    CUstream stream = new_stream();
    for (uint32_t n = 1; read(peer[0][0], &byte, 1) == 1; n++) {
        ASSERT_SUCCESS(cuStreamWaitValue32(stream, device_own_word, n, CU_STREAM_WAIT_VALUE_GEQ));
        ASSERT_SUCCESS(cuEventRecord(shared, stream));
        ASSERT(write(peer[1][1], &byte, 1) == 1);
        if (read(peer[0][0], &byte, 1) != 1)
            break;
        *(volatile uint32_t *)own_word = n;
        ASSERT_SUCCESS(cuStreamSynchronize(stream));
    }
}

static void start_peer(void)
{
    ASSERT(pipe(peer[0]) == 0 && pipe(peer[1]) == 0);
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
    void *memory;
    ASSERT_SUCCESS(cuMemHostAlloc(&memory, 16, CU_MEMHOSTALLOC_DEVICEMAP));
    ASSERT_SUCCESS(cuMemHostGetDevicePointer(&device_word, memory, 0));
    word = memory;
    *word = 0;
    if (is("semaphore")) {
        int fd = memfd_create("semaphore", MFD_CLOEXEC);
        ASSERT(ftruncate(fd, 4096) == 0);
        word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        semaphore = import(fd);
    }
    if (is("event")) {
        ASSERT(read(peer[1][0], &handle, sizeof handle) == sizeof handle);
        ASSERT_SUCCESS(cuIpcOpenEventHandle(&shared, handle));
    }
}

/* Adds the next wait to the stream. */
static void add_wait(CUstream stream)
{
    char byte = 0;
    CUstreamBatchMemOpParams p[1];
    round_++;
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS until = {.params.fence.value = round_};
    memset(p, 0, sizeof p);
    p[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    p[0].waitValue.address = device_word;
    p[0].waitValue.value64 = round_;
    if (is("value32"))
        ASSERT_SUCCESS(cuStreamWaitValue32(stream, device_word, (uint32_t)round_, CU_STREAM_WAIT_VALUE_GEQ));
    else if (is("value64"))
        ASSERT_SUCCESS(cuStreamWaitValue64(stream, device_word, round_, CU_STREAM_WAIT_VALUE_GEQ));
    else if (is("batch"))
        ASSERT_SUCCESS(cuStreamBatchMemOp(stream, 1, p, 0));
    else if (is("host"))
        ASSERT_SUCCESS(cuLaunchHostFunc(stream, await_word, (void *)(uintptr_t)round_));
    else if (is("callback"))
        ASSERT_SUCCESS(cuStreamAddCallback(stream, await_word_callback, (void *)(uintptr_t)round_, 0));
    else if (is("semaphore"))
        ASSERT_SUCCESS(cuWaitExternalSemaphoresAsync(&semaphore, &until, 1, stream));
    else if (is("event")) {
        ASSERT(write(peer[0][1], &byte, 1) == 1 && read(peer[1][0], &byte, 1) == 1);
        ASSERT_SUCCESS(cuStreamWaitEvent(stream, shared, 0));
    } else
        ASSERT(!"a known KIND");
}

/* Launches a graph of a host function, which is the next wait, and a kernel behind it. */
static void launch_graph(CUfunction behind, CUstream stream)
{
    CUgraph graph;
    CUgraphExec exec;
    CUstream captured = new_stream();
    round_++;
    ASSERT_SUCCESS(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_SUCCESS(cuLaunchHostFunc(captured, await_word, (void *)(uintptr_t)round_));
    launch_block(behind, captured);
    ASSERT_SUCCESS(cuStreamEndCapture(captured, &graph));
    ASSERT_SUCCESS(cuGraphInstantiateWithFlags(&exec, graph, 0));
    ASSERT_SUCCESS(cuGraphLaunch(exec, stream));
}

/* A thread that makes a synchronous copy, on the legacy stream. */
static void *copy(void *unused)
{
    (void)unused;
    int to;
    CUdeviceptr from;
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    ASSERT_SUCCESS(cuMemAlloc(&from, sizeof to));
    ASSERT_SUCCESS(cuMemcpyDtoH(&to, from, sizeof to));
    return NULL;
}

static void end_wait(void)
{
    char byte = 0;
    if (is("event"))
        ASSERT(write(peer[0][1], &byte, 1) == 1);
    else
        *word = round_;
}

/* Runs one round: launches, adds the wait, and ends it after a line on the input. */
static void run_round(CUfunction front, CUfunction behind)
{
    CUstream on = !strcmp(streams, "legacy") || !strcmp(streams, "above") || !strcmp(streams, "copy") ? CU_STREAM_LEGACY
                  : !strcmp(streams, "thread")                                                        ? CU_STREAM_PER_THREAD
                                                                                                      : new_stream();
    CUstream next = on;
    CUevent event;
    pthread_t thread = 0;
    if (!strcmp(streams, "blocking") || !strcmp(streams, "beneath"))
        ASSERT_SUCCESS(cuStreamCreate(&on, CU_STREAM_DEFAULT));
    if (!strcmp(streams, "after"))
        next = new_stream();
    else if (!strcmp(streams, "above"))
        ASSERT_SUCCESS(cuStreamCreate(&next, CU_STREAM_DEFAULT));
    else
        next = !strcmp(streams, "beneath") ? CU_STREAM_LEGACY : on;
    launch_block(front, on);
    ASSERT_SUCCESS(cuStreamSynchronize(on));
    if (is("node")) {
        launch_graph(behind, on);
    } else {
        add_wait(on);
        if (!strcmp(streams, "after")) {
            ASSERT_SUCCESS(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
            ASSERT_SUCCESS(cuEventRecord(event, on));
            ASSERT_SUCCESS(cuStreamWaitEvent(next, event, 0));
        }
        if (strcmp(streams, "copy"))
            launch_block(behind, next);
        else
            thread = start_thread(copy, NULL);
    }
    say_line("queued");
    int c;
    while ((c = getchar()) != '\n')
        if (c == EOF)
            _exit(0);
    end_wait();
    if (!strcmp(streams, "copy"))
        pthread_join(thread, NULL);
    ASSERT_SUCCESS(cuCtxSynchronize());
    say_line("done");
}

/* ---- rounds ---- */

/* In FILE. Words 0 and 512 are the rounds that the processes a and b have reached (KIND host). Word 1
 * tells b that a's handle is at word 8 (KIND value32), and word 2 tells a that b has finished. */
static uint64_t *file_words;
static CUdeviceptr device_rounds; /* the rounds, as two 32-bit words on the device (KIND value32) */
static CUexternalSemaphore semaphores[2];
static CUstream stream;

static uint64_t *reached(int process) { return &file_words[512 * process]; }
static void set_a(void *value) { __atomic_store_n(reached(0), (uint64_t)(uintptr_t)value, __ATOMIC_RELEASE); }
static void set_b(void *value) { __atomic_store_n(reached(1), (uint64_t)(uintptr_t)value, __ATOMIC_RELEASE); }

static void await_process(int process, void *value)
{
    while (__atomic_load_n(reached(process), __ATOMIC_ACQUIRE) < (uint64_t)(uintptr_t)value)
        usleep(100);
}
static void await_a(void *value) { await_process(0, value); }
static void await_b(void *value) { await_process(1, value); }

/* In stream order, announces that the process (0: a, 1: b) has reached round i. */
static void announce(int process, int i)
{
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS to = {.params.fence.value = (uint64_t)i};
    if (is("value32"))
        ASSERT_SUCCESS(cuStreamWriteValue32(stream, device_rounds + 4 * (CUdeviceptr)process, (uint32_t)i, 0));
    else if (is("semaphore"))
        ASSERT_SUCCESS(cuSignalExternalSemaphoresAsync(&semaphores[process], &to, 1, stream));
    else
        ASSERT_SUCCESS(cuLaunchHostFunc(stream, process ? set_b : set_a, (void *)(uintptr_t)i));
}

/* Makes the stream wait until the process has announced round i. */
static void wait_for(int process, int i)
{
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS until = {.params.fence.value = (uint64_t)i};
    if (is("value32"))
        ASSERT_SUCCESS(cuStreamWaitValue32(stream, device_rounds + 4 * (CUdeviceptr)process, (uint32_t)i,
                                           CU_STREAM_WAIT_VALUE_GEQ));
    else if (is("semaphore"))
        ASSERT_SUCCESS(cuWaitExternalSemaphoresAsync(&semaphores[process], &until, 1, stream));
    else
        ASSERT_SUCCESS(cuLaunchHostFunc(stream, process ? await_b : await_a, (void *)(uintptr_t)i));
}

/* Sets device_rounds. Process a allocates the memory and puts its handle into the file. */
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

static CUexternalSemaphore semaphore_in(const char *file, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s", file, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT(fd >= 0 && ftruncate(fd, 4096) == 0);
    return import(fd);
}

static void rounds(bool is_a, const char *file, int n)
{
    int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT(fd >= 0 && ftruncate(fd, 8192) == 0);
    file_words = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ASSERT(file_words != MAP_FAILED);
    primary_context();
    if (is("value32"))
        open_device_rounds(is_a);
    for (int i = 0; i < 2 && is("semaphore"); i++)
        semaphores[i] = semaphore_in(file, i ? ".1" : ".0");
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
    if (is("value32") && is_a) /* b may still have the memory open */
        while (__atomic_load_n(&file_words[2], __ATOMIC_ACQUIRE) == 0)
            usleep(1000);
    __atomic_store_n(&file_words[2], 1, __ATOMIC_RELEASE);
    printf("done\n");
}

int main(int argc, char **argv)
{
    if (argc == 6 && !strcmp(argv[1], "rounds")) {
        kind = argv[2];
        rounds(argv[3][0] == 'a', argv[4], atoi(argv[5]));
        return 0;
    }
    ASSERT(argc == 5);
    kind = argv[1];
    streams = argv[2];
    if (is("event"))
        start_peer();
    context = primary_context();
    prepare();
    CUfunction front = timed_kernel(atoi(argv[3])), behind = timed_kernel(atoi(argv[4]));
    for (;;)
        run_round(front, behind);
}
