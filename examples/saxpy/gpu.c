#include "gpu.h"

#include <pthread.h>
#include <stdlib.h>

#include <cuda.h>

#include "workload.h"

#define THREADS 256

/* The resources of one request: a stream, and buffers that grow on demand. */
struct lane {
	struct lane *next; /* the next free lane */
	CUstream stream;
	CUevent begin, end;
	CUdeviceptr x, y;
	float *host; /* x, then y */
	size_t room; /* elements of each vector */
};

static struct {
	struct gpu_settings settings;
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction kernel;
	CUdeviceptr held;
	struct lane *all, *free;
	pthread_mutex_t mutex;
	pthread_cond_t freed;
} gpu = {.mutex = PTHREAD_MUTEX_INITIALIZER, .freed = PTHREAD_COND_INITIALIZER};

#define TRY(call)                       \
	do {                            \
		CUresult tried = (call);\
		if (tried)              \
			return tried;   \
	} while (0)

static const char *explain(CUresult result)
{
	const char *text;

	if (!result)
		return NULL;
	return cuGetErrorString(result, &text) ? "unknown CUDA error" : text;
}

static CUresult open_lane(struct lane *lane)
{
	TRY(cuStreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING));
	TRY(cuEventCreate(&lane->begin, CU_EVENT_DEFAULT));
	TRY(cuEventCreate(&lane->end, CU_EVENT_DEFAULT));
	lane->next = gpu.free;
	gpu.free = lane;
	return CUDA_SUCCESS;
}

static CUresult open_device(void)
{
	TRY(cuInit(0));
	TRY(cuDeviceGet(&gpu.device, 0));
	TRY(cuDevicePrimaryCtxRetain(&gpu.context, gpu.device));
	TRY(cuCtxSetCurrent(gpu.context));
	TRY(cuModuleLoadData(&gpu.module, gpu.settings.ptx));
	TRY(cuModuleGetFunction(&gpu.kernel, gpu.module, "saxpy"));
	if (gpu.settings.holds)
		TRY(cuMemAlloc(&gpu.held, gpu.settings.holds));
	for (int i = 0; i < gpu.settings.lanes; i++)
		TRY(open_lane(&gpu.all[i]));
	return CUDA_SUCCESS;
}

const char *gpu_open(const struct gpu_settings *settings)
{
	gpu.settings = *settings;
	gpu.all = calloc((size_t)settings->lanes, sizeof *gpu.all);
	if (!gpu.all)
		return "out of memory";
	return explain(open_device());
}

static struct lane *acquire_lane(void)
{
	struct lane *lane;

	pthread_mutex_lock(&gpu.mutex);
	while (!gpu.free)
		pthread_cond_wait(&gpu.freed, &gpu.mutex);
	lane = gpu.free;
	gpu.free = lane->next;
	pthread_mutex_unlock(&gpu.mutex);
	return lane;
}

static void release_lane(struct lane *lane)
{
	pthread_mutex_lock(&gpu.mutex);
	lane->next = gpu.free;
	gpu.free = lane;
	pthread_cond_signal(&gpu.freed);
	pthread_mutex_unlock(&gpu.mutex);
}

static void empty(struct lane *lane)
{
	if (lane->x)
		cuMemFree(lane->x);
	if (lane->y)
		cuMemFree(lane->y);
	free(lane->host);
	lane->x = lane->y = 0;
	lane->host = NULL;
	lane->room = 0;
}

static CUresult make_room(struct lane *lane, size_t elements)
{
	const size_t bytes = elements * sizeof(float);

	if (elements <= lane->room)
		return CUDA_SUCCESS;
	empty(lane);
	TRY(cuMemAlloc(&lane->x, bytes));
	TRY(cuMemAlloc(&lane->y, bytes));
	lane->host = malloc(2 * bytes);
	if (!lane->host)
		return CUDA_ERROR_OUT_OF_MEMORY;
	lane->room = elements;
	return CUDA_SUCCESS;
}

static CUresult compute(struct lane *lane, size_t n, float a, size_t batch, struct gpu_result *result)
{
	const unsigned blocks = (unsigned)((size_t)gpu.settings.blocks * batch);
	const size_t elements = n * batch, bytes = elements * sizeof(float);
	unsigned count = (unsigned)elements;
	void *args[] = {&a, &lane->x, &lane->y, &count};
	float *x, *y;

	TRY(cuCtxSetCurrent(gpu.context));
	TRY(make_room(lane, elements));
	x = lane->host;
	y = lane->host + elements;
	for (size_t i = 0; i < elements; i++) {
		x[i] = input_x(i % n);
		y[i] = input_y(i % n);
	}
	TRY(cuEventRecord(lane->begin, lane->stream));
	TRY(cuMemcpyHtoDAsync(lane->x, x, bytes, lane->stream));
	TRY(cuMemcpyHtoDAsync(lane->y, y, bytes, lane->stream));
	for (int i = 0; i < gpu.settings.launches; i++)
		TRY(cuLaunchKernel(gpu.kernel, blocks, 1, 1, THREADS, 1, 1, 0, lane->stream, args, NULL));
	TRY(cuMemcpyDtoHAsync(y, lane->y, bytes, lane->stream));
	TRY(cuEventRecord(lane->end, lane->stream));
	TRY(cuStreamSynchronize(lane->stream));
	TRY(cuEventElapsedTime(&result->ms, lane->begin, lane->end));
	result->sum = 0;
	for (size_t i = 0; i < elements; i++)
		result->sum += (double)y[i];
	return CUDA_SUCCESS;
}

const char *gpu_saxpy(size_t n, float a, size_t batch, struct gpu_result *result)
{
	struct lane *lane = acquire_lane();
	CUresult status = compute(lane, n, a, batch, result);

	/* Work that was queued before a failure still uses the buffers. */
	if (status)
		cuStreamSynchronize(lane->stream);
	if (status == CUDA_ERROR_OUT_OF_MEMORY)
		empty(lane);
	release_lane(lane);
	return explain(status);
}

void gpu_close(void)
{
	cuCtxSetCurrent(gpu.context);
	for (int i = 0; i < gpu.settings.lanes; i++) {
		struct lane *lane = &gpu.all[i];
		empty(lane);
		cuEventDestroy(lane->begin);
		cuEventDestroy(lane->end);
		cuStreamDestroy(lane->stream);
	}
	free(gpu.all);
	if (gpu.held)
		cuMemFree(gpu.held);
	cuModuleUnload(gpu.module);
	cuDevicePrimaryCtxRelease(gpu.device);
}
