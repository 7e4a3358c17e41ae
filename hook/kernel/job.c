/* job.c: runs a job: links code, frees and allocates blocks, copies, clears, launches kernels, copies back. All memory is
 * allocated before the first kernel. */
#include "executor.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

enum { MARKS = 1024 };
#define AWAKE_NS 30000u     /* how long a wait for the GPU spins */
#define PLAIN_SHARED 49152u /* bytes of shared memory that need no attribute */

static CUcontext context;
static CUstream stream;
static CUevent linked, began, ended; /* after linking, before the first kernel, after the last kernel */

/* A mark follows each launch, and shows how far the GPU has got. */
static CUevent mark[MARKS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t set, met, told, job; /* under the lock: marks set, passed, and reported to the daemon; the job's id */
static unsigned char *objects;
static uint64_t objects_len;

struct kernel {
    CUfunction f;
    uint32_t grid[3], block[3], shared;
    void *params[MAX_ARGS];
    CUdeviceptr address[MAX_ARGS];
};

bool job_init(CUcontext ctx)
{
    context = ctx;
    struct stat st;
    if (fstat(OBJECTS, &st) == 0 && st.st_size > 0) {
        void *at = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, OBJECTS, 0);
        if (at == MAP_FAILED)
            return false;
        objects = at;
        objects_len = (uint64_t)st.st_size;
    }
    for (int i = 0; i < MARKS; i++)
        if (p_cuEventCreate(&mark[i], 2 /* no timing */) != CUDA_SUCCESS)
            return false;
    return p_cuStreamCreate(&stream, 1 /* non-blocking */) == CUDA_SUCCESS &&
           p_cuEventCreate(&linked, 0) == CUDA_SUCCESS && p_cuEventCreate(&began, 0) == CUDA_SUCCESS &&
           p_cuEventCreate(&ended, 0) == CUDA_SUCCESS;
}

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Tells the CPU that this is a spin loop. */
static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Notes the first failure. Returns whether r is success. */
static bool check(struct outcome *o, CUresult r, enum step step, uint32_t index)
{
    if (r == CUDA_SUCCESS)
        return true;
    o->result = r;
    o->step = step;
    o->index = index;
    if (!o->text[0])
        snprintf(o->text, sizeof o->text, "%s", driver_error_text(r));
    return false;
}

/* Like check, for calls that waited for the GPU: an error is a kernel's, and the context is unusable after it. */
static bool check_gpu(struct outcome *o, CUresult r, enum step step, uint32_t index)
{
    if (r != CUDA_SUCCESS)
        o->fatal = true;
    return check(o, r, step, index);
}

static void report(uint64_t id, uint64_t launches)
{
    struct writer w;
    w.len = 0;
    put64(&w, id);
    put64(&w, launches);
    message_send(MSG_PROGRESS, &w);
}

/* Notes which marks the GPU has passed. The caller holds the lock. */
static void advance(void)
{
    while (met < set && p_cuEventQuery(mark[met % MARKS]) == CUDA_SUCCESS)
        met++;
}

/* Reports progress of the job to the daemon, if there is any. Another thread calls it from time to time. */
void job_tell(void)
{
    static __thread bool ready;
    pthread_mutex_lock(&lock);
    if (set > met && !ready)
        ready = p_cuCtxSetCurrent(context) == CUDA_SUCCESS;
    if (set > met)
        advance();
    if (met > told) {
        told = met;
        report(job, met);
    }
    pthread_mutex_unlock(&lock);
}

/* Copies between blocks and the objects' memory. */
static bool copies(struct reader *r, struct outcome *o, enum step step)
{
    uint32_t n = get32(r);
    for (uint32_t i = 0; i < n && !r->bad; i++) {
        uint32_t number = get32(r);
        uint64_t offset = get64(r), size = get64(r);
        struct block *b = block_of(number, size);
        CUresult result = CUDA_ERROR_INVALID_VALUE;
        if (b && offset <= objects_len && size <= objects_len - offset)
            result = step == ST_UPLOAD ? p_cuMemcpyHtoDAsync_v2(b->ptr, objects + offset, size, stream)
                                       : p_cuMemcpyDtoHAsync_v2(objects + offset, b->ptr, size, stream);
        if (!check_gpu(o, result, step, i))
            return false;
    }
    if (step != ST_UPLOAD && n && !check_gpu(o, p_cuStreamSynchronize(stream), step, 0))
        return false;
    return !r->bad;
}

static bool load(struct reader *r, struct outcome *o, uint64_t id)
{
    uint64_t start = now_ns();
    for (uint32_t i = 0, n = get32(r); i < n && !r->bad; i++)
        module_unload(get32(r));
    for (uint32_t i = 0, n = get32(r); i < n && !r->bad; i++) {
        uint32_t number = get32(r), len = get32(r);
        const char *text = get_bytes(r, len); /* including the final zero */
        if (!text || !len || text[len - 1])
            return false;
        if (!check(o, module_load(number, text, len, o->text, sizeof o->text), ST_LOAD, i))
            return false;
        o->text[0] = 0;
        report(id, 0);
    }
    o->link_ns = now_ns() - start;
    return !r->bad;
}

static bool memory(struct reader *r, struct outcome *o)
{
    if (!check_gpu(o, p_cuEventRecord(linked, stream), ST_NONE, 0))
        return false;
    blocks_keep(get64(r));
    if (!copies(r, o, ST_SAVE))
        return false;
    for (uint32_t i = 0, n = get32(r); i < n && !r->bad; i++)
        if (!block_free(get32(r)))
            return check(o, CUDA_ERROR_INVALID_VALUE, ST_FREE, i);
    for (uint32_t i = 0, n = get32(r); i < n && !r->bad; i++) {
        uint32_t number = get32(r);
        uint64_t size = get64(r);
        if (!check(o, block_alloc(number, size), ST_ALLOC, i))
            return false;
    }
    if (!copies(r, o, ST_UPLOAD))
        return false;
    for (uint32_t i = 0, n = get32(r); i < n && !r->bad; i++) {
        uint32_t to = get32(r), from = get32(r);
        struct block *a = block_of(to, 0), *b = block_of(from, 0);
        if (!a || !b || a->size > b->size)
            return check(o, CUDA_ERROR_INVALID_VALUE, ST_COPY, i);
        if (!check_gpu(o, p_cuMemcpyDtoDAsync_v2(a->ptr, b->ptr, a->size, stream), ST_COPY, i))
            return false;
    }
    for (uint32_t i = 0, n = get32(r); i < n && !r->bad; i++) {
        struct block *b = block_of(get32(r), 0);
        if (!b)
            return check(o, CUDA_ERROR_INVALID_VALUE, ST_ZERO, i);
        if (!check_gpu(o, p_cuMemsetD8Async(b->ptr, 0, b->size, stream), ST_ZERO, i))
            return false;
    }
    return !r->bad;
}

/* Reads one kernel; its argument values stay in the message. */
static bool kernel(struct reader *r, struct kernel *k, struct outcome *o, uint32_t index)
{
    uint32_t module = get32(r), len = get32(r);
    const char *name = get_bytes(r, len);
    for (int i = 0; i < 3; i++)
        k->grid[i] = get32(r);
    for (int i = 0; i < 3; i++)
        k->block[i] = get32(r);
    k->shared = get32(r);
    uint32_t nargs = get32(r);
    if (r->bad || nargs > MAX_ARGS)
        return false;
    for (uint32_t i = 0; i < nargs; i++) {
        uint32_t size = get32(r); /* 0: an address */
        if (size) {
            k->params[i] = (void *)get_bytes(r, size);
            continue;
        }
        uint32_t number = get32(r);
        uint64_t offset = get64(r);
        struct block *b = block_of(number, offset);
        if (!b)
            return check(o, CUDA_ERROR_INVALID_VALUE, ST_KERNEL, index);
        k->address[i] = b->ptr + offset;
        k->params[i] = &k->address[i];
    }
    if (r->bad)
        return false;
    CUresult found = module_function(module, name, len, &k->f);
    if (found == CUDA_SUCCESS && k->shared > PLAIN_SHARED)
        found = p_cuFuncSetAttribute(k->f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)k->shared);
    return check(o, found, ST_KERNEL, index);
}

/* Sets a mark after the last launch. If all marks are in use, it waits for the oldest. */
static CUresult set_mark(void)
{
    pthread_mutex_lock(&lock);
    while (set - met == MARKS) {
        uint64_t oldest = met;
        pthread_mutex_unlock(&lock);
        CUresult r = p_cuEventSynchronize(mark[oldest % MARKS]);
        if (r != CUDA_SUCCESS)
            return r;
        pthread_mutex_lock(&lock);
        advance();
    }
    CUresult r = p_cuEventRecord(mark[set % MARKS], stream);
    if (r == CUDA_SUCCESS)
        set++;
    pthread_mutex_unlock(&lock);
    return r;
}

/* Starts counting the marks of a job; 0 ends it. */
static void marks_begin(uint64_t id)
{
    pthread_mutex_lock(&lock);
    set = met = told = 0;
    job = id;
    pthread_mutex_unlock(&lock);
}

/* Waits for the end of the launched work. It spins for AWAKE_NS first, because a driver that sleeps wakes up later than a
 * short kernel takes. */
static CUresult wait_end(void)
{
    for (uint64_t until = now_ns() + AWAKE_NS; p_cuEventQuery(ended) == CUDA_ERROR_NOT_READY && now_ns() < until;)
        relax();
    return p_cuStreamSynchronize(stream);
}

/* Launches the list of kernels `iterations` times. */
static bool launch(struct kernel *k, uint32_t n, uint32_t iterations, struct outcome *o)
{
    uint64_t all = (uint64_t)n * iterations;
    uint32_t i = 0, any = n == 1 ? 0 : UINT32_MAX; /* the kernel of an error that is reported later */
    if (!check_gpu(o, p_cuEventRecord(began, stream), ST_KERNEL, any))
        return false;
    for (uint64_t sent = 0; sent < all; sent++, i = i + 1 == n ? 0 : i + 1) {
        CUresult r = p_cuLaunchKernel(k[i].f, k[i].grid[0], k[i].grid[1], k[i].grid[2], k[i].block[0], k[i].block[1],
                                      k[i].block[2], k[i].shared, stream, k[i].params, NULL);
        if (!check(o, r, ST_KERNEL, i)) {
            o->fatal = r >= CUDA_ERROR_ILLEGAL_ADDRESS && r != CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
            return false;
        }
        if (all > 1 && !check_gpu(o, set_mark(), ST_KERNEL, any))
            return false;
    }
    if (!check_gpu(o, p_cuEventRecord(ended, stream), ST_KERNEL, any) ||
        !check_gpu(o, wait_end(), ST_KERNEL, any))
        return false;
    float ms = 0;
    if (p_cuEventElapsedTime(&ms, began, ended) == CUDA_SUCCESS)
        o->gpu_ns = (uint64_t)((double)ms * 1e6);
    if (p_cuEventElapsedTime(&ms, linked, began) == CUDA_SUCCESS) /* the copies run on the stream, after the calls */
        o->copy_in_ns = (uint64_t)((double)ms * 1e6);
    return true;
}

static bool kernels(struct reader *r, struct outcome *o, uint64_t id)
{
    uint32_t n = get32(r), iterations = get32(r);
    if (!n)
        return !r->bad;
    static struct kernel *list;
    static uint32_t room;
    if (r->bad || n > 65536)
        return false;
    if (n > room) {
        struct kernel *more = realloc(list, n * sizeof *more);
        if (!more)
            return check(o, CUDA_ERROR_OUT_OF_MEMORY, ST_KERNEL, 0);
        list = more;
        room = n;
    }
    for (uint32_t i = 0; i < n; i++)
        if (!kernel(r, &list[i], o, i))
            return false;
    marks_begin(id);
    bool done = launch(list, n, iterations, o);
    marks_begin(0);
    return done;
}

/* Copies results to the host, and waits until all work has finished. */
static bool results(struct reader *r, struct outcome *o)
{
    uint64_t start = now_ns();
    if (!copies(r, o, ST_DOWNLOAD))
        return false;
    check_gpu(o, p_cuStreamSynchronize(stream), ST_DOWNLOAD, 0);
    o->copy_out_ns = now_ns() - start;
    return true;
}

/* Runs a job. Returns false if the message is malformed. Its copies and clears have finished when it returns. */
bool job_run(struct reader *r, uint64_t *id, struct outcome *o)
{
    memset(o, 0, offsetof(struct outcome, text) + 1);
    *id = get64(r);
    bool done = load(r, o, *id) && memory(r, o) && kernels(r, o, *id) && results(r, o);
    if (!done && !o->fatal && o->result != CUDA_SUCCESS)
        check_gpu(o, p_cuStreamSynchronize(stream), ST_NONE, 0); /* for the work that was begun */
    return !r->bad && (o->result != CUDA_SUCCESS || r->at == r->end);
}
