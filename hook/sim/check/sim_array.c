/* sim_array.c: arrays, as sources and targets of copies. */
#include "objects.h"

#include <stdint.h>

enum { W = 20, H = 6, D = 3 };

static CUarray make(size_t w, size_t h, size_t d, unsigned channels, unsigned flags)
{
    CUarray a = NULL;
    CUDA_ARRAY3D_DESCRIPTOR desc = {.Width = w, .Height = h, .Depth = d, .Format = CU_AD_FORMAT_UNSIGNED_INT8};
    desc.NumChannels = channels;
    desc.Flags = flags;
    ASSERT_SUCCESS(cuArray3DCreate(&a, &desc));
    return a;
}

static void describe(void)
{
    CUarray a;
    CUDA_ARRAY_DESCRIPTOR d = {.Width = W, .Height = H, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 2}, back;
    CUDA_ARRAY3D_DESCRIPTOR deep;
    CHECK_RESULT(CUDA_SUCCESS, cuArrayCreate(&a, &d));
    CHECK_RESULT(CUDA_SUCCESS, cuArrayGetDescriptor(&back, a));
    CHECK(back.Width == W && back.Height == H && back.Format == CU_AD_FORMAT_FLOAT && back.NumChannels == 2);
    CHECK_RESULT(CUDA_SUCCESS, cuArray3DGetDescriptor(&deep, a));
    CHECK(deep.Width == W && deep.Height == H && deep.Depth == 0 && deep.Flags == 0);
    SIM_CHECK(cuArrayGetDescriptor(NULL, a) != CUDA_SUCCESS);
    CHECK_RESULT(CUDA_SUCCESS, cuArrayDestroy(a));
}

static void refused(CUdevice dev)
{
    CUarray a;
    CUDA_ARRAY_DESCRIPTOR d = {.Width = W, .Height = H, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuArrayCreate(NULL, &d));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuArrayCreate(&a, NULL));
    d.NumChannels = 3;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuArrayCreate(&a, &d));
    d.NumChannels = 1;
    d.Format = 0x7f;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuArrayCreate(&a, &d));
    d.Format = CU_AD_FORMAT_FLOAT;
    d.Width = 0;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuArrayCreate(&a, &d));
    d.Width = (size_t)1 << 40;
    SIM_CHECK(cuArrayCreate(&a, &d) != CUDA_SUCCESS);
    if (simulated(dev)) { /* a real driver may dereference invalid handles */
        a = make(4, 4, 0, 1, 0);
        CHECK_RESULT(CUDA_SUCCESS, cuArrayDestroy(a));
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(a));
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy((CUarray)&d));
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayDestroy((CUmipmappedArray)&d));
    }
}

static void flat(void)
{
    CUarray a = make(W, H, 0, 1, 0), b = make(W, H, 0, 1, 0);
    unsigned char in[H][W], out[H][W];
    for (int i = 0; i < H * W; i++)
        ((unsigned char *)in)[i] = (unsigned char)i;
    CUdeviceptr p = new_memory(sizeof in);
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = in, .srcPitch = W, .WidthInBytes = W, .Height = H};
    c.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    c.dstArray = a;
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy2D(&c));
    CUDA_MEMCPY2D across = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = a, .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = b};
    across.WidthInBytes = W;
    across.Height = H;
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy2DAsync(&across, NULL));
    CUDA_MEMCPY2D down = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = b,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = p, .dstPitch = W,
                          .srcXInBytes = 3, .srcY = 1, .WidthInBytes = 4, .Height = 2};
    ASSERT_SUCCESS(cuMemsetD8(p, 0xee, sizeof in));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy2D(&down));
    ASSERT_SUCCESS(cuMemcpyDtoH(out, p, sizeof out));
    CHECK(out[0][0] == in[1][3] && out[0][3] == in[1][6] && out[0][4] == 0xee && out[1][0] == in[2][3]);
    down.srcXInBytes = W - 3;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&down)); /* beyond the right edge */
    down.srcXInBytes = 0;
    down.srcY = H - 1;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&down));
    ASSERT_SUCCESS(cuMemFree(p));
    CHECK_RESULT(CUDA_SUCCESS, cuArrayDestroy(a));
    CHECK_RESULT(CUDA_SUCCESS, cuArrayDestroy(b));
}

static void deep(void)
{
    CUarray a = make(W, H, D, 1, 0);
    unsigned char in[D][H][W], out[D][H][W];
    for (int i = 0; i < D * H * W; i++)
        ((unsigned char *)in)[i] = (unsigned char)(i * 7);
    CUDA_MEMCPY3D up = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = in, .srcPitch = W,
                        .srcHeight = H, .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = a,
                        .WidthInBytes = W, .Height = H, .Depth = D};
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy3D(&up));
    CUDA_MEMCPY3D down = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = a,
                          .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = out, .dstPitch = W,
                          .dstHeight = H, .WidthInBytes = W, .Height = H, .Depth = D};
    memset(out, 0, sizeof out);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy3D(&down));
    CHECK(!memcmp(in, out, sizeof in));
    memset(out, 0, sizeof out);
    down.srcZ = 2;
    down.Depth = 1;
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy3DAsync(&down, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(!memcmp(in[2], out[0], sizeof in[2]) && !out[1][0][0]);
    down.Depth = 2;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&down));
    CHECK_RESULT(CUDA_SUCCESS, cuArrayDestroy(a));
}

/* Several boxes, measured in elements, in one call: into and out of an array. Drivers have this
 * call since CUDA 12.8. */
static void boxes(void)
{
    enum { PIXELS = W / 4 };
    __typeof__(&cuMemcpy3DBatchAsync) copy = NULL;
    static unsigned char in[H][W], out[H][W];
    size_t failed = 7;
    if (cuGetProcAddress("cuMemcpy3DBatchAsync", (void **)&copy, 12080, 0, NULL) != CUDA_SUCCESS || !copy)
        return;
    CUarray a = make(PIXELS, H, 0, 4, 0);
    CUdeviceptr p = new_memory(sizeof in);
    CUstream s = new_stream();
    for (int i = 0; i < H * W; i++)
        ((unsigned char *)in)[i] = (unsigned char)(i * 5);
    ASSERT_SUCCESS(cuMemcpyHtoD(p, in, sizeof in));
    CUmemcpy3DOperand plain = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr = {.ptr = p, .rowLength = PIXELS, .layerHeight = H}};
    CUmemcpy3DOperand array = {.type = CU_MEMCPY_OPERAND_TYPE_ARRAY, .op.array = {.array = a}}, part = array;
    CUDA_MEMCPY3D_BATCH_OP ops[] = {
        {.src = plain, .dst = array, .extent = {PIXELS, H, 1}, .srcAccessOrder = 1},
        {.src = part, .dst = plain, .extent = {2, 1, 1}, .srcAccessOrder = 1},
    };
    ops[1].src.op.array.offset = (CUoffset3D){3, 2, 0};
    CHECK_RESULT(CUDA_SUCCESS, copy(1, &ops[0], &failed, 0, s));
    CHECK_RESULT(CUDA_SUCCESS, copy(1, &ops[1], &failed, 0, s));
    CHECK_RESULT(CUDA_SUCCESS, cuStreamSynchronize(s));
    ASSERT_SUCCESS(cuMemcpyDtoH(out, p, sizeof out));
    CHECK(!memcmp(out[0], &in[2][12], 8) && !memcmp(&out[0][8], &in[0][8], sizeof out - 8));
    CHECK(copy(1, ops, &failed, 1, s) != CUDA_SUCCESS);
    CHECK(copy(0, ops, &failed, 0, s) != CUDA_SUCCESS);
    ASSERT_SUCCESS(cuStreamSynchronize(s));
    DESTROY(s, p);
    CHECK_RESULT(CUDA_SUCCESS, cuArrayDestroy(a));
}

static void lines(void)
{
    CUarray a = make(256, 0, 0, 4, 0), b = make(256, 0, 0, 4, 0);
    static unsigned char in[1024], out[1024];
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)(i * 3);
    CUdeviceptr p = new_memory(sizeof in);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyHtoA(a, 0, in, sizeof in));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyAtoA(b, 0, a, 0, sizeof in));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyAtoD(p, b, 0, sizeof in));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyDtoA(b, 512, p, 512));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyAtoH(out, b, 0, sizeof out));
    CHECK(!memcmp(out, in, 512) && !memcmp(out + 512, in, 512));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyHtoAAsync(a, 16, in, 64, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpyAtoHAsync(out, a, 16, 64, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(!memcmp(out, in, 64));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemcpyAtoH(out, a, 1000, 64));
    ASSERT_SUCCESS(cuMemFree(p));
    CHECK_RESULT(CUDA_SUCCESS, cuArrayDestroy(a));
    CHECK_RESULT(CUDA_SUCCESS, cuArrayDestroy(b));
}

static void mipmaps(void)
{
    CUmipmappedArray m;
    CUarray level, none;
    CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 64, .Height = 32, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1}, back;
    unsigned char in[16], out[16];
    memset(in, 9, sizeof in);
    CHECK_RESULT(CUDA_SUCCESS, cuMipmappedArrayCreate(&m, &d, 4));
    for (unsigned i = 0; i < 4; i++) {
        CHECK_RESULT(CUDA_SUCCESS, cuMipmappedArrayGetLevel(&level, m, i));
        CHECK_RESULT(CUDA_SUCCESS, cuArray3DGetDescriptor(&back, level));
        CHECK(back.Width == 64u >> i && back.Height == 32u >> i);
    }
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&none, m, 4));
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = in, .srcPitch = 4, .WidthInBytes = 4, .Height = 4};
    c.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    c.dstArray = level;
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy2D(&c));
    CUDA_MEMCPY2D b = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = level,
                       .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = out, .dstPitch = 4,
                       .WidthInBytes = 4, .Height = 4};
    memset(out, 0, sizeof out);
    CHECK_RESULT(CUDA_SUCCESS, cuMemcpy2D(&b));
    CHECK(!memcmp(in, out, sizeof in));
    CHECK_RESULT(CUDA_SUCCESS, cuMipmappedArrayDestroy(m));
    for (unsigned i = 0; i < 2; i++) { /* the minimum and the maximum */
        const unsigned levels = i ? 7 : 1;
        CHECK_RESULT(CUDA_SUCCESS, cuMipmappedArrayCreate(&m, &d, i ? 100 : 0));
        CHECK_RESULT(CUDA_SUCCESS, cuMipmappedArrayGetLevel(&level, m, levels - 1));
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&none, m, levels));
        CHECK_RESULT(CUDA_SUCCESS, cuMipmappedArrayDestroy(m));
    }
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayCreate(NULL, &d, 4));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayCreate(&m, NULL, 4));
}

/* Texture and surface objects return their descriptions. Reading them in a kernel is not tested. */
static void objects(void)
{
    CUtexObject t;
    CUsurfObject s;
    CUDA_RESOURCE_DESC of, back;
    CUDA_TEXTURE_DESC how, how_back;
    CUDA_RESOURCE_VIEW_DESC view;
    memset(&of, 0, sizeof of);
    memset(&how, 0, sizeof how);
    how.filterMode = 1;
    CUarray a = make(64, 32, 0, 1, CUDA_ARRAY3D_SURFACE_LDST), plain = make(64, 32, 0, 1, 0);
    CUdeviceptr p = new_memory(1 << 16);
    of.resType = CU_RESOURCE_TYPE_ARRAY;
    of.res.array.hArray = a;
    CHECK_RESULT(CUDA_SUCCESS, cuTexObjectCreate(&t, &of, &how, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuTexObjectGetResourceDesc(&back, t));
    CHECK(back.resType == CU_RESOURCE_TYPE_ARRAY && back.res.array.hArray == a);
    CHECK_RESULT(CUDA_SUCCESS, cuTexObjectGetTextureDesc(&how_back, t));
    CHECK(how_back.filterMode == 1);
    CHECK_RESULT(CUDA_SUCCESS, cuTexObjectGetResourceViewDesc(&view, t)); /* although it has no view */
    CHECK_RESULT(CUDA_SUCCESS, cuTexObjectDestroy(t));
    CHECK_RESULT(CUDA_SUCCESS, cuSurfObjectCreate(&s, &of));
    CHECK_RESULT(CUDA_SUCCESS, cuSurfObjectGetResourceDesc(&back, s));
    CHECK(back.res.array.hArray == a);
    CHECK_RESULT(CUDA_SUCCESS, cuSurfObjectDestroy(s));
    of.res.array.hArray = plain;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&s, &of));
    memset(&of, 0, sizeof of);
    of.resType = CU_RESOURCE_TYPE_LINEAR;
    of.res.linear.devPtr = p;
    of.res.linear.format = CU_AD_FORMAT_FLOAT;
    of.res.linear.numChannels = 1;
    of.res.linear.sizeInBytes = 1 << 16;
    CHECK_RESULT(CUDA_SUCCESS, cuTexObjectCreate(&t, &of, &how, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuTexObjectDestroy(t));
    CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&t, NULL, &how, NULL));
    of.res.linear.numChannels = 3;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&t, &of, &how, NULL));
    memset(&of, 0, sizeof of);
    of.resType = CU_RESOURCE_TYPE_PITCH2D;
    of.res.pitch2D.devPtr = p;
    of.res.pitch2D.format = CU_AD_FORMAT_FLOAT;
    of.res.pitch2D.numChannels = 1;
    of.res.pitch2D.width = 100;
    of.res.pitch2D.height = 100;
    of.res.pitch2D.pitchInBytes = 512;
    CHECK_RESULT(CUDA_SUCCESS, cuTexObjectCreate(&t, &of, &how, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuTexObjectDestroy(t));
    of.res.pitch2D.pitchInBytes = 256; /* a row is 400 bytes */
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&t, &of, &how, NULL));
    ASSERT_SUCCESS(cuMemFree(p));
    ASSERT_SUCCESS(cuArrayDestroy(a));
    ASSERT_SUCCESS(cuArrayDestroy(plain));
}

static void accounts(CUdevice dev)
{
    size_t free0, free1, total;
    CUarray a;
    ASSERT_SUCCESS(cuMemGetInfo(&free0, &total));
    a = make(4096, 4096, 0, 4, 0); /* 64 MiB */
    ASSERT_SUCCESS(cuMemGetInfo(&free1, &total));
    CHECK(free1 <= free0 - (64 << 20));
    ASSERT_SUCCESS(cuArrayDestroy(a));
    if (!simulated(dev))
        return;
    ASSERT_SUCCESS(cuMemGetInfo(&free1, &total));
    CHECK(free1 == free0);
}

int main(void)
{
    CUdevice dev = first_device();
    CUcontext ctx = new_context(dev);
    PART(describe());
    PART(refused(dev));
    PART(flat());
    PART(deep());
    PART(boxes());
    PART(lines());
    PART(mipmaps());
    PART(objects());
    PART(accounts(dev));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxDestroy(ctx));
    return tap_end();
}
