/* The device: y = a * x for many numbers. */
#ifndef GPU_H
#define GPU_H

/* Loads the driver and the kernel. Returns NULL, or what went wrong. */
const char *gpu_open(void);

/* Computes n numbers, from any thread. Returns NULL, or what went wrong. */
const char *gpu_scale(float a, const float *x, float *y, unsigned n);

#endif
