/* sim_ipc_event.c: events recorded in one process and awaited in another. A host function that
 * reads from a pipe holds a stream back. */
#include "objects.h"
#include "peer.h"

#include <fcntl.h>
#include <signal.h>

static void hold(void *arg)
{
    char c;
    while (read(*(int *)arg, &c, 1) < 0)
        ;
}

struct side {
    CUcontext ctx;
    CUstream s;
    CUdeviceptr p;
    int gate[2]; /* a byte written here releases the stream */
};

static struct side begin(CUdevice dev)
{
    struct side a;
    if (pipe(a.gate) || fcntl(a.gate[0], F_SETFD, FD_CLOEXEC) || fcntl(a.gate[1], F_SETFD, FD_CLOEXEC))
        exit(1);
    ASSERT_SUCCESS(cuCtxCreate(&a.ctx, 0, dev));
    ASSERT_SUCCESS(cuStreamCreate(&a.s, CU_STREAM_NON_BLOCKING));
    ASSERT_SUCCESS(cuMemAlloc(&a.p, 4096));
    return a;
}

static void let_go(const struct side *a)
{
    if (write(a->gate[1], "g", 1) != 1)
        exit(1);
}

/* Records an event behind a host function that holds the stream back. */
static void record_held(struct side *a, CUevent e)
{
    ASSERT_SUCCESS(cuLaunchHostFunc(a->s, hold, &a->gate[0]));
    ASSERT_SUCCESS(cuEventRecord(e, a->s));
}

static int other(int sock)
{
    CUipcEventHandle h;
    CUevent e;
    CUdevice dev = first_device();
    struct side me = begin(dev);
    char b = 0;
    if (!receive_message(sock, &h, sizeof h, NULL))
        return 1;
    ASSERT_SUCCESS(cuIpcOpenEventHandle(&e, h));
    /* the first process records, this one waits */
    if (cuEventQuery(e) != CUDA_ERROR_NOT_READY)
        return 2;
    ASSERT_SUCCESS(cuStreamWaitEvent(me.s, e, 0));
    ASSERT_SUCCESS(cuMemsetD8Async(me.p, 5, 16, me.s));
    if (cuStreamQuery(me.s) != CUDA_ERROR_NOT_READY || !send_go(sock))
        return 3;
    ASSERT_SUCCESS(cuEventSynchronize(e));
    ASSERT_SUCCESS(cuStreamSynchronize(me.s));
    ASSERT_SUCCESS(cuMemcpyDtoH(&b, me.p, 1));
    if (b != 5 || cuEventQuery(e) != CUDA_SUCCESS)
        return 4;
    /* then the other way round, after the first process has stopped waiting for its own event */
    if (!receive_go(sock))
        return 5;
    record_held(&me, e);
    if (cuEventQuery(e) != CUDA_ERROR_NOT_READY || !send_go(sock) || !receive_go(sock))
        return 5;
    let_go(&me);
    ASSERT_SUCCESS(cuStreamSynchronize(me.s));
    if (!send_go(sock) || !receive_go(sock))
        return 6;
    if (!simulated(dev)) {
        DESTROY(e, me.ctx);
        return 0;
    }
    record_held(&me, e);
    if (!send_go(sock))
        return 7;
    receive_go(sock); /* the test kills this process meanwhile */
    return 8;
}

static void refused(CUdevice dev)
{
    CUevent e;
    CUipcEventHandle h;
    /* requires the other flag as well */
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&e, CU_EVENT_INTERPROCESS));
    ASSERT_SUCCESS(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    SIM_CHECK(cuIpcGetEventHandle(&h, e) != CUDA_SUCCESS);
    ASSERT_SUCCESS(cuEventDestroy(e));
    memset(&h, 0x13, sizeof h);
    SIM_CHECK(cuIpcOpenEventHandle(&e, h) != CUDA_SUCCESS);
    if (simulated(dev))
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuIpcGetEventHandle(&h, (CUevent)&h));
}

int main(int argc, char **argv)
{
    CUipcEventHandle h;
    CUevent e;
    char b = 0;
    if (argc > 2)
        return other(atoi(argv[2]));
    struct peer peer = peer_start(argv[0], "other");
    CUdevice dev = first_device();
    if (!attribute_of(dev, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED))
        return 77;
    struct side me = begin(dev);
    refused(dev);
    CHECK_RESULT(CUDA_SUCCESS, cuEventCreate(&e, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    SIM_CHECK(cuIpcGetEventHandle(NULL, e) != CUDA_SUCCESS);
    record_held(&me, e);
    CHECK_RESULT(CUDA_SUCCESS, cuIpcGetEventHandle(&h, e));
    CHECK(send_message(peer.sock, &h, sizeof h, -1));
    CHECK(receive_go(peer.sock)); /* the peer waits */
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    let_go(&me);
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(e));
    CHECK(send_go(peer.sock) && receive_go(peer.sock)); /* the peer has recorded the event in its turn */
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    ASSERT_SUCCESS(cuStreamWaitEvent(me.s, e, 0));
    ASSERT_SUCCESS(cuMemsetD8Async(me.p, 6, 16, me.s));
    CHECK_RESULT(CUDA_ERROR_NOT_READY, cuStreamQuery(me.s));
    CHECK(send_go(peer.sock));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(me.s));
    CHECK_RESULT(CUDA_SUCCESS, cuEventQuery(e));
    ASSERT_SUCCESS(cuMemcpyDtoH(&b, me.p, 1));
    CHECK(b == 6);
    CHECK(receive_go(peer.sock) && send_go(peer.sock));
    if (simulated(dev)) { /* a process that dies leaves no process waiting */
        CHECK(receive_go(peer.sock));
        CHECK_RESULT(CUDA_ERROR_NOT_READY, cuEventQuery(e));
        ASSERT_SUCCESS(cuStreamWaitEvent(me.s, e, 0));
        kill(peer.pid, SIGKILL);
        CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(e));
        CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(me.s));
        CHECK(peer_wait(peer) == 128);
    } else {
        CHECK(peer_wait(peer) == 0);
    }
    CHECK_RESULT(CUDA_SUCCESS, cuEventRecord(e, me.s));
    CHECK_RESULT(CUDA_SUCCESS, cuEventSynchronize(e));
    CHECK_RESULT(CUDA_SUCCESS, cuEventDestroy(e));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(me.ctx));
    return tap_end();
}
