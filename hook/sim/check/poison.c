/* poison.c: with poisoning, new memory of each kind is not zero, except for the variables of a
 * module, for which the manual promises zeros. */
#include "objects.h"

#include <stdint.h>

#define SIZE ((size_t)2 << 20)

static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                          ".visible .global .align 4 .b8 zeros[4096];\n"
                          ".visible .entry tick()\n{\n ret;\n}\n";

static void mapped(CUdevice dev, CUmemAllocationHandleType handles)
{
    CUmemGenericAllocationHandle h = new_allocation(dev, SIZE, handles);
    CUdeviceptr p = new_mapping(dev, h, SIZE, CU_MEM_ACCESS_FLAGS_PROT_READ);
    CHECK(all_bytes(p, SIZE, 0xff));
    ASSERT_SUCCESS(cuMemUnmap(p, SIZE));
    ASSERT_SUCCESS(cuMemRelease(h));
}

int main(void)
{
    CUdeviceptr p;
    size_t n;
    CUdevice dev = first_device();
    CUcontext ctx = new_context(dev);
    for (int i = 0; i < 2; i++) { /* freed memory is poisoned again */
        ASSERT_SUCCESS(cuMemAlloc(&p, SIZE));
        CHECK(all_bytes(p, SIZE, 0xff));
        ASSERT_SUCCESS(cuMemsetD8(p, 7, SIZE));
        ASSERT_SUCCESS(cuMemFree(p));
    }
    ASSERT_SUCCESS(cuMemAllocAsync(&p, SIZE, NULL));
    CHECK(all_bytes(p, SIZE, 0xff));
    ASSERT_SUCCESS(cuMemFreeAsync(p, NULL));
    mapped(dev, CU_MEM_HANDLE_TYPE_NONE);
    mapped(dev, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmodule m = new_module(ptx);
    ASSERT_SUCCESS(cuModuleGetGlobal(&p, &n, m, "zeros"));
    CHECK(n == 4096 && all_bytes(p, n, 0));
    ASSERT_SUCCESS(cuCtxDestroy(ctx));
    return tap_end();
}
