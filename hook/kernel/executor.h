/* executor.h: the executor of gfaas-kerneld, which runs clients' kernels on one GPU in a process of its own. So a kernel
 * that faults or never ends costs only that process.
 *
 *   gfaas-kernel-executor
 *
 * is started by the daemon with a pipe from which it reads jobs as descriptor 3, the objects' memory as descriptor 4 and a
 * pipe to which it writes as descriptor 5. It uses the first GPU that it sees, says hello, and runs one job after another
 * until the pipes are closed or an error occurs after which the context is unusable. pkg/adapter/executor is the other end
 * of the pipes.
 *
 * A message consists of the length of its data in bytes, its kind, and the data. Numbers are little-endian and not padded.
 */
#pragma once

#define CUDA_EXACT_NAMES
#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JOBS = 3, OBJECTS = 4, ANSWERS = 5 };

/* Kinds of message. */
enum {
    MSG_HELLO = 1,    /* from the executor: the GPU, or why there is none */
    MSG_JOB = 2,      /* to the executor */
    MSG_PROGRESS = 3, /* from the executor: a job has made progress */
    MSG_DONE = 4,     /* from the executor: a job has finished */
};

/* The steps of a job, in order. */
enum step { ST_NONE, ST_UNLOAD, ST_LOAD, ST_SAVE, ST_FREE, ST_ALLOC, ST_UPLOAD, ST_COPY, ST_ZERO, ST_KERNEL, ST_DOWNLOAD };

enum { MAX_MESSAGE = 64 << 20, MAX_TEXT = 8192, MAX_ARGS = 128 };

/* The outcome of a job, and where it failed. */
struct outcome {
    CUresult result;
    enum step step;
    uint32_t index; /* of the failed item within its step */
    bool fatal;     /* the context is unusable */
    uint64_t link_ns, copy_in_ns, gpu_ns, copy_out_ns; /* time of its phases; copy_in_ns includes allocating and clearing */
    char text[MAX_TEXT];
};

/* driver.c: the driver's functions, from the libcuda that the loader finds. */
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
const char *driver_error_text(CUresult r);

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

/* blocks.c: GPU memory in numbered blocks. */
struct block {
    CUdeviceptr ptr; /* 0: unused number */
    uint64_t size;
};

struct block *block_of(uint32_t number, uint64_t end);
CUresult block_alloc(uint32_t number, uint64_t size);
bool block_free(uint32_t number);
void blocks_keep(uint64_t limit);
uint64_t blocks_held(void);

/* modules.c: linked code, by number. */
CUresult module_load(uint32_t number, const char *code, size_t size, char *log, size_t len);
void module_unload(uint32_t number);
CUresult module_function(uint32_t number, const char *name, size_t len, CUfunction *f);

/* job.c: one job. */
bool job_init(CUcontext ctx);
void job_tell(void);
bool job_run(struct reader *r, uint64_t *id, struct outcome *o);
