/* executor.h: the executor of gfaas-kerneld, which runs kernels of strangers on one
 * GPU in a process of its own. A kernel that faults or never ends costs that
 * process, and nobody else.
 *
 *   gfaas-kernel-executor
 *
 * is started by the daemon with a pipe to read jobs from as descriptor 3, the memory
 * of the objects as descriptor 4 and a pipe to write to as descriptor 5. It uses the
 * first GPU that it sees, says hello, and carries out one job after the other until the
 * pipes are closed, or something went wrong that no GPU recovers from.
 * pkg/adapter/executor is the other end of the pipes.
 *
 * A message is its length in bytes, its kind, and so much data. Numbers are
 * little-endian, one after the other without gaps.
 */
#ifndef EXECUTOR_H
#define EXECUTOR_H

#define CUDA_EXACT_NAMES
#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JOBS = 3, OBJECTS = 4, ANSWERS = 5 };

/* Kinds of message. */
enum {
    MSG_HELLO = 1,    /* from the executor: what the GPU is, or why there is none */
    MSG_JOB = 2,      /* to the executor */
    MSG_PROGRESS = 3, /* from it: a job has come further */
    MSG_DONE = 4,     /* from it: a job is over */
};

/* The steps of a job, in the order in which they are done. */
enum step { ST_NONE, ST_UNLOAD, ST_LOAD, ST_SAVE, ST_FREE, ST_ALLOC, ST_UPLOAD, ST_COPY, ST_ZERO, ST_KERNEL, ST_DOWNLOAD };

enum { MAX_MESSAGE = 64 << 20, MAX_TEXT = 8192, MAX_ARGS = 128 };

/* What became of a job: where it failed, if it did. */
struct outcome {
    CUresult result;
    enum step step;
    uint32_t index; /* of what failed among those of its step */
    bool fatal;     /* the context is of no use any more */
    uint64_t gpu_ns;
    char text[MAX_TEXT];
};

/* driver.c: the functions of the driver, found where the loader finds libcuda. */
#define DRIVER(X)                                                                                     \
    X(cuInit) X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDriverGetVersion)         \
    X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuMemGetInfo_v2) X(cuMemAlloc_v2)                \
    X(cuMemFree_v2) X(cuMemcpyHtoDAsync_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoDAsync_v2)           \
    X(cuMemsetD8Async) X(cuModuleLoadDataEx) X(cuModuleUnload) X(cuModuleGetFunction)                 \
    X(cuFuncSetAttribute) X(cuLaunchKernel) X(cuStreamCreate) X(cuStreamSynchronize) X(cuEventCreate) \
    X(cuEventRecord) X(cuEventSynchronize) X(cuEventQuery) X(cuEventElapsedTime) X(cuGetErrorString)
#define DECLARE(name) extern __typeof__(&name) p_##name;
DRIVER(DECLARE)
#undef DECLARE

bool driver_open(char *why, size_t len);
const char *driver_says(CUresult r);

/* frame.c: messages. */
struct reader {
    const unsigned char *at, *end;
    bool bad; /* it ended too early */
};

uint32_t get32(struct reader *r);
uint64_t get64(struct reader *r);
const void *get_bytes(struct reader *r, size_t n);

struct writer {
    unsigned char data[MAX_TEXT + 512];
    size_t len;
};

void put32(struct writer *w, uint32_t v);
void put64(struct writer *w, uint64_t v);
void put_text(struct writer *w, const char *s);
void message_send(uint32_t kind, struct writer *w);
bool message_receive(uint32_t *kind, struct reader *r);

/* blocks.c: memory of the GPU, by number. */
struct block {
    CUdeviceptr ptr; /* 0: there is none of that number */
    uint64_t size;
};

struct block *block_of(uint32_t number, uint64_t end);
CUresult block_alloc(uint32_t number, uint64_t size);
bool block_free(uint32_t number);
void blocks_keep(uint64_t limit);
uint64_t blocks_held(void);

/* modules.c: code that was linked, by number. */
CUresult module_load(uint32_t number, const char *text, char *log, size_t len);
void module_unload(uint32_t number);
CUresult module_function(uint32_t number, const char *name, size_t len, CUfunction *f);

/* job.c: one job. */
bool job_init(CUcontext ctx);
void job_tell(void);
bool job_run(struct reader *r, uint64_t *id, struct outcome *o);

#endif
