/* poison.c: what fresh memory of each kind holds, where it is poisoned: no zeros,
 * but the variables of a module, of which the manual says so. */
#include "tap.h"

#include <stdint.h>

#define SIZE ((size_t)2 << 20)

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                          ".visible .global .align 4 .b8 zeros[4096];\n"
                          ".visible .entry tick()\n{\n ret;\n}\n";

static bool all(CUdeviceptr p, size_t n, unsigned char value)
{
    static unsigned char b[SIZE];
    bool same = true;
    MUST(cuMemcpyDtoH(b, p, n));
    for (size_t i = 0; i < n; i++)
        same &= b[i] == value;
    return same;
}

static void mapped(CUdevice dev, CUmemAllocationHandleType handles)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = handles};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, dev}, CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUmemGenericAllocationHandle h;
    CUdeviceptr p;
    prop.location = access.location;
    MUST(cuMemCreate(&h, SIZE, &prop, 0));
    MUST(cuMemAddressReserve(&p, SIZE, 0, 0, 0));
    MUST(cuMemMap(p, SIZE, 0, h, 0));
    MUST(cuMemSetAccess(p, SIZE, &access, 1));
    CHECK(all(p, SIZE, 0xff));
    MUST(cuMemUnmap(p, SIZE));
    MUST(cuMemRelease(h));
}

int main(void)
{
    CUcontext ctx;
    CUmodule m;
    CUdeviceptr p;
    size_t n;
    CUdevice dev = first_device();
    MUST(cuCtxCreate(&ctx, 0, dev));
    for (int i = 0; i < 2; i++) { /* what was freed is fresh again */
        MUST(cuMemAlloc(&p, SIZE));
        CHECK(all(p, SIZE, 0xff));
        MUST(cuMemsetD8(p, 7, SIZE));
        MUST(cuMemFree(p));
    }
    MUST(cuMemAllocAsync(&p, SIZE, NULL));
    CHECK(all(p, SIZE, 0xff));
    MUST(cuMemFreeAsync(p, NULL));
    mapped(dev, CU_MEM_HANDLE_TYPE_NONE);
    mapped(dev, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    MUST(cuModuleLoadData(&m, ptx));
    MUST(cuModuleGetGlobal(&p, &n, m, "zeros"));
    CHECK(n == 4096 && all(p, n, 0));
    MUST(cuCtxDestroy(ctx));
    return tap_end();
}
