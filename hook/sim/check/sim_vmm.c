/* sim_vmm.c: address ranges and memory as separate objects, and memory passed to another process by
 * descriptor. */
#include "kernels.h"
#include "objects.h"
#include "peer.h"

#include <stdint.h>

static size_t grain;

/* Unmaps two adjacent mappings, with one call if the driver supports that. */
static void unmap(CUdeviceptr p, size_t first, size_t second)
{
    if (SIM_CHECK_RESULT(CUDA_SUCCESS, cuMemUnmap(p, first + second)))
        return;
    CHECK_RESULT(CUDA_SUCCESS, cuMemUnmap(p, first));
    CHECK_RESULT(CUDA_SUCCESS, cuMemUnmap(p + first, second));
}

static void granularity(CUdevice dev)
{
    CUmemAllocationProp p = memory_of(dev, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    size_t recommended = 0;
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetAllocationGranularity(&grain, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetAllocationGranularity(&recommended, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    CHECK(grain >= 4096 && (grain & (grain - 1)) == 0 && recommended % grain == 0);
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE,
                     cuMemGetAllocationGranularity(NULL, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE,
                     cuMemGetAllocationGranularity(&grain, NULL, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetAllocationGranularity(&grain, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

static void reserve(void)
{
    CUdeviceptr p = 0, q = 0;
    size_t large = 64 * grain;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(NULL, grain, 0, 0, 0));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&p, 0, 0, 0, 0));
    SIM_CHECK(cuMemAddressReserve(&p, grain, 3, 0, 0) != CUDA_SUCCESS);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAddressReserve(&p, grain, 0, 0, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAddressReserve(&q, grain, large, 0, 0));
    CHECK(p % grain == 0 && q % large == 0 && p != q);
    SIM_CHECK(cuMemAddressFree(p, 2 * grain) != CUDA_SUCCESS);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAddressFree(p, grain));
    SIM_CHECK(cuMemAddressFree(p, grain) != CUDA_SUCCESS);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAddressFree(q, grain));
}

static void create(CUdevice dev)
{
    CUmemAllocationProp p = memory_of(dev, CU_MEM_HANDLE_TYPE_NONE), back;
    CUmemGenericAllocationHandle h, none = 0;
    size_t total;
    int fd = -1;
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(NULL, grain, &p, 0));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, grain, NULL, 0));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, grain + 1, &p, 0));
    SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, 0, &p, 0));
    ASSERT_SUCCESS(cuDeviceTotalMem(&total, dev));
    CHECK_RESULT(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&h, (total / grain + 1) * grain, &p, 0));
    p.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    SIM_CHECK(cuMemCreate(&h, grain, &p, 0) != CUDA_SUCCESS);
    p = memory_of(99, CU_MEM_HANDLE_TYPE_NONE);
    SIM_CHECK(cuMemCreate(&h, grain, &p, 0) != CUDA_SUCCESS);
    SIM_CHECK(cuMemRelease(none) != CUDA_SUCCESS);
    h = new_allocation(dev, 2 * grain, CU_MEM_HANDLE_TYPE_NONE);
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetAllocationPropertiesFromHandle(&back, h));
    CHECK(back.type == CU_MEM_ALLOCATION_TYPE_PINNED && back.location.type == CU_MEM_LOCATION_TYPE_DEVICE && back.location.id == dev);
    SIM_CHECK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS);
    CHECK_RESULT(CUDA_SUCCESS, cuMemRelease(h));
    if (simulated(dev)) { /* a real driver may dereference invalid handles */
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemRelease(h));
        SIM_CHECK_RESULT(CUDA_ERROR_INVALID_VALUE, cuMemMap(1 << 21, grain, 0, 0x1234, 0));
    }
}

/* Copies and kernels see two adjacent allocations as one. */
static void map(CUdevice dev, CUfunction vadd)
{
    CUmemGenericAllocationHandle a = new_allocation(dev, 2 * grain, CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle b = new_allocation(dev, grain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), again = 0;
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, dev};
    unsigned long long flags = 99;
    CUdeviceptr p, x, start = 0;
    size_t size = 0;
    unsigned n = 1024, type = 0;
    void *args[] = {&x, &x, &x, &n};
    ASSERT_SUCCESS(cuMemAddressReserve(&p, 4 * grain, 0, 0, 0));
    SIM_CHECK(cuMemMap(p, 2 * grain, 0, 0, 0) != CUDA_SUCCESS);
    SIM_CHECK(cuMemMap(p + 1, 2 * grain, 0, a, 0) != CUDA_SUCCESS);
    if (simulated(dev)) /* driver 580 accepts this */
        SIM_CHECK(cuMemMap(p + 3 * grain, 2 * grain, 0, a, 0) != CUDA_SUCCESS); /* beyond the reservation */
    CHECK_RESULT(CUDA_SUCCESS, cuMemMap(p, 2 * grain, 0, a, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuMemMap(p + 2 * grain, grain, 0, b, 0));
    SIM_CHECK(cuMemMap(p, 2 * grain, 0, a, 0) != CUDA_SUCCESS); /* already mapped */
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetAccess(&flags, &here, p));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    allow(dev, p, 3 * grain, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK_RESULT(CUDA_SUCCESS, cuMemGetAccess(&flags, &here, p + 2 * grain));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK_RESULT(CUDA_SUCCESS, cuMemsetD8(p, 0x42, 3 * grain));
    CHECK(all_bytes(p, 3 * grain, 0x42));
    x = p + 2 * grain - 2048; /* across the boundary */
    ASSERT_SUCCESS(cuMemsetD32(x, 0x3f800000, n)); /* 1 */
    CHECK_RESULT(CUDA_SUCCESS, cuLaunchKernel(vadd, n / 256, 1, 1, 256, 1, 1, 0, NULL, args, NULL));
    CHECK_RESULT(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(all_bytes(x + 3, 1, 0x40) && all_bytes(x + 4 * n - 1, 1, 0x40)); /* 2 */
    CHECK_RESULT(CUDA_SUCCESS, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, x));
    CHECK(type == CU_MEMORYTYPE_DEVICE);
    CHECK_RESULT(CUDA_SUCCESS, cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, x));
    CHECK_RESULT(CUDA_SUCCESS, cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, x));
    CHECK(start <= x && x < start + size);
    CHECK_RESULT(CUDA_SUCCESS, cuMemRelease(a)); /* the mapping keeps the memory */
    CHECK_RESULT(CUDA_SUCCESS, cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(p + grain)));
    CHECK(again != 0);
    SIM_CHECK(cuMemAddressFree(p, 4 * grain) != CUDA_SUCCESS); /* in use */
    if (simulated(dev)) /* driver 580 accepts this */
        SIM_CHECK(cuMemUnmap(p, grain) != CUDA_SUCCESS); /* half a mapping */
    SIM_CHECK(cuMemFree(p) != CUDA_SUCCESS);
    unmap(p, 2 * grain, grain);
    SIM_CHECK_RESULT(CUDA_SUCCESS, cuMemUnmap(p, 3 * grain)); /* nothing is mapped there */
    /* at another address, with the same contents */
    CHECK_RESULT(CUDA_SUCCESS, cuMemMap(p + grain, 2 * grain, 0, again, 0));
    allow(dev, p + grain, 2 * grain, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK(all_bytes(p + grain, grain, 0x42));
    CHECK_RESULT(CUDA_SUCCESS, cuMemUnmap(p + grain, 2 * grain));
    CHECK_RESULT(CUDA_SUCCESS, cuMemRelease(again));
    CHECK_RESULT(CUDA_SUCCESS, cuMemRelease(b));
    CHECK_RESULT(CUDA_SUCCESS, cuMemAddressFree(p, 4 * grain));
}

/* One allocation at two addresses. */
static void twice(CUdevice dev)
{
    CUmemGenericAllocationHandle a = new_allocation(dev, grain, CU_MEM_HANDLE_TYPE_NONE);
    CUdeviceptr p;
    ASSERT_SUCCESS(cuMemAddressReserve(&p, 2 * grain, 0, 0, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuMemMap(p, grain, 0, a, 0));
    CHECK_RESULT(CUDA_SUCCESS, cuMemMap(p + grain, grain, 0, a, 0));
    ASSERT_SUCCESS(cuMemRelease(a));
    allow(dev, p, 2 * grain, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    ASSERT_SUCCESS(cuMemsetD8(p, 7, grain));
    ASSERT_SUCCESS(cuCtxSynchronize());
    CHECK(all_bytes(p + grain, grain, 7));
    unmap(p, grain, grain);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAddressFree(p, 2 * grain));
}

static void accounts(CUdevice dev)
{
    CUmemGenericAllocationHandle a;
    CUdeviceptr p;
    size_t free0, free1, free2, total;
    ASSERT_SUCCESS(cuMemGetInfo(&free0, &total));
    a = new_allocation(dev, 8 * grain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    ASSERT_SUCCESS(cuMemAddressReserve(&p, 8 * grain, 0, 0, 0));
    ASSERT_SUCCESS(cuMemMap(p, 8 * grain, 0, a, 0));
    ASSERT_SUCCESS(cuMemRelease(a));
    ASSERT_SUCCESS(cuMemGetInfo(&free1, &total));
    CHECK(free1 <= free0 - 8 * grain);
    ASSERT_SUCCESS(cuMemUnmap(p, 8 * grain));
    ASSERT_SUCCESS(cuMemAddressFree(p, 8 * grain));
    ASSERT_SUCCESS(cuMemGetInfo(&free2, &total));
    CHECK(free2 >= free1 + 8 * grain);
    if (simulated(dev))
        CHECK(free1 == free0 - 8 * grain && free2 == free0);
}

/* ---- another process ---- */

static int importer(int sock)
{
    CUdeviceptr p;
    int fd;
    CUdevice dev = first_device();
    CUcontext ctx = new_context(dev);
    if (!receive_message(sock, &grain, sizeof grain, &fd))
        return 1;
    CUmemGenericAllocationHandle h = new_import(fd), same = new_import(fd);
    ASSERT_SUCCESS(cuMemRelease(same));
    close(fd);
    ASSERT_SUCCESS(cuMemAddressReserve(&p, grain, 0, 0, 0));
    ASSERT_SUCCESS(cuMemMap(p, grain, 0, h, 0));
    allow(dev, p, grain, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (!all_bytes(p, grain, 0x5a))
        return 1;
    ASSERT_SUCCESS(cuMemsetD8(p + 100, 0x77, 10));
    ASSERT_SUCCESS(cuCtxSynchronize());
    if (!send_go(sock) || !receive_go(sock)) /* by now the exporter has released the memory */
        return 1;
    if (!all_bytes(p + 100, 10, 0x77) || !all_bytes(p + 110, grain - 110, 0x5a))
        return 1;
    ASSERT_SUCCESS(cuMemUnmap(p, grain));
    ASSERT_SUCCESS(cuMemRelease(h));
    ASSERT_SUCCESS(cuMemAddressFree(p, grain));
    ASSERT_SUCCESS(cuCtxDestroy(ctx));
    return !send_go(sock);
}

static void shared(CUdevice dev, struct peer other)
{
    CUmemGenericAllocationHandle h = new_allocation(dev, grain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), q;
    CUdeviceptr p;
    int fd = -1, none[2];
    ASSERT_SUCCESS(cuMemAddressReserve(&p, grain, 0, 0, 0));
    ASSERT_SUCCESS(cuMemMap(p, grain, 0, h, 0));
    allow(dev, p, grain, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    ASSERT_SUCCESS(cuMemsetD8(p, 0x5a, grain));
    ASSERT_SUCCESS(cuCtxSynchronize());
    SIM_CHECK(cuMemExportToShareableHandle(NULL, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS);
    SIM_CHECK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_WIN32, 0) != CUDA_SUCCESS);
    CHECK_RESULT(CUDA_SUCCESS, cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(fd >= 0);
    CHECK(send_message(other.sock, &grain, sizeof grain, fd));
    close(fd);
    CHECK(receive_go(other.sock));
    CHECK(all_bytes(p + 100, 10, 0x77) && all_bytes(p + 110, 1, 0x5a));
    CHECK_RESULT(CUDA_SUCCESS, cuMemUnmap(p, grain));
    CHECK_RESULT(CUDA_SUCCESS, cuMemRelease(h));
    CHECK(send_go(other.sock) && receive_go(other.sock));
    CHECK(peer_wait(other) == 0);
    if (pipe(none) == 0)
        SIM_CHECK(cuMemImportFromShareableHandle(&q, (void *)(uintptr_t)none[0],
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS);
    CHECK_RESULT(CUDA_SUCCESS, cuMemAddressFree(p, grain));
}

static void unsupported(CUdevice dev)
{
    CUmulticastObjectProp mc = {.numDevices = 2, .size = grain};
    CUmemGenericAllocationHandle h;
    if (!attribute_of(dev, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED))
        SIM_CHECK(cuMulticastCreate(&h, &mc) != CUDA_SUCCESS);
}

/* A mapping gives no access. This part is last, because a real context may be lost. */
static void not_allowed(CUdevice dev)
{
    CUmemGenericAllocationHandle a = new_allocation(dev, grain, CU_MEM_HANDLE_TYPE_NONE);
    CUdeviceptr p;
    char b[16];
    ASSERT_SUCCESS(cuMemAddressReserve(&p, grain, 0, 0, 0));
    SIM_CHECK(cuMemcpyDtoH(b, p, sizeof b) != CUDA_SUCCESS); /* nothing is mapped */
    if (cuCtxSynchronize() != CUDA_SUCCESS)
        return;
    ASSERT_SUCCESS(cuMemMap(p, grain, 0, a, 0));
    SIM_CHECK(cuMemcpyDtoH(b, p, sizeof b) != CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
    if (argc > 2)
        return importer(atoi(argv[2]));
    struct peer other = peer_start(argv[0], "import");
    CUdevice dev = first_device();
    if (!attribute_of(dev, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
        return 77;
    new_context(dev);
    CUmodule m = new_module(kernels_ptx);
    CUfunction vadd = function_of(m, "vadd");
    PART(granularity(dev));
    PART(reserve());
    PART(create(dev));
    PART(map(dev, vadd));
    PART(twice(dev));
    PART(accounts(dev));
    PART(shared(dev, other));
    PART(unsupported(dev));
    PART(not_allowed(dev));
    return tap_end();
}
