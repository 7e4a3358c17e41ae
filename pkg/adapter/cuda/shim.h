/* shim.h: the calls of the CUDA driver that driver.go makes, as C functions that
 * cgo can call. Each returns a CUresult, and makes the context current on the
 * thread that it is called on, since Go moves its goroutines between threads. */
#ifndef GFAAS_CUDA_SHIM_H
#define GFAAS_CUDA_SHIM_H

#define CUDA_EXACT_NAMES
#include "cuda.h"
#include "headers.h"

#include <stdbool.h>

typedef struct shim shim;

/* Opens the driver at that path and a context on its first visible device. NULL
 * with *why (to be freed) where that cannot be. */
shim *shim_open(const char *path, char **why);
CUresult shim_close(shim *s);
const char *shim_text(CUresult r);
bool shim_say(char **why, const char *format, ...); /* false */

size_t shim_grain(const shim *s);
void shim_uuid(const shim *s, unsigned char uuid[16]);

typedef struct {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at;
    size_t size;
} shim_memory;

/* Memory made here may be written; another process's, which has that size, not. */
CUresult shim_alloc(shim *s, size_t size, shim_memory *m);
CUresult shim_import(shim *s, int fd, size_t size, shim_memory *m);
CUresult shim_export(shim *s, const shim_memory *m, int *fd);
CUresult shim_free(shim *s, shim_memory *m);

typedef struct {
    void *buffer;
    CUstream stream;
} shim_stage;

CUresult shim_stage_make(shim *s, size_t size, shim_stage *g);
CUresult shim_stage_free(shim *s, shim_stage *g);
CUresult shim_up(shim *s, const shim_stage *g, CUdeviceptr to, size_t n);
CUresult shim_down(shim *s, const shim_stage *g, CUdeviceptr from, size_t n);
CUresult shim_wait(shim *s, const shim_stage *g);

#endif
