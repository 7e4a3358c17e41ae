/* calls.h: for route.c, every function that sends work to the GPU, each with a call whose result
 * can be checked. The work goes to stream 0, which is the thread's own stream in the _ptsz and
 * _ptds twins; batches go to a created stream. */

enum { N = 1024, THREADS = 128, BLOCKS = (N + THREADS - 1) / THREADS };
enum { WIDTH = 512, HEIGHT = 8 }; /* a pitch that every 2D and 3D copy accepts */
#define SIZE ((size_t)N * 4)
#define FILL 0x5a5a5a5au

/* How the result of a call is checked. Before the call, wipe clears the results. */
enum check {
    SUM,    /* c holds x + y */
    PART,   /* the first block's part of c holds x + y */
    COPIED, /* c holds x */
    HOST,   /* z holds x */
    FILLED, /* c is filled */
    ARRAY,  /* the array `to` holds x */
    SHARED, /* the managed memory still holds x */
    ANY
};

static float x[N], y[N], z[N];  /* on the host */
static CUdeviceptr a, b, c;     /* a holds x, b holds y */
static CUdeviceptr m;           /* managed, holds x */
static CUarray from, to;        /* from holds x */
static CUcontext context;
static CUdevice device;
static CUfunction add;
static CUstream stream;
static int n = N;

static void *params[] = {&a, &b, &c, &n};
static struct { CUdeviceptr a, b, c; int n; } packed;
static size_t packed_size = 28;
static void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_size, CU_LAUNCH_PARAM_END};
static CUlaunchConfig config = {BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, NULL, 0};
static CUDA_MEMCPY2D copy2;
static CUDA_MEMCPY3D copy3;
static CUDA_MEMCPY3D_PEER peer3;
static CUDA_MEMCPY3D_BATCH_OP box;
static size_t size = SIZE, zero, at_fault;
static CUmemcpyAttributes attributes = {.srcAccessOrder = 1};
static CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};

#define GRID BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL

#define CALLS(CALL) \
    CALL(cuLaunchKernel, PTSZ, SUM, (add, GRID, params, NULL)) \
    CALL(cuLaunchKernelEx, PTSZ, SUM, (&config, add, params, NULL)) \
    CALL(cuLaunchCooperativeKernel, PTSZ, SUM, (add, GRID, params)) \
    CALL(cuLaunch, NONE, PART, (add)) \
    CALL(cuLaunchGrid, NONE, SUM, (add, BLOCKS, 1)) \
    CALL(cuLaunchGridAsync, NONE, SUM, (add, BLOCKS, 1, NULL)) \
    CALL(cuMemcpy, PTDS, COPIED, (c, a, SIZE)) \
    CALL(cuMemcpyPeer, PTDS, COPIED, (c, context, a, context, SIZE)) \
    CALL(cuMemcpyHtoD_v2, PTDS, COPIED, (c, x, SIZE)) \
    CALL(cuMemcpyDtoH_v2, PTDS, HOST, (z, a, SIZE)) \
    CALL(cuMemcpyDtoD_v2, PTDS, COPIED, (c, a, SIZE)) \
    CALL(cuMemcpyDtoA_v2, PTDS, ARRAY, (to, 0, a, SIZE)) \
    CALL(cuMemcpyAtoD_v2, PTDS, COPIED, (c, from, 0, SIZE)) \
    CALL(cuMemcpyHtoA_v2, PTDS, ARRAY, (to, 0, x, SIZE)) \
    CALL(cuMemcpyAtoH_v2, PTDS, HOST, (z, from, 0, SIZE)) \
    CALL(cuMemcpyAtoA_v2, PTDS, ARRAY, (to, 0, from, 0, SIZE)) \
    CALL(cuMemcpy2D_v2, PTDS, COPIED, (&copy2)) \
    CALL(cuMemcpy2DUnaligned_v2, PTDS, COPIED, (&copy2)) \
    CALL(cuMemcpy3D_v2, PTDS, COPIED, (&copy3)) \
    CALL(cuMemcpy3DPeer, PTDS, COPIED, (&peer3)) \
    CALL(cuMemcpyAsync, PTSZ, COPIED, (c, a, SIZE, NULL)) \
    CALL(cuMemcpyPeerAsync, PTSZ, COPIED, (c, context, a, context, SIZE, NULL)) \
    CALL(cuMemcpyHtoDAsync_v2, PTSZ, COPIED, (c, x, SIZE, NULL)) \
    CALL(cuMemcpyDtoHAsync_v2, PTSZ, HOST, (z, a, SIZE, NULL)) \
    CALL(cuMemcpyDtoDAsync_v2, PTSZ, COPIED, (c, a, SIZE, NULL)) \
    CALL(cuMemcpyHtoAAsync_v2, PTSZ, ARRAY, (to, 0, x, SIZE, NULL)) \
    CALL(cuMemcpyAtoHAsync_v2, PTSZ, HOST, (z, from, 0, SIZE, NULL)) \
    CALL(cuMemcpy2DAsync_v2, PTSZ, COPIED, (&copy2, NULL)) \
    CALL(cuMemcpy3DAsync_v2, PTSZ, COPIED, (&copy3, NULL)) \
    CALL(cuMemcpy3DPeerAsync, PTSZ, COPIED, (&peer3, NULL)) \
    CALL(cuMemcpyBatchAsync, PTSZ, COPIED, (&c, &a, &size, 1, &attributes, &zero, 1, &at_fault, stream)) \
    CALL(cuMemcpyBatchAsync_v2, PTSZ, COPIED, (&c, &a, &size, 1, &attributes, &zero, 1, stream)) \
    CALL(cuMemcpyWithAttributesAsync, PTSZ, COPIED, (c, a, SIZE, &attributes, stream)) \
    CALL(cuMemcpy3DBatchAsync, PTSZ, COPIED, (1, &box, &at_fault, 0, stream)) \
    CALL(cuMemcpy3DBatchAsync_v2, PTSZ, COPIED, (1, &box, 0, stream)) \
    CALL(cuMemcpy3DWithAttributesAsync, PTSZ, COPIED, (&box, 0, stream)) \
    CALL(cuMemsetD8_v2, PTDS, FILLED, (c, (unsigned char)FILL, SIZE)) \
    CALL(cuMemsetD16_v2, PTDS, FILLED, (c, (unsigned short)FILL, SIZE / 2)) \
    CALL(cuMemsetD32_v2, PTDS, FILLED, (c, FILL, SIZE / 4)) \
    CALL(cuMemsetD2D8_v2, PTDS, FILLED, (c, WIDTH, (unsigned char)FILL, WIDTH, HEIGHT)) \
    CALL(cuMemsetD2D16_v2, PTDS, FILLED, (c, WIDTH, (unsigned short)FILL, WIDTH / 2, HEIGHT)) \
    CALL(cuMemsetD2D32_v2, PTDS, FILLED, (c, WIDTH, FILL, WIDTH / 4, HEIGHT)) \
    CALL(cuMemsetD8Async, PTSZ, FILLED, (c, (unsigned char)FILL, SIZE, NULL)) \
    CALL(cuMemsetD16Async, PTSZ, FILLED, (c, (unsigned short)FILL, SIZE / 2, NULL)) \
    CALL(cuMemsetD32Async, PTSZ, FILLED, (c, FILL, SIZE / 4, NULL)) \
    CALL(cuMemsetD2D8Async, PTSZ, FILLED, (c, WIDTH, (unsigned char)FILL, WIDTH, HEIGHT, NULL)) \
    CALL(cuMemsetD2D16Async, PTSZ, FILLED, (c, WIDTH, (unsigned short)FILL, WIDTH / 2, HEIGHT, NULL)) \
    CALL(cuMemsetD2D32Async, PTSZ, FILLED, (c, WIDTH, FILL, WIDTH / 4, HEIGHT, NULL)) \
    CALL(cuMemPrefetchAsync, PTSZ, SHARED, (m, SIZE, device, NULL)) \
    CALL(cuMemPrefetchAsync_v2, PTSZ, SHARED, (m, SIZE, here, 0, NULL)) \
    CALL(cuMemPrefetchBatchAsync, PTSZ, SHARED, (&m, &size, 1, &here, &zero, 1, 0, stream)) \
    CALL(cuMemDiscardBatchAsync, PTSZ, ANY, (&m, &size, 1, 0, stream)) \
    CALL(cuMemDiscardAndPrefetchBatchAsync, PTSZ, ANY, (&m, &size, 1, &here, &zero, 1, 0, stream)) \
    CALL(cuStreamAttachMemAsync, PTSZ, SHARED, (NULL, m, 0, CU_MEM_ATTACH_GLOBAL))

#define DO_CALL(symbol, variant, check, args) \
    static CUresult do_##symbol(void *address) \
    { \
        __typeof__(&symbol) call; \
        *(void **)&call = address; \
        return call args; \
    }
CALLS(DO_CALL)

static CUresult do_extra(void *address)
{
    __typeof__(&cuLaunchKernel) call;
    *(void **)&call = address;
    packed.a = a, packed.b = b, packed.c = c, packed.n = n;
    return call(add, GRID, NULL, extra);
}

/* A call with nothing to map. A driver may refuse it, but only after the call has passed the gate. */
static CUresult do_refused(void *address)
{
    __typeof__(&cuMemMapArrayAsync) call;
    *(void **)&call = address;
    CUresult result = call(NULL, 0, NULL);
    return result == CUDA_ERROR_NOT_INITIALIZED ? result : CUDA_SUCCESS;
}

struct call {
    const char *name; /* the function; for a variant of its call, with '+' and a description */
    CUresult (*run)(void *address);
    enum check check;
    int launches;         /* kernels that it launches */
    void (*build)(void);  /* called first: makes the graph that the call launches */
};

#define KERNELS(check) ((check) == SUM || (check) == PART)
#define TWIN_NONE(symbol, check)
#define TWIN_PTSZ(symbol, check) {#symbol "_ptsz", do_##symbol, check, KERNELS(check), NULL},
#define TWIN_PTDS(symbol, check) {#symbol "_ptds", do_##symbol, check, KERNELS(check), NULL},
#define ROW(symbol, variant, check, args) {#symbol, do_##symbol, check, KERNELS(check), NULL}, TWIN_##variant(symbol, check)
