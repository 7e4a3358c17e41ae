/* calls.h: the calls that route.c makes: one for each driver function that sends work to the GPU. The calls
 * that launch graphs are in graphs.h.
 *
 * The work goes to stream 0, except that the functions with Batch or Attributes in their names get a
 * created stream. Many functions have a twin (name_ptsz or name_ptds, see symbols.def), for which stream 0
 * is the per-thread default stream. */

enum { N = 1024, THREADS = 128, BLOCKS = (N + THREADS - 1) / THREADS };
#define SIZE ((size_t)N * 4) /* bytes of a vector of N floats */
enum { WIDTH = 512, HEIGHT = 8 }; /* a vector as HEIGHT rows of WIDTH bytes: a pitch that all 2D and 3D calls accept */
#define FILL 0x5a5a5a5au

/* The expected result of a call. Before each call, wipe in route.c clears the previous results. */
enum check {
    SUM,     /* c holds x + y */
    PART,    /* the elements of c that the first block computes hold x + y */
    COPIED,  /* c holds x */
    HOST,    /* z holds x */
    FILLED,  /* each 4-byte word of c is FILL */
    ARRAY,   /* the array `to` holds x */
    MANAGED, /* the managed memory m still holds x */
    ANY      /* the result is not checked */
};

static float x[N], y[N], z[N];  /* on the host: two inputs, and a buffer for results */
static CUdeviceptr a, b, c;     /* on the device: a holds x, b holds y, c is for results */
static CUdeviceptr m;           /* managed memory; holds x; 0: the driver has none */
static CUarray from, to;        /* from holds x, to is for results; 0: the driver has no arrays */
static CUcontext context;
static CUdevice device;
static CUfunction add;
static CUstream stream;
static int n = N;

/* The parameters of the kernel add: as pointers, and packed in one buffer (which do_extra fills). */
static void *params[] = {&a, &b, &c, &n};
static struct { CUdeviceptr a, b, c; int n; } packed;
static size_t packed_size = 28; /* without the padding at the end of the struct */
static void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_size, CU_LAUNCH_PARAM_END};
static CUlaunchConfig config = {BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, NULL, 0};

/* Parameters of the copies, which route.c sets: each copies a to c. */
static CUDA_MEMCPY2D copy2;
static CUDA_MEMCPY3D copy3;
static CUDA_MEMCPY3D_PEER peer3;
static CUDA_MEMCPY3D_BATCH_OP box;

/* Parameters of the batch functions. Each batch has one operation; `zero` is its index. */
static size_t size = SIZE, zero, failed_index;
static CUmemcpyAttributes attributes = {.srcAccessOrder = 1};
static CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};

#define GRID BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL

/* CALL(symbol, twin, check, args): the function, its twin (PTSZ, PTDS or NONE, as in the column "variant" of
 * symbols.def), the expected result and the arguments. */
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
    CALL(cuMemcpyBatchAsync, PTSZ, COPIED, (&c, &a, &size, 1, &attributes, &zero, 1, &failed_index, stream)) \
    CALL(cuMemcpyBatchAsync_v2, PTSZ, COPIED, (&c, &a, &size, 1, &attributes, &zero, 1, stream)) \
    CALL(cuMemcpyWithAttributesAsync, PTSZ, COPIED, (c, a, SIZE, &attributes, stream)) \
    CALL(cuMemcpy3DBatchAsync, PTSZ, COPIED, (1, &box, &failed_index, 0, stream)) \
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
    CALL(cuMemPrefetchAsync, PTSZ, MANAGED, (m, SIZE, device, NULL)) \
    CALL(cuMemPrefetchAsync_v2, PTSZ, MANAGED, (m, SIZE, here, 0, NULL)) \
    CALL(cuMemPrefetchBatchAsync, PTSZ, MANAGED, (&m, &size, 1, &here, &zero, 1, 0, stream)) \
    CALL(cuMemDiscardBatchAsync, PTSZ, ANY, (&m, &size, 1, 0, stream)) \
    CALL(cuMemDiscardAndPrefetchBatchAsync, PTSZ, ANY, (&m, &size, 1, &here, &zero, 1, 0, stream)) \
    CALL(cuStreamAttachMemAsync, PTSZ, MANAGED, (NULL, m, 0, CU_MEM_ATTACH_GLOBAL))

/* Defines do_NAME, which calls the function NAME, or its twin, at an address. */
#define DO_CALL(symbol, twin, check, args) \
    static CUresult do_##symbol(void *address) \
    { \
        __typeof__(&symbol) call; \
        *(void **)&call = address; \
        return call args; \
    }
CALLS(DO_CALL)

/* Calls cuLaunchKernel with the packed parameters. */
static CUresult do_extra(void *address)
{
    __typeof__(&cuLaunchKernel) call;
    *(void **)&call = address;
    packed.a = a, packed.b = b, packed.c = c, packed.n = n;
    return call(add, GRID, NULL, extra);
}

/* Calls cuMemMapArrayAsync with nothing to map. The driver may refuse the call: what is tested is that it
 * passes the library's gate first. CUDA_ERROR_NOT_INITIALIZED would mean that it did not reach the driver. */
static CUresult do_map_nothing(void *address)
{
    __typeof__(&cuMemMapArrayAsync) call;
    *(void **)&call = address;
    CUresult result = call(NULL, 0, NULL);
    return result == CUDA_ERROR_NOT_INITIALIZED ? result : CUDA_SUCCESS;
}

struct call {
    const char *name; /* FUNCTION, or FUNCTION+VARIANT for another way to call it */
    CUresult (*run)(void *address); /* makes the call; the function is at the address */
    enum check check;
    int launches;         /* number of kernels that the call launches */
    void (*build)(void);  /* makes the graph that the call launches; NULL: it launches none */
};

/* Expands to the number of kernels that a call in CALLS launches: 1 if its result is a sum. */
#define LAUNCHES(check) ((check) == SUM || (check) == PART)

/* ROW expands a CALL to the struct call of the function and, if it has a twin, that of the twin. */
#define TWIN_NONE(symbol, check)
#define TWIN_PTSZ(symbol, check) {#symbol "_ptsz", do_##symbol, check, LAUNCHES(check), NULL},
#define TWIN_PTDS(symbol, check) {#symbol "_ptds", do_##symbol, check, LAUNCHES(check), NULL},
#define ROW(symbol, twin, check, args) {#symbol, do_##symbol, check, LAUNCHES(check), NULL}, TWIN_##twin(symbol, check)
