/* The function's work on the device. */
#ifndef SAXPY_GPU_H
#define SAXPY_GPU_H

#include <stddef.h>

struct gpu_settings {
	const char *ptx; /* text of the module */
	int lanes;       /* requests on the device at once, each on its own stream */
	int blocks;      /* blocks of each kernel, for a batch of one */
	int launches;    /* kernels per request: each adds a * x to y */
	size_t holds;    /* bytes of device memory that are held in addition */
};

struct gpu_result {
	double sum; /* of y, over all elements */
	float ms;   /* between the first copy and the last, on the device */
};

/* Prepares device 0. Returns NULL, or an error message. */
const char *gpu_open(const struct gpu_settings *settings);

/* Computes y = a * x + y, launches times, for batch vectors of n elements. Waits for a free lane.
 * Returns NULL, or an error message. */
const char *gpu_saxpy(size_t n, float a, size_t batch, struct gpu_result *result);

/* Frees everything. No request may be in progress. */
void gpu_close(void);

#endif
