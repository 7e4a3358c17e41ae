/* train [LAUNCHES [BLOCKS]]: launches kernels without end, like a training job, and prints a line "step N" after each
 * iteration. It is an ordinary CUDA driver program.
 *
 *   LAUNCHES  kernels of an iteration (20)
 *   BLOCKS    blocks of a kernel, of 100 us each (640) */
#include <stdio.h>
#include <stdlib.h>

#include <cuda.h>

static const char module_text[] =
	"// gfaas-sim: step block_us=100\n"
	".version 7.0\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .entry step()\n"
	"{\n"
	"ret;\n"
	"}\n";

static void check(CUresult result, const char *what)
{
	const char *text = "unknown error";

	if (!result)
		return;
	cuGetErrorString(result, &text);
	fprintf(stderr, "train: %s: %s (%d)\n", what, text, (int)result);
	exit(1);
}

#define CHECK(call) check(call, #call)

int main(int argc, char **argv)
{
	int launches = argc > 1 ? atoi(argv[1]) : 20;
	unsigned blocks = argc > 2 ? (unsigned)atoi(argv[2]) : 640;
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction step;

	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuCtxCreate(&context, 0, device));
	CHECK(cuModuleLoadData(&module, module_text));
	CHECK(cuModuleGetFunction(&step, module, "step"));
	for (unsigned long i = 1;; i++) {
		for (int k = 0; k < launches; k++)
			CHECK(cuLaunchKernel(step, blocks, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
		CHECK(cuCtxSynchronize());
		printf("step %lu\n", i);
		fflush(stdout);
	}
}
