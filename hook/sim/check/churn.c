/* churn.c: threads that allocate memory of all kinds, check its contents and free it. With ROUNDS,
 * each does so that many times. Otherwise it prints "ready", waits for a line, prints "churning"
 * and continues until its standard input ends. Several of these processes on one device must
 * neither lose memory nor find another process's bytes in theirs.
 *
 *   churn SEED [ROUNDS] */
#include "objects.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

enum { THREADS = 3, HELD = 12, MIB = 1 << 20 };

enum kind { PLAIN, POOLED, OWN_POOL, MANAGED, MAPPED, EXPORTABLE, KINDS };

struct held {
    enum kind kind;
    CUdeviceptr at; /* 0: no memory is held */
    size_t size;
    unsigned char value;
    CUmemoryPool pool;
};

static CUdevice dev;
static CUcontext ctx;
static unsigned long rounds;
static bool failed;

static unsigned next(unsigned *seed, unsigned below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % below;
}

static CUresult map(struct held *h)
{
    CUmemGenericAllocationHandle a;
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, dev}};
    CUmemAccessDesc d = {p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (h->kind == EXPORTABLE)
        p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    h->size = (h->size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    CUresult r = cuMemCreate(&a, h->size, &p, 0);
    if (r != CUDA_SUCCESS)
        return r;
    ASSERT_SUCCESS(cuMemAddressReserve(&h->at, h->size, 0, 0, 0));
    ASSERT_SUCCESS(cuMemMap(h->at, h->size, 0, a, 0));
    ASSERT_SUCCESS(cuMemSetAccess(h->at, h->size, &d, 1));
    int fd = -1;
    if (h->kind == EXPORTABLE) {
        ASSERT_SUCCESS(cuMemExportToShareableHandle(&fd, a, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        close(fd);
    }
    ASSERT_SUCCESS(cuMemRelease(a));
    return CUDA_SUCCESS;
}

static CUresult allocate(struct held *h, CUstream s)
{
    CUmemPoolProps p = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, dev}};
    CUresult r;
    switch (h->kind) {
    case PLAIN:
        return cuMemAlloc(&h->at, h->size);
    case POOLED:
        return cuMemAllocAsync(&h->at, h->size, s);
    case OWN_POOL:
        ASSERT_SUCCESS(cuMemPoolCreate(&h->pool, &p));
        r = cuMemAllocFromPoolAsync(&h->at, h->size, h->pool, s);
        ASSERT_SUCCESS(cuMemPoolDestroy(h->pool));
        return r;
    case MANAGED:
        ASSERT_SUCCESS(cuMemAllocManaged(&h->at, h->size, CU_MEM_ATTACH_GLOBAL));
        return cuMemPrefetchAsync(h->at, h->size, dev, s);
    default:
        return map(h);
    }
}

static void give(struct held *h, CUstream s, bool later)
{
    unsigned char b[2];
    ASSERT_SUCCESS(cuMemcpyDtoHAsync(&b[0], h->at, 1, s));
    ASSERT_SUCCESS(cuMemcpyDtoHAsync(&b[1], h->at + h->size - 1, 1, s));
    ASSERT_SUCCESS(cuStreamSynchronize(s));
    if (b[0] != h->value || b[1] != h->value) {
        printf("kind %d: %d and %d where %d was\n", h->kind, b[0], b[1], h->value);
        failed = true;
    }
    if (h->kind == MAPPED || h->kind == EXPORTABLE) {
        ASSERT_SUCCESS(cuMemUnmap(h->at, h->size));
        ASSERT_SUCCESS(cuMemAddressFree(h->at, h->size));
    } else if (later && h->kind != MANAGED) {
        ASSERT_SUCCESS(cuMemFreeAsync(h->at, s));
    } else {
        ASSERT_SUCCESS(cuMemFree(h->at));
    }
    h->at = 0;
}

static bool input_ended(void)
{
    struct pollfd p = {.fd = 0, .events = POLLIN};
    char c;
    return poll(&p, 1, 0) > 0 && read(0, &c, 1) <= 0;
}

static void *churn(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    struct held held[HELD] = {0};
    ASSERT_SUCCESS(cuCtxSetCurrent(ctx));
    CUstream s = new_stream();
    for (unsigned long n = 0; rounds ? n < rounds : !input_ended(); n++) {
        struct held *h = &held[next(&seed, HELD)];
        if (h->at) {
            give(h, s, next(&seed, 2));
            continue;
        }
        *h = (struct held){.kind = (enum kind)next(&seed, KINDS), .value = (unsigned char)next(&seed, 256)};
        h->size = next(&seed, 4) ? next(&seed, MIB) + 1 : next(&seed, 12 * MIB) + 1;
        CUresult r = allocate(h, s);
        if (r == CUDA_ERROR_OUT_OF_MEMORY)
            h->at = 0;
        else if (r != CUDA_SUCCESS)
            ASSERT_SUCCESS(r);
        else
            ASSERT_SUCCESS(cuMemsetD8Async(h->at, h->value, h->size, s));
    }
    for (int i = 0; i < HELD; i++)
        if (held[i].at)
            give(&held[i], s, true);
    ASSERT_SUCCESS(cuStreamSynchronize(s));
    ASSERT_SUCCESS(cuStreamDestroy(s));
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t t[THREADS];
    size_t before, after, total;
    if (argc < 2)
        return 2;
    unsigned seed = (unsigned)strtoul(argv[1], NULL, 10);
    rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    dev = first_device();
    ASSERT_SUCCESS(cuCtxCreate(&ctx, 0, dev));
    ASSERT_SUCCESS(cuMemGetInfo(&before, &total));
    if (!rounds) {
        char c;
        puts("ready");
        fflush(stdout);
        if (read(0, &c, 1) != 1)
            return 1;
        puts("churning");
        fflush(stdout);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, churn, (void *)(uintptr_t)(seed * THREADS + (unsigned)i));
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    ASSERT_SUCCESS(cuCtxSynchronize());
    ASSERT_SUCCESS(cuMemGetInfo(&after, &total));
    if (rounds && simulated(dev) && after != before) {
        printf("%zu bytes free, of %zu before\n", after, before);
        failed = true;
    }
    ASSERT_SUCCESS(cuCtxDestroy(ctx));
    return failed;
}
