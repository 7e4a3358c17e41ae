/* ends: what programs may do with contexts and streams around their end.
 *
 *   ends CASE
 *
 * detach   attaches and detaches a context: its memory still counts
 * release  one holder of the primary context releases it, another goes on:
 *          prints "busy" while its last kernel of half a second runs, then "done"
 * inflight a context is destroyed under a kernel of two seconds: prints "gone"
 * reset    the primary context is reset under threads that have used it
 * foreign  a stream is destroyed while another context is current
 * awaited  a context is destroyed whose work waits for launches in another one
 * awaited-reset  the primary context is reset, likewise
 * late     threads work in the last round of their destructors, and end
 * keyless  the same, where there is no key left for the library's destructor
 * spent    many streams are used and destroyed, and many threads with streams of
 *          their own end, under one lease: prints "spent" after 1.25 s of kernels
 * bound    a thread that is bound to one processor, and of another policy, is the
 *          first to use the GPU: the library's threads are not so
 * failed   a context that is none is destroyed
 * ahead    launches behind a host function that waits for the program
 * beside   a stream is held back, and another goes on beside it
 * capture  the same, and the other is captured first
 * joined   a stream joins a capture while the library looks at it
 * retained one of the holders of the primary context, of a device that works,
 *          lets go of it, and need not wait
 * stuck    as ahead, of a stream that waits for the legacy one, that waits for the one
 *          with the function, and what that waits for waits itself for another launch:
 *          prints "behind", goes on when there is a line on its input and
 *          ends with that
 * exit     ends, when there is a line on its input, while threads launch without
 *          end, one on each device; that on the third has to allocate first
 */
#define _GNU_SOURCE
#include "check.h"

#include <dirent.h>
#include <limits.h>
#include <pthread.h>
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

static void launch(CUfunction f, CUstream stream)
{
    MUST(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

static void detach(void)
{
    CUdeviceptr block;
    CUcontext same;
    size_t before, after, total;
    MUST(cuCtxCreate(&context, 0, device));
    MUST(cuMemAlloc(&block, 1 << 24));
    MUST(cuMemGetInfo(&before, &total));
    MUST(cuCtxAttach(&same, 0));
    MUST(cuCtxDetach(same));
    MUST(cuMemGetInfo(&after, &total));
    ENSURE(before == after);
    MUST(cuCtxDetach(context));
    MUST(cuCtxCreate(&context, 0, device));
    MUST(cuMemGetInfo(&after, &total));
    ENSURE(after == before + (1 << 24));
}

/* Two threads take turns. */
static pthread_barrier_t turn;

static void *other(void *unused)
{
    (void)unused;
    CUcontext mine;
    MUST(cuDevicePrimaryCtxRetain(&mine, device));
    MUST(cuCtxSetCurrent(mine));
    launch(nop, CU_STREAM_LEGACY);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    launch(slow, CU_STREAM_LEGACY);
    printf("busy\n");
    fflush(stdout);
    MUST(cuCtxSynchronize());
    MUST(cuDevicePrimaryCtxRelease(device));
    return NULL;
}

static void primary_release(void)
{
    pthread_t thread;
    pthread_barrier_init(&turn, NULL, 2);
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    load();
    ENSURE(pthread_create(&thread, NULL, other, NULL) == 0);
    pthread_barrier_wait(&turn);
    MUST(cuDevicePrimaryCtxRelease(device));
    pthread_barrier_wait(&turn);
    pthread_join(thread, NULL);
}

static void inflight(void)
{
    MUST(cuCtxCreate(&context, 0, device));
    CUfunction longest = timed_kernel(2000000);
    CUstream stream = new_stream();
    launch(longest, stream);
    MUST(cuCtxDestroy(context));
    printf("gone\n");
    fflush(stdout);
    while (getchar() != EOF)
        ;
}

static void *resets(void *unused)
{
    (void)unused;
    MUST(cuDevicePrimaryCtxReset(device));
    return NULL;
}

/* Fifty times, or for as long as a driver needs that makes contexts slowly. */
static bool again(int times, double since)
{
    return times < 3 || (times < 50 && now_s() - since < 4);
}

static void reset(void)
{
    double began = now_s();
    for (int i = 0; again(i, began); i++) {
        pthread_t thread;
        MUST(cuDevicePrimaryCtxRetain(&context, device));
        MUST(cuCtxSetCurrent(context));
        load();
        launch(nop, CU_STREAM_LEGACY);
        launch(nop, CU_STREAM_PER_THREAD);
        MUST(cuCtxSynchronize());
        ENSURE(pthread_create(&thread, NULL, resets, NULL) == 0);
        pthread_join(thread, NULL);
    }
}

static void foreign(void)
{
    CUcontext first, second;
    MUST(cuCtxCreate(&first, 0, device));
    load();
    double began = now_s();
    for (int i = 0; again(i, began); i++) {
        CUstream stream;
        MUST(cuCtxSetCurrent(first));
        MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        for (int j = 0; j < 5; j++)
            launch(nop, stream);
        MUST(cuCtxCreate(&second, 0, device));
        MUST(cuStreamDestroy(stream));
        MUST(cuCtxDestroy(second));
    }
    MUST(cuCtxSetCurrent(first));
    MUST(cuCtxSynchronize());
}

static void failed(void)
{
    CUcontext gone;
    MUST(cuCtxCreate(&gone, 0, device));
    MUST(cuCtxDestroy(gone));
    MUST(cuCtxCreate(&context, 0, device));
    load();
    launch(nop, CU_STREAM_LEGACY);
    ENSURE(cuCtxDestroy(NULL) != CUDA_SUCCESS);
    launch(nop, CU_STREAM_LEGACY);
    MUST(cuCtxSynchronize());
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
    CUstream stream;
    MUST(cuCtxCreate(&context, 0, device));
    load();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuLaunchHostFunc(stream, waits, NULL));
    for (int i = 0; i < 50; i++)
        launch(nop, stream);
    __atomic_store_n(&may_go, 1, __ATOMIC_RELEASE);
    MUST(cuStreamSynchronize(stream));
}

static pthread_key_t put_off;
static CUdeviceptr filled;
static __thread int rounds;

/* Puts itself off to the last round, after which no destructor runs. */
static void last_round(void *value)
{
    if (++rounds < PTHREAD_DESTRUCTOR_ITERATIONS) {
        pthread_setspecific(put_off, value);
        return;
    }
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemsetD8(filled, 1, 64));
    launch(nop, CU_STREAM_LEGACY);
    launch(nop, CU_STREAM_PER_THREAD);
    MUST(cuMemcpyHtoD(filled, &(int){1}, sizeof(int)));
}

static void *ends_late(void *later)
{
    MUST(cuCtxSetCurrent(context));
    if (later)
        pthread_setspecific(put_off, later);
    for (int i = 0; i < 20; i++) {
        launch(nop, CU_STREAM_LEGACY);
        usleep(200); /* the library looks at all threads meanwhile */
    }
    return NULL;
}

static void end_threads(void)
{
    for (int i = 0; i < 40; i++) {
        pthread_t thread;
        ENSURE(pthread_create(&thread, NULL, ends_late, i % 2 ? NULL : &put_off) == 0);
        pthread_join(thread, NULL);
    }
    MUST(cuCtxSynchronize());
}

static void set_up_late(void)
{
    MUST(cuCtxCreate(&context, 0, device));
    load();
    MUST(cuMemAlloc(&filled, 64));
}

static void late(void)
{
    ENSURE(pthread_key_create(&put_off, last_round) == 0);
    set_up_late();
    end_threads();
}

/* Takes all keys; the last is given back when the library has looked for one. */
static pthread_key_t taken[PTHREAD_KEYS_MAX + 1];
static unsigned last_taken;

static void take_keys(void)
{
    unsigned n = 0;
    while (pthread_key_create(&taken[n], NULL) == 0)
        ENSURE(pthread_setspecific(taken[n++], &put_off) == 0);
    ENSURE(n > 1);
    last_taken = n - 1;
}

static void keyless(void)
{
    set_up_late();
    launch(nop, CU_STREAM_LEGACY);
    pthread_key_delete(taken[last_taken]);
    ENSURE(pthread_key_create(&put_off, last_round) == 0);
    end_threads();
    for (unsigned i = 0; i < last_taken; i++)
        ENSURE(pthread_getspecific(taken[i]) == &put_off);
}

static void *spends_own(void *f)
{
    MUST(cuCtxSetCurrent(context));
    launch(f, CU_STREAM_PER_THREAD);
    MUST(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    return NULL;
}

static void spent(void)
{
    enum { MANY = 500 };
    static CUstream stream[MANY];
    MUST(cuCtxCreate(&context, 0, device));
    CUfunction brief = timed_kernel(250), longer = timed_kernel(1000000);
    for (int i = 0; i < MANY; i++)
        stream[i] = new_stream(); /* so that no handle comes again */
    for (int i = 0; i < MANY; i++) {
        pthread_t thread;
        ENSURE(pthread_create(&thread, NULL, spends_own, brief) == 0);
        pthread_join(thread, NULL);
    }
    for (int i = 0; i < MANY - 1; i++) {
        launch(brief, stream[i]);
        MUST(cuStreamSynchronize(stream[i]));
        MUST(cuStreamDestroy(stream[i]));
    }
    CUstream again = new_stream(), before = again; /* and then it does, where handles come again at all */
    launch(brief, again);
    MUST(cuStreamSynchronize(again));
    usleep(500);
    MUST(cuStreamDestroy(again));
    launch(brief, stream[MANY - 1]);
    MUST(cuStreamSynchronize(stream[MANY - 1]));
    for (int i = 0; i < MANY && (i == 0 || again != before); i++)
        again = new_stream();
    launch(longer, again);
    MUST(cuStreamSynchronize(again));
    printf("spent\n");
    fflush(stdout);
    while (getchar() != EOF)
        ;
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
    ENSURE(tasks);
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
    ENSURE(sched_setaffinity(0, sizeof one, &one) == 0);
    ENSURE(sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}) == 0);
    unsigned before = threads_of(set);
    MUST(cuInit(0)); /* starts one */
    for (double end = now_s() + 10; threads_of(set) == before; usleep(1000))
        ENSURE(now_s() < end);
    return NULL;
}

static void bound(void)
{
    pthread_t thread;
    cpu_set_t all;
    ENSURE(sched_getaffinity(0, sizeof all, &all) == 0);
    ENSURE(pthread_create(&thread, NULL, works_bound, &all) == 0);
    pthread_join(thread, NULL);
}

static CUcontext neighbour;

/* Goes on for longer than the library waits for the work of a context. */
static void *launches_beside(void *unused)
{
    MUST(cuCtxSetCurrent(neighbour));
    CUfunction f = kernel(check_ptx, "nop");
    for (double end = now_s() + 1.3; now_s() < end; usleep(1000)) {
        CUstream stream = new_stream(); /* not known yet */
        launch(f, stream);
        MUST(cuStreamDestroy(stream));
    }
    __atomic_store_n(&may_go, 1, __ATOMIC_RELEASE);
    return unused;
}

static pthread_t await_neighbour(void)
{
    pthread_t thread;
    load();
    CUstream stream = new_stream();
    launch(nop, stream);
    MUST(cuLaunchHostFunc(stream, waits, NULL));
    launch(nop, stream);
    ENSURE(pthread_create(&thread, NULL, launches_beside, NULL) == 0);
    return thread;
}

static void awaited(void)
{
    MUST(cuCtxCreate(&neighbour, 0, device));
    MUST(cuCtxCreate(&context, 0, device));
    pthread_t thread = await_neighbour();
    MUST(cuCtxDestroy(context));
    ENSURE(may_go);
    pthread_join(thread, NULL);
}

static void awaited_reset(void)
{
    MUST(cuCtxCreate(&neighbour, 0, device));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    pthread_t thread = await_neighbour();
    MUST(cuDevicePrimaryCtxReset(device));
    ENSURE(may_go);
    pthread_join(thread, NULL);
}

/* Two blocking streams, of which one is held back. The legacy stream was used
 * before. */
static CUstream held, other_stream;

static void hold(void)
{
    MUST(cuCtxCreate(&context, 0, device));
    load();
    MUST(cuStreamCreate(&held, CU_STREAM_DEFAULT));
    MUST(cuStreamCreate(&other_stream, CU_STREAM_DEFAULT));
    launch(nop, held);
    launch(nop, CU_STREAM_LEGACY);
    MUST(cuCtxSynchronize());
    MUST(cuLaunchHostFunc(held, waits, NULL));
    launch(nop, held);
}

/* The other one goes on: the legacy stream must not have been made to wait for
 * the one and so hold up the other. */
static void let_go(void)
{
    for (double end = now_s() + 10; cuStreamQuery(other_stream) == CUDA_ERROR_NOT_READY; usleep(1000))
        ENSURE(now_s() < end);
    __atomic_store_n(&may_go, 1, __ATOMIC_RELEASE);
    MUST(cuCtxSynchronize());
}

static void beside(void)
{
    CUdeviceptr memory;
    hold();
    MUST(cuMemAlloc(&memory, 4096));
    usleep(100000); /* while nothing is launched the library looks whether all is over */
    MUST(cuMemsetD8Async(memory, 1, 4096, other_stream));
    let_go();
}

static void capture(void)
{
    CUgraph graph;
    CUgraphExec exec;
    hold();
    MUST(cuStreamBeginCapture(other_stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch(nop, other_stream);
    MUST(cuStreamEndCapture(other_stream, &graph));
    MUST(cuGraphInstantiate(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, other_stream));
    let_go();
}

static void joined(void)
{
    CUevent fork_event, join_event;
    CUgraph graph;
    CUstream first, second;
    MUST(cuCtxCreate(&context, 0, device));
    load();
    first = new_stream();
    second = new_stream();
    MUST(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 40; i++) {
        launch(nop, second);
        MUST(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_GLOBAL));
        MUST(cuEventRecord(fork_event, first));
        usleep((useconds_t)(i * 500)); /* until it does */
        MUST(cuStreamWaitEvent(second, fork_event, 0));
        launch(nop, second);
        MUST(cuEventRecord(join_event, second));
        MUST(cuStreamWaitEvent(first, join_event, 0));
        usleep(10000);
        MUST(cuStreamEndCapture(first, &graph));
        MUST(cuGraphDestroy(graph));
        MUST(cuCtxSynchronize());
    }
}

/* Whether a stream works still when a holder of the context has let go of it. */
static int works_on(CUstream stream)
{
    CUcontext same;
    MUST(cuDevicePrimaryCtxRetain(&same, device));
    launch(slow, stream);
    MUST(cuDevicePrimaryCtxRelease(device));
    int works = cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
    MUST(cuStreamSynchronize(stream));
    return works;
}

static void retained(void)
{
    CUstream stream;
    int tries = 10; /* the machine may be slow */
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    load();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    while (!works_on(stream))
        ENSURE(--tries);
    launch(nop, stream);
    MUST(cuDevicePrimaryCtxRelease(device)); /* the last, and a new one */
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    load();
    launch(nop, CU_STREAM_LEGACY);
    MUST(cuDevicePrimaryCtxReset(device));
}

static void *endless(void *ordinal)
{
    CUcontext mine;
    CUdeviceptr block;
    MUST(cuCtxCreate(&mine, 0, (CUdevice)(size_t)ordinal));
    if (ordinal == (void *)2)
        MUST(cuMemAlloc(&block, 1024));
    CUfunction f = kernel(check_ptx, "nop");
    while (cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, NULL, NULL) == CUDA_SUCCESS)
        ;
    return NULL; /* the driver is shut down */
}

static void exits(void)
{
    int count;
    pthread_t thread;
    MUST(cuDeviceGetCount(&count));
    for (int i = 0; i < count; i++)
        ENSURE(pthread_create(&thread, NULL, endless, (void *)(size_t)i) == 0);
    ENSURE(getchar() != EOF);
}

static void stuck(void)
{
    CUstream stream, other, last;
    MUST(cuCtxCreate(&context, 0, device));
    load();
    MUST(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    MUST(cuStreamCreate(&last, CU_STREAM_DEFAULT));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    launch(nop, stream);
    MUST(cuLaunchHostFunc(stream, waits, NULL));
    launch(nop, CU_STREAM_LEGACY);
    launch(nop, last);
    printf("behind\n");
    fflush(stdout);
    ENSURE(getchar() != EOF);
    launch(nop, other);
    __atomic_store_n(&may_go, 1, __ATOMIC_RELEASE);
    MUST(cuStreamSynchronize(last));
    MUST(cuStreamSynchronize(other));
    while (getchar() != EOF)
        ;
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
        MUST(cuInit(0));
        MUST(cuDeviceGet(&device, 0));
    }
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(argv[1], cases[i].name)) {
            cases[i].run();
            printf("done\n");
            return 0;
        }
    return 2;
}
