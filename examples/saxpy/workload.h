/* The inputs of a request, known to both sides: the function fills its vectors with them, and the
 * checker computes the answer from them. */
#ifndef SAXPY_WORKLOAD_H
#define SAXPY_WORKLOAD_H

#include <stddef.h>

#define DEFAULT_N 4096
#define DEFAULT_A 2.0f

static inline float input_x(size_t i)
{
	return (float)(i % 97);
}

static inline float input_y(size_t i)
{
	return (float)(i % 13);
}

#endif
