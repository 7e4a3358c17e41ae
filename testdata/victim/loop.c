/* loop LAUNCHES SYNC_EVERY [MIB]: launches a kernel of 10 us LAUNCHES times and prints how many
 * seconds that took, from the first launch to the end of the last kernel. It synchronises after
 * every SYNC_EVERY launches. First it copies MIB to the GPU, as weights. Benchmarks compare it with
 * the same work under gfaas. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cuda.h>

static const char module_text[] =
	"// gfaas-sim: tiny block_us=10\n"
	".version 7.0\n"
	".target sm_50\n"
	".address_size 64\n"
	".visible .entry tiny()\n"
	"{\n"
	"ret;\n"
	"}\n";

static void check(CUresult result, const char *what)
{
	const char *text = "unknown error";

	if (!result)
		return;
	cuGetErrorString(result, &text);
	fprintf(stderr, "loop: %s: %s (%d)\n", what, text, (int)result);
	exit(1);
}

#define CHECK(call) check(call, #call)

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction f;
	CUstream stream;
	long launches = argc > 2 ? atol(argv[1]) : 0, every = argc > 2 ? atol(argv[2]) : 0;
	size_t mib = argc > 3 ? (size_t)atol(argv[3]) : 0;

	if (launches < 1 || every < 1) {
		fprintf(stderr, "usage: loop LAUNCHES SYNC_EVERY [MIB]\n");
		return 2;
	}
	CHECK(cuInit(0));
	CHECK(cuDeviceGet(&device, 0));
	CHECK(cuCtxCreate(&context, 0, device));
	CHECK(cuModuleLoadData(&module, module_text));
	CHECK(cuModuleGetFunction(&f, module, "tiny"));
	CHECK(cuStreamCreate(&stream, 1));
	if (mib) {
		CUdeviceptr weights;
		void *data = calloc(mib, 1 << 20);

		if (!data)
			return 1;
		CHECK(cuMemAlloc(&weights, mib << 20));
		CHECK(cuMemcpyHtoD(weights, data, mib << 20));
	}
	double begin = now();
	for (long i = 1; i <= launches; i++) {
		CHECK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
		if (i % every == 0)
			CHECK(cuStreamSynchronize(stream));
	}
	CHECK(cuStreamSynchronize(stream));
	printf("%.9f\n", now() - begin);
	CHECK(cuCtxDestroy(context));
	return 0;
}
