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
    if (USUALLY_GIVES(CUDA_SUCCESS, cuMemUnmap(p, first + second)))
        return;
    GIVES(CUDA_SUCCESS, cuMemUnmap(p, first));
    GIVES(CUDA_SUCCESS, cuMemUnmap(p + first, second));
}

static void granularity(CUdevice dev)
{
    CUmemAllocationProp p = memory_of(dev, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    size_t recommended = 0;
    GIVES(CUDA_SUCCESS, cuMemGetAllocationGranularity(&grain, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    GIVES(CUDA_SUCCESS, cuMemGetAllocationGranularity(&recommended, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    CHECK(grain >= 4096 && (grain & (grain - 1)) == 0 && recommended % grain == 0);
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetAllocationGranularity(NULL, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetAllocationGranularity(&grain, NULL, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    GIVES(CUDA_SUCCESS, cuMemGetAllocationGranularity(&grain, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

static void reserve(void)
{
    CUdeviceptr p = 0, q = 0;
    size_t large = 64 * grain;
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(NULL, grain, 0, 0, 0));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&p, 0, 0, 0, 0));
    USUALLY(cuMemAddressReserve(&p, grain, 3, 0, 0) != CUDA_SUCCESS);
    GIVES(CUDA_SUCCESS, cuMemAddressReserve(&p, grain, 0, 0, 0));
    GIVES(CUDA_SUCCESS, cuMemAddressReserve(&q, grain, large, 0, 0));
    CHECK(p % grain == 0 && q % large == 0 && p != q);
    USUALLY(cuMemAddressFree(p, 2 * grain) != CUDA_SUCCESS);
    GIVES(CUDA_SUCCESS, cuMemAddressFree(p, grain));
    USUALLY(cuMemAddressFree(p, grain) != CUDA_SUCCESS);
    GIVES(CUDA_SUCCESS, cuMemAddressFree(q, grain));
}

static void create(CUdevice dev)
{
    CUmemAllocationProp p = memory_of(dev, CU_MEM_HANDLE_TYPE_NONE), back;
    CUmemGenericAllocationHandle h, none = 0;
    size_t total;
    int fd = -1;
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(NULL, grain, &p, 0));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, grain, NULL, 0));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, grain + 1, &p, 0));
    USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, 0, &p, 0));
    MUST(cuDeviceTotalMem(&total, dev));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&h, (total / grain + 1) * grain, &p, 0));
    p.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    USUALLY(cuMemCreate(&h, grain, &p, 0) != CUDA_SUCCESS);
    p = memory_of(99, CU_MEM_HANDLE_TYPE_NONE);
    USUALLY(cuMemCreate(&h, grain, &p, 0) != CUDA_SUCCESS);
    USUALLY(cuMemRelease(none) != CUDA_SUCCESS);
    h = new_allocation(dev, 2 * grain, CU_MEM_HANDLE_TYPE_NONE);
    GIVES(CUDA_SUCCESS, cuMemGetAllocationPropertiesFromHandle(&back, h));
    CHECK(back.type == CU_MEM_ALLOCATION_TYPE_PINNED && back.location.type == CU_MEM_LOCATION_TYPE_DEVICE && back.location.id == dev);
    USUALLY(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS);
    GIVES(CUDA_SUCCESS, cuMemRelease(h));
    if (simulated(dev)) { /* a real driver may dereference invalid handles */
        USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRelease(h));
        USUALLY_GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(1 << 21, grain, 0, 0x1234, 0));
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
    MUST(cuMemAddressReserve(&p, 4 * grain, 0, 0, 0));
    USUALLY(cuMemMap(p, 2 * grain, 0, 0, 0) != CUDA_SUCCESS);
    USUALLY(cuMemMap(p + 1, 2 * grain, 0, a, 0) != CUDA_SUCCESS);
    if (simulated(dev)) /* driver 580 accepts this */
        USUALLY(cuMemMap(p + 3 * grain, 2 * grain, 0, a, 0) != CUDA_SUCCESS); /* beyond the reservation */
    GIVES(CUDA_SUCCESS, cuMemMap(p, 2 * grain, 0, a, 0));
    GIVES(CUDA_SUCCESS, cuMemMap(p + 2 * grain, grain, 0, b, 0));
    USUALLY(cuMemMap(p, 2 * grain, 0, a, 0) != CUDA_SUCCESS); /* already mapped */
    GIVES(CUDA_SUCCESS, cuMemGetAccess(&flags, &here, p));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    allow(dev, p, 3 * grain, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    GIVES(CUDA_SUCCESS, cuMemGetAccess(&flags, &here, p + 2 * grain));
    CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    GIVES(CUDA_SUCCESS, cuMemsetD8(p, 0x42, 3 * grain));
    CHECK(all_bytes(p, 3 * grain, 0x42));
    x = p + 2 * grain - 2048; /* across the boundary */
    MUST(cuMemsetD32(x, 0x3f800000, n)); /* 1 */
    GIVES(CUDA_SUCCESS, cuLaunchKernel(vadd, n / 256, 1, 1, 256, 1, 1, 0, NULL, args, NULL));
    GIVES(CUDA_SUCCESS, cuCtxSynchronize());
    CHECK(all_bytes(x + 3, 1, 0x40) && all_bytes(x + 4 * n - 1, 1, 0x40)); /* 2 */
    GIVES(CUDA_SUCCESS, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, x));
    CHECK(type == CU_MEMORYTYPE_DEVICE);
    GIVES(CUDA_SUCCESS, cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, x));
    GIVES(CUDA_SUCCESS, cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, x));
    CHECK(start <= x && x < start + size);
    GIVES(CUDA_SUCCESS, cuMemRelease(a)); /* the mapping keeps the memory */
    GIVES(CUDA_SUCCESS, cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(p + grain)));
    CHECK(again != 0);
    USUALLY(cuMemAddressFree(p, 4 * grain) != CUDA_SUCCESS); /* in use */
    if (simulated(dev)) /* driver 580 accepts this */
        USUALLY(cuMemUnmap(p, grain) != CUDA_SUCCESS); /* half a mapping */
    USUALLY(cuMemFree(p) != CUDA_SUCCESS);
    unmap(p, 2 * grain, grain);
    USUALLY_GIVES(CUDA_SUCCESS, cuMemUnmap(p, 3 * grain)); /* nothing is mapped there */
    GIVES(CUDA_SUCCESS, cuMemMap(p + grain, 2 * grain, 0, again, 0)); /* at another address, with the same contents */
    allow(dev, p + grain, 2 * grain, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CHECK(all_bytes(p + grain, grain, 0x42));
    GIVES(CUDA_SUCCESS, cuMemUnmap(p + grain, 2 * grain));
    GIVES(CUDA_SUCCESS, cuMemRelease(again));
    GIVES(CUDA_SUCCESS, cuMemRelease(b));
    GIVES(CUDA_SUCCESS, cuMemAddressFree(p, 4 * grain));
}

/* One allocation at two addresses. */
static void twice(CUdevice dev)
{
    CUmemGenericAllocationHandle a = new_allocation(dev, grain, CU_MEM_HANDLE_TYPE_NONE);
    CUdeviceptr p;
    MUST(cuMemAddressReserve(&p, 2 * grain, 0, 0, 0));
    GIVES(CUDA_SUCCESS, cuMemMap(p, grain, 0, a, 0));
    GIVES(CUDA_SUCCESS, cuMemMap(p + grain, grain, 0, a, 0));
    MUST(cuMemRelease(a));
    allow(dev, p, 2 * grain, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    MUST(cuMemsetD8(p, 7, grain));
    MUST(cuCtxSynchronize());
    CHECK(all_bytes(p + grain, grain, 7));
    unmap(p, grain, grain);
    GIVES(CUDA_SUCCESS, cuMemAddressFree(p, 2 * grain));
}

static void accounts(CUdevice dev)
{
    CUmemGenericAllocationHandle a;
    CUdeviceptr p;
    size_t free0, free1, free2, total;
    MUST(cuMemGetInfo(&free0, &total));
    a = new_allocation(dev, 8 * grain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    MUST(cuMemAddressReserve(&p, 8 * grain, 0, 0, 0));
    MUST(cuMemMap(p, 8 * grain, 0, a, 0));
    MUST(cuMemRelease(a));
    MUST(cuMemGetInfo(&free1, &total));
    CHECK(free1 <= free0 - 8 * grain);
    MUST(cuMemUnmap(p, 8 * grain));
    MUST(cuMemAddressFree(p, 8 * grain));
    MUST(cuMemGetInfo(&free2, &total));
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
    MUST(cuMemRelease(same));
    close(fd);
    MUST(cuMemAddressReserve(&p, grain, 0, 0, 0));
    MUST(cuMemMap(p, grain, 0, h, 0));
    allow(dev, p, grain, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (!all_bytes(p, grain, 0x5a))
        return 1;
    MUST(cuMemsetD8(p + 100, 0x77, 10));
    MUST(cuCtxSynchronize());
    if (!send_go(sock) || !receive_go(sock)) /* by now the exporter has released the memory */
        return 1;
    if (!all_bytes(p + 100, 10, 0x77) || !all_bytes(p + 110, grain - 110, 0x5a))
        return 1;
    MUST(cuMemUnmap(p, grain));
    MUST(cuMemRelease(h));
    MUST(cuMemAddressFree(p, grain));
    MUST(cuCtxDestroy(ctx));
    return !send_go(sock);
}

static void shared(CUdevice dev, struct peer other)
{
    CUmemGenericAllocationHandle h = new_allocation(dev, grain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), q;
    CUdeviceptr p;
    int fd = -1, none[2];
    MUST(cuMemAddressReserve(&p, grain, 0, 0, 0));
    MUST(cuMemMap(p, grain, 0, h, 0));
    allow(dev, p, grain, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    MUST(cuMemsetD8(p, 0x5a, grain));
    MUST(cuCtxSynchronize());
    USUALLY(cuMemExportToShareableHandle(NULL, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS);
    USUALLY(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_WIN32, 0) != CUDA_SUCCESS);
    GIVES(CUDA_SUCCESS, cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(fd >= 0);
    CHECK(send_message(other.sock, &grain, sizeof grain, fd));
    close(fd);
    CHECK(receive_go(other.sock));
    CHECK(all_bytes(p + 100, 10, 0x77) && all_bytes(p + 110, 1, 0x5a));
    GIVES(CUDA_SUCCESS, cuMemUnmap(p, grain));
    GIVES(CUDA_SUCCESS, cuMemRelease(h));
    CHECK(send_go(other.sock) && receive_go(other.sock));
    CHECK(peer_wait(other) == 0);
    if (pipe(none) == 0)
        USUALLY(cuMemImportFromShareableHandle(&q, (void *)(uintptr_t)none[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS);
    GIVES(CUDA_SUCCESS, cuMemAddressFree(p, grain));
}

static void unsupported(CUdevice dev)
{
    CUmulticastObjectProp mc = {.numDevices = 2, .size = grain};
    CUmemGenericAllocationHandle h;
    int has = 0;
    MUST(cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, dev));
    if (!has)
        USUALLY(cuMulticastCreate(&h, &mc) != CUDA_SUCCESS);
}

/* A mapping gives no access. This part is last, because a real context may be lost. */
static void not_allowed(CUdevice dev)
{
    CUmemGenericAllocationHandle a = new_allocation(dev, grain, CU_MEM_HANDLE_TYPE_NONE);
    CUdeviceptr p;
    char b[16];
    MUST(cuMemAddressReserve(&p, grain, 0, 0, 0));
    USUALLY(cuMemcpyDtoH(b, p, sizeof b) != CUDA_SUCCESS); /* nothing is mapped */
    if (cuCtxSynchronize() != CUDA_SUCCESS)
        return;
    MUST(cuMemMap(p, grain, 0, a, 0));
    USUALLY(cuMemcpyDtoH(b, p, sizeof b) != CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
    int vmm = 0;
    if (argc > 2)
        return importer(atoi(argv[2]));
    struct peer other = peer_start(argv[0], "import");
    CUdevice dev = first_device();
    MUST(cuDeviceGetAttribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, dev));
    if (!vmm)
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
