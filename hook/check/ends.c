/* ends: what programs may do with contexts and streams around the end of these or of the process.
 *
 *   ends CASE
 *
 * detach   attaches and detaches a context: its memory still counts
 * release  one holder of the primary context releases it, another continues:
 *          prints "busy" while its last kernel of half a second runs, then "done"
 * inflight destroys a context while a kernel of two seconds runs in it: prints "gone"
 * reset    resets the primary context in a thread that has not used it
 * foreign  destroys a stream while another context is current
 * awaited  destroys a context whose work waits for launches in another context
 * awaited-reset  the same, but resets the primary context
 * late     threads send work in the last round of their destructors, and end
 * keyless  the same, with no key available for the library's destructor
 * spent    uses and destroys many streams, and ends many threads with streams of their
 *          own, all under one lease: prints "spent" after 1.25 s of kernels
 * bound    the first thread to use the GPU is bound to one processor and has another
 *          scheduling policy: the library's threads do not inherit these
 * failed   tries to destroy a NULL context
 * ahead    launches behind a host function that waits for the program
 * beside   a stream is held back while another continues
 * capture  the same, and the other stream is captured first
 * joined   a stream joins a capture while the library polls it
 * retained a holder of the primary context, among several, releases it while the device
 *          is busy, and need not wait
 * stuck    as ahead, through a chain: the program waits on a stream behind the legacy
 *          stream, which waits for the stream with the host function, which waits for
 *          another launch. Prints "behind", continues after a line on its input, and
 *          ends with its input
 * exit     exits after a line on its input, while one thread per device launches endlessly;
 *          the thread on the third device has to allocate first */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <unistd.h>

static CUdevice device;
static CUcontext context;
static CUfunction nop, slow;

static void load(void)
{
    nop = kernel(check_ptx, "nop");
    slow = timed_kernel(500000);
}

static void detach(void)
{
    CUcontext same;
    size_t before, after, total;
    ASSERT_SUCCESS(cuCtxCreate(&context, 0, device));
    new_memory(1 << 24);
    ASSERT_SUCCESS(cuMemGetInfo(&before, &total));
    ASSERT_SUCCESS(cuCtxAttach(&same, 0));
    ASSERT_SUCCESS(cuCtxDetach(same));
    ASSERT_SUCCESS(cuMemGetInfo(&after, &total));
    ASSERT(before == after);
    ASSERT_SUCCESS(cuCtxDetach(context));
    ASSERT_SUCCESS(cuCtxCreate(&context, 0, device));
    ASSERT_SUCCESS(cuMemGetInfo(&after, &total));
    ASSERT(after == before + (1 << 24));
}

/* The two threads of a case take turns. */
static pthread_barrier_t turn;

static void *other(void *unused)
{
    (void)unused;
    CUcontext mine;
    ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&mine, device));
    ASSERT_SUCCESS(cuCtxSetCurrent(mine));
    launch_block(nop, CU_STREAM_LEGACY);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    launch_block(slow, CU_STREAM_LEGACY);
    say_line("busy");
    ASSERT_SUCCESS(cuCtxSynchronize());
    ASSERT_SUCCESS(cuDevicePrimaryCtxRelease(device));
    return NULL;
}

static void primary_release(void)
{
    pthread_barrier_init(&turn, NULL, 2);
    ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&context, device));
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    load();
    pthread_t thread = start_thread(other, NULL);
    pthread_barrier_wait(&turn);
    ASSERT_SUCCESS(cuDevicePrimaryCtxRelease(device));
    pthread_barrier_wait(&turn);
    pthread_join(thread, NULL);
}

static void inflight(void)
{
    ASSERT_SUCCESS(cuCtxCreate(&context, 0, device));
    CUfunction longest = timed_kernel(2000000);
    CUstream stream = new_stream();
    launch_block(longest, stream);
    ASSERT_SUCCESS(cuCtxDestroy(context));
    say_line("gone");
    await_end();
}

static void *resets(void *unused)
{
    (void)unused;
    ASSERT_SUCCESS(cuDevicePrimaryCtxReset(device));
    return NULL;
}

/* Reports whether to repeat: 50 times, or at least three times and up to 4 s if the driver creates
 * contexts slowly. */
static bool again(int times, double since)
{
    return times < 3 || (times < 50 && now_s() - since < 4);
}

static void reset(void)
{
    double began = now_s();
    for (int i = 0; again(i, began); i++) {
        ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&context, device));
        ASSERT_SUCCESS(cuCtxSetCurrent(context));
        load();
        launch_block(nop, CU_STREAM_LEGACY);
        launch_block(nop, CU_STREAM_PER_THREAD);
        ASSERT_SUCCESS(cuCtxSynchronize());
        pthread_t thread = start_thread(resets, NULL);
        pthread_join(thread, NULL);
    }
}

static void foreign(void)
{
    CUcontext first, second;
    ASSERT_SUCCESS(cuCtxCreate(&first, 0, device));
    load();
    double began = now_s();
    for (int i = 0; again(i, began); i++) {
        ASSERT_SUCCESS(cuCtxSetCurrent(first));
        CUstream stream = new_stream();
        for (int j = 0; j < 5; j++)
            launch_block(nop, stream);
        ASSERT_SUCCESS(cuCtxCreate(&second, 0, device));
        ASSERT_SUCCESS(cuStreamDestroy(stream));
        ASSERT_SUCCESS(cuCtxDestroy(second));
    }
    ASSERT_SUCCESS(cuCtxSetCurrent(first));
    ASSERT_SUCCESS(cuCtxSynchronize());
}

static void failed(void)
{
    CUcontext gone;
    ASSERT_SUCCESS(cuCtxCreate(&gone, 0, device));
    ASSERT_SUCCESS(cuCtxDestroy(gone));
    ASSERT_SUCCESS(cuCtxCreate(&context, 0, device));
    load();
    launch_block(nop, CU_STREAM_LEGACY);
    ASSERT(cuCtxDestroy(NULL) != CUDA_SUCCESS);
    launch_block(nop, CU_STREAM_LEGACY);
    ASSERT_SUCCESS(cuCtxSynchronize());
}

static int may_go;

static void waits(void *unused)
{
    (void)unused;
    while (!__atomic_load_n(&may_go, __ATOMIC_ACQUIRE))
        usleep(1000);
}

static void ahead(void)
{
    ASSERT_SUCCESS(cuCtxCreate(&context, 0, device));
    load();
    CUstream stream = new_stream();
    ASSERT_SUCCESS(cuLaunchHostFunc(stream, waits, NULL));
    for (int i = 0; i < 50; i++)
        launch_block(nop, stream);
    __atomic_store_n(&may_go, 1, __ATOMIC_RELEASE);
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
}

static pthread_key_t put_off;
static CUdeviceptr filled;
static __thread int rounds;

/* A destructor that sets its key again until the last round, after which no destructor runs, and
 * then sends work. */
static void last_round(void *value)
{
    if (++rounds < PTHREAD_DESTRUCTOR_ITERATIONS) {
        pthread_setspecific(put_off, value);
        return;
    }
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    ASSERT_SUCCESS(cuMemsetD8(filled, 1, 64));
    launch_block(nop, CU_STREAM_LEGACY);
    launch_block(nop, CU_STREAM_PER_THREAD);
    ASSERT_SUCCESS(cuMemcpyHtoD(filled, &(int){1}, sizeof(int)));
}

static void *ends_late(void *later)
{
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    if (later)
        pthread_setspecific(put_off, later);
    for (int i = 0; i < 20; i++) {
        launch_block(nop, CU_STREAM_LEGACY);
        usleep(200); /* meanwhile the library polls all threads */
    }
    return NULL;
}

static void end_threads(void)
{
    for (int i = 0; i < 40; i++) {
        pthread_t thread = start_thread(ends_late, i % 2 ? NULL : &put_off);
        pthread_join(thread, NULL);
    }
    ASSERT_SUCCESS(cuCtxSynchronize());
}

static void set_up_late(void)
{
    ASSERT_SUCCESS(cuCtxCreate(&context, 0, device));
    load();
    ASSERT_SUCCESS(cuMemAlloc(&filled, 64));
}

static void late(void)
{
    ASSERT(pthread_key_create(&put_off, last_round) == 0);
    set_up_late();
    end_threads();
}

/* Takes all keys. The last one is freed after the library has looked for a key. */
static pthread_key_t taken[PTHREAD_KEYS_MAX + 1];
static unsigned last_taken;

static void take_keys(void)
{
    unsigned n = 0;
    while (pthread_key_create(&taken[n], NULL) == 0)
        ASSERT(pthread_setspecific(taken[n++], &put_off) == 0);
    ASSERT(n > 1);
    last_taken = n - 1;
}

static void keyless(void)
{
    set_up_late();
    launch_block(nop, CU_STREAM_LEGACY);
    pthread_key_delete(taken[last_taken]);
    ASSERT(pthread_key_create(&put_off, last_round) == 0);
    end_threads();
    for (unsigned i = 0; i < last_taken; i++)
        ASSERT(pthread_getspecific(taken[i]) == &put_off);
}

static void *spends_own(void *f)
{
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    launch_block(f, CU_STREAM_PER_THREAD);
    ASSERT_SUCCESS(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    return NULL;
}

static void spent(void)
{
    enum { MANY = 500 };
    static CUstream stream[MANY];
    ASSERT_SUCCESS(cuCtxCreate(&context, 0, device));
    CUfunction brief = timed_kernel(250), longer = timed_kernel(1000000);
    for (int i = 0; i < MANY; i++)
        stream[i] = new_stream(); /* all are created first, so that the driver does not reuse a handle */
    for (int i = 0; i < MANY; i++) {
        pthread_t thread = start_thread(spends_own, brief);
        pthread_join(thread, NULL);
    }
    for (int i = 0; i < MANY - 1; i++) {
        launch_block(brief, stream[i]);
        ASSERT_SUCCESS(cuStreamSynchronize(stream[i]));
        ASSERT_SUCCESS(cuStreamDestroy(stream[i]));
    }
    CUstream again = new_stream(), before = again; /* now the driver reuses a handle, if it does so at all */
    launch_block(brief, again);
    ASSERT_SUCCESS(cuStreamSynchronize(again));
    usleep(500);
    ASSERT_SUCCESS(cuStreamDestroy(again));
    launch_block(brief, stream[MANY - 1]);
    ASSERT_SUCCESS(cuStreamSynchronize(stream[MANY - 1]));
    for (int i = 0; i < MANY && (i == 0 || again != before); i++)
        again = new_stream();
    launch_block(longer, again);
    ASSERT_SUCCESS(cuStreamSynchronize(again));
    say_line("spent");
    await_end();
}

static bool same_here(pid_t thread, const cpu_set_t *expected)
{
    cpu_set_t set;
    return sched_getaffinity(thread, sizeof set, &set) == 0 && CPU_EQUAL(&set, expected) &&
           sched_getscheduler(thread) == SCHED_OTHER;
}

static unsigned threads_of(const cpu_set_t *set)
{
    unsigned count = 0;
    DIR *tasks = opendir("/proc/self/task");
    ASSERT(tasks);
    for (struct dirent *e; (e = readdir(tasks));)
        count += *e->d_name != '.' && same_here(atoi(e->d_name), set);
    closedir(tasks);
    return count;
}

static void *works_bound(void *set)
{
    cpu_set_t one;
    int last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(last, (cpu_set_t *)set))
        last--;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    ASSERT(sched_setaffinity(0, sizeof one, &one) == 0);
    ASSERT(sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}) == 0);
    unsigned before = threads_of(set);
    ASSERT_SUCCESS(cuInit(0)); /* starts a thread of the library */
    for (double end = now_s() + 10; threads_of(set) == before; usleep(1000))
        ASSERT(now_s() < end);
    return NULL;
}

static void bound(void)
{
    cpu_set_t all;
    ASSERT(sched_getaffinity(0, sizeof all, &all) == 0);
    pthread_t thread = start_thread(works_bound, &all);
    pthread_join(thread, NULL);
}

static CUcontext neighbour;

/* Launches for longer than the library waits for the work of a context. */
static void *launches_beside(void *unused)
{
    ASSERT_SUCCESS(cuCtxSetCurrent(neighbour));
    CUfunction f = kernel(check_ptx, "nop");
    for (double end = now_s() + 1.3; now_s() < end; usleep(1000)) {
        CUstream stream = new_stream(); /* not known yet */
        launch_block(f, stream);
        ASSERT_SUCCESS(cuStreamDestroy(stream));
    }
    __atomic_store_n(&may_go, 1, __ATOMIC_RELEASE);
    return unused;
}

static pthread_t await_neighbour(void)
{
    load();
    CUstream stream = new_stream();
    launch_block(nop, stream);
    ASSERT_SUCCESS(cuLaunchHostFunc(stream, waits, NULL));
    launch_block(nop, stream);
    pthread_t thread = start_thread(launches_beside, NULL);
    return thread;
}

static void awaited(void)
{
    ASSERT_SUCCESS(cuCtxCreate(&neighbour, 0, device));
    ASSERT_SUCCESS(cuCtxCreate(&context, 0, device));
    pthread_t thread = await_neighbour();
    ASSERT_SUCCESS(cuCtxDestroy(context));
    ASSERT(may_go);
    pthread_join(thread, NULL);
}

static void awaited_reset(void)
{
    ASSERT_SUCCESS(cuCtxCreate(&neighbour, 0, device));
    ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&context, device));
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    pthread_t thread = await_neighbour();
    ASSERT_SUCCESS(cuDevicePrimaryCtxReset(device));
    ASSERT(may_go);
    pthread_join(thread, NULL);
}

/* Two blocking streams; `held` is held back. The legacy stream was used before. */
static CUstream held, other_stream;

static void hold(void)
{
    ASSERT_SUCCESS(cuCtxCreate(&context, 0, device));
    load();
    ASSERT_SUCCESS(cuStreamCreate(&held, CU_STREAM_DEFAULT));
    ASSERT_SUCCESS(cuStreamCreate(&other_stream, CU_STREAM_DEFAULT));
    launch_block(nop, held);
    launch_block(nop, CU_STREAM_LEGACY);
    ASSERT_SUCCESS(cuCtxSynchronize());
    ASSERT_SUCCESS(cuLaunchHostFunc(held, waits, NULL));
    launch_block(nop, held);
}

/* Checks that the other stream continues: the library must not have made the legacy stream wait for
 * `held`, which would hold up the other stream. */
static void let_go(void)
{
    for (double end = now_s() + 10; cuStreamQuery(other_stream) == CUDA_ERROR_NOT_READY; usleep(1000))
        ASSERT(now_s() < end);
    __atomic_store_n(&may_go, 1, __ATOMIC_RELEASE);
    ASSERT_SUCCESS(cuCtxSynchronize());
}

static void beside(void)
{
    hold();
    CUdeviceptr memory = new_memory(4096);
    usleep(100000); /* while nothing is launched, the library checks whether all work has finished */
    ASSERT_SUCCESS(cuMemsetD8Async(memory, 1, 4096, other_stream));
    let_go();
}

static void capture(void)
{
    CUgraph graph;
    CUgraphExec exec;
    hold();
    ASSERT_SUCCESS(cuStreamBeginCapture(other_stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch_block(nop, other_stream);
    ASSERT_SUCCESS(cuStreamEndCapture(other_stream, &graph));
    ASSERT_SUCCESS(cuGraphInstantiate(&exec, graph, 0));
    ASSERT_SUCCESS(cuGraphLaunch(exec, other_stream));
    let_go();
}

static void joined(void)
{
    CUevent fork_event, join_event;
    CUgraph graph;
    CUstream first, second;
    ASSERT_SUCCESS(cuCtxCreate(&context, 0, device));
    load();
    first = new_stream();
    second = new_stream();
    ASSERT_SUCCESS(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
    ASSERT_SUCCESS(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 40; i++) {
        launch_block(nop, second);
        ASSERT_SUCCESS(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_GLOBAL));
        ASSERT_SUCCESS(cuEventRecord(fork_event, first));
        usleep((useconds_t)(i * 500)); /* varies, so that the library polls during some of the captures */
        ASSERT_SUCCESS(cuStreamWaitEvent(second, fork_event, 0));
        launch_block(nop, second);
        ASSERT_SUCCESS(cuEventRecord(join_event, second));
        ASSERT_SUCCESS(cuStreamWaitEvent(first, join_event, 0));
        usleep(10000);
        ASSERT_SUCCESS(cuStreamEndCapture(first, &graph));
        ASSERT_SUCCESS(cuGraphDestroy(graph));
        ASSERT_SUCCESS(cuCtxSynchronize());
    }
}

/* Reports whether the work of a stream still runs after a holder has released the context. */
static int works_on(CUstream stream)
{
    CUcontext same;
    ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&same, device));
    launch_block(slow, stream);
    ASSERT_SUCCESS(cuDevicePrimaryCtxRelease(device));
    int works = cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
    ASSERT_SUCCESS(cuStreamSynchronize(stream));
    return works;
}

static void retained(void)
{
    int tries = 10; /* the host may be slow */
    ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&context, device));
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    load();
    CUstream stream = new_stream();
    while (!works_on(stream))
        ASSERT(--tries);
    launch_block(nop, stream);
    /* the last holder releases the context, and a new context follows */
    ASSERT_SUCCESS(cuDevicePrimaryCtxRelease(device));
    ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&context, device));
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    load();
    launch_block(nop, CU_STREAM_LEGACY);
    ASSERT_SUCCESS(cuDevicePrimaryCtxReset(device));
}

static void *endless(void *ordinal)
{
    CUcontext mine;
    ASSERT_SUCCESS(cuCtxCreate(&mine, 0, (CUdevice)(size_t)ordinal));
    if (ordinal == (void *)2)
        new_memory(1024);
    CUfunction f = kernel(check_ptx, "nop");
    while (cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, NULL, NULL) == CUDA_SUCCESS)
        ;
    return NULL; /* the driver is shut down */
}

static void exits(void)
{
    int count;
    ASSERT_SUCCESS(cuDeviceGetCount(&count));
    for (int i = 0; i < count; i++)
        start_thread(endless, (void *)(size_t)i);
    ASSERT(getchar() != EOF);
}

static void stuck(void)
{
    CUstream stream, other, last;
    ASSERT_SUCCESS(cuCtxCreate(&context, 0, device));
    load();
    ASSERT_SUCCESS(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    ASSERT_SUCCESS(cuStreamCreate(&last, CU_STREAM_DEFAULT));
    ASSERT_SUCCESS(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    launch_block(nop, stream);
    ASSERT_SUCCESS(cuLaunchHostFunc(stream, waits, NULL));
    launch_block(nop, CU_STREAM_LEGACY);
    launch_block(nop, last);
    say_line("behind");
    ASSERT(getchar() != EOF);
    launch_block(nop, other);
    __atomic_store_n(&may_go, 1, __ATOMIC_RELEASE);
    ASSERT_SUCCESS(cuStreamSynchronize(last));
    ASSERT_SUCCESS(cuStreamSynchronize(other));
    await_end();
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(void); } cases[] = {
        {"detach", detach}, {"release", primary_release}, {"inflight", inflight}, {"reset", reset}, {"foreign", foreign}, {"failed", failed}, {"bound", bound}, {"spent", spent}, {"late", late}, {"keyless", keyless}, {"awaited", awaited}, {"awaited-reset", awaited_reset}, {"ahead", ahead}, {"beside", beside}, {"capture", capture}, {"joined", joined}, {"retained", retained}, {"stuck", stuck}, {"exit", exits},
    };
    if (argc != 2)
        return 2;
    if (!strcmp(argv[1], "keyless"))
        take_keys();
    if (strcmp(argv[1], "bound") != 0) {
        ASSERT_SUCCESS(cuInit(0));
        ASSERT_SUCCESS(cuDeviceGet(&device, 0));
    }
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(argv[1], cases[i].name)) {
            cases[i].run();
            printf("done\n");
            return 0;
        }
    return 2;
}
