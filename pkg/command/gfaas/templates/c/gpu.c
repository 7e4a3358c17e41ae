/* gpu.c: uses the device through the CUDA driver API. It declares the few types and functions of
 * cuda.h that it needs, because a machine without the toolkit lacks that file. */
#include "gpu.h"

#include <dlfcn.h>
#include <stddef.h>

#define THREADS 256 /* of a block */

typedef int CUresult; /* 0 is success */
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;

/* The functions of the driver: the exported name, the name here, and the parameters. */
#define DRIVER(X) \
	X("cuInit", init, (unsigned)) \
	X("cuGetErrorString", error_string, (CUresult, const char **)) \
	X("cuDeviceGet", device_get, (int *, int)) \
	X("cuDevicePrimaryCtxRetain", retain, (CUcontext *, int)) \
	X("cuCtxSetCurrent", set_current, (CUcontext)) \
	X("cuModuleLoadData", load, (CUmodule *, const void *)) \
	X("cuModuleGetFunction", function, (CUfunction *, CUmodule, const char *)) \
	X("cuMemAlloc_v2", alloc, (CUdeviceptr *, size_t)) \
	X("cuMemFree_v2", free, (CUdeviceptr)) \
	X("cuMemcpyHtoD_v2", to_device, (CUdeviceptr, const void *, size_t)) \
	X("cuMemcpyDtoH_v2", to_host, (void *, CUdeviceptr, size_t)) \
	X("cuMemsetD32_v2", set, (CUdeviceptr, unsigned, size_t)) \
	X("cuLaunchKernel", launch, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
				     unsigned, CUstream, void **, void **))

static struct {
#define X(name, own, parameters) CUresult (*own) parameters;
	DRIVER(X)
#undef X
} cu;

/* The kernel's text, which the assembler includes in the program. */
__asm__(".section .rodata\n"
	".global saxpy_ptx\n"
	"saxpy_ptx: .incbin \"saxpy.ptx\"\n"
	".byte 0\n"
	".previous\n");
extern const char saxpy_ptx[];

static CUcontext context;
static CUfunction kernel;

#define TRY(call)                               \
	do {                                    \
		CUresult tried = (call);        \
		if (tried)                      \
			return explain(tried);  \
	} while (0)

static const char *explain(CUresult result)
{
	const char *text;

	return cu.error_string(result, &text) ? "unknown CUDA error" : text;
}

static const char *find_driver(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	if (!driver)
		return dlerror();
#define X(name, own, parameters)                            \
	*(void **)&cu.own = dlsym(driver, name);            \
	if (!cu.own)                                        \
		return "the driver has no " name;
	DRIVER(X)
#undef X
	return NULL;
}

const char *gpu_open(void)
{
	const char *fault = find_driver();
	CUmodule module;
	int device;

	if (fault)
		return fault;
	TRY(cu.init(0));
	TRY(cu.device_get(&device, 0));
	TRY(cu.retain(&context, device));
	TRY(cu.set_current(context));
	TRY(cu.load(&module, saxpy_ptx));
	TRY(cu.function(&kernel, module, "saxpy"));
	return NULL;
}

/* Computes y = a * x + y with y = 0, in device memory for both. */
static const char *compute(float a, const float *x, float *y, unsigned n, CUdeviceptr at_x, CUdeviceptr at_y)
{
	void *params[] = {&a, &at_x, &at_y, &n};

	TRY(cu.to_device(at_x, x, n * sizeof *x));
	TRY(cu.set(at_y, 0, n));
	TRY(cu.launch(kernel, (n + THREADS - 1) / THREADS, 1, 1, THREADS, 1, 1, 0, NULL, params, NULL));
	TRY(cu.to_host(y, at_y, n * sizeof *y)); /* waits for the kernel */
	return NULL;
}

const char *gpu_scale(float a, const float *x, float *y, unsigned n)
{
	CUdeviceptr at = 0;
	const char *fault;

	if (!n)
		return NULL;
	TRY(cu.set_current(context));
	TRY(cu.alloc(&at, 2 * n * sizeof *x));
	fault = compute(a, x, y, n, at, at + n * sizeof *x);
	cu.free(at);
	return fault;
}
