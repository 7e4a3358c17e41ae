/* semaphore.c: semaphores of other interfaces for which streams wait, and which they signal.
 *
 * Of the kinds that the driver can import, only timeline semaphores exist here; each is a 64-bit number that grows.
 * There is no Vulkan to create one: the descriptor refers to a file, for example of memfd_create, that begins with the
 * number. */
#include "capture.h"
#include "transfer.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct semaphore {
    uint64_t *value; /* in a page that other processes have too */
};

enum { PAGE = 4096 };

CUresult sim_cuImportExternalSemaphore(struct ctx *c, CUexternalSemaphore *extSem_out,
                                       const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *semHandleDesc)
{
    if (!extSem_out || !semHandleDesc || semHandleDesc->flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (semHandleDesc->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    int fd = semHandleDesc->handle.fd;
    if (lseek(fd, 0, SEEK_END) < (off_t)sizeof(uint64_t))
        return CUDA_ERROR_INVALID_VALUE;
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    struct semaphore *sem = handle_new(sizeof *sem, H_SEMAPHORE);
    if (!sem) {
        munmap(page, PAGE);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sem->value = page;
    close(fd); /* the driver owns it */
    *extSem_out = (CUexternalSemaphore)sem;
    return CUDA_SUCCESS;
}

/* The page stays mapped, because streams may still wait for it. */
CUresult sim_cuDestroyExternalSemaphore(struct semaphore *sem, CUexternalSemaphore extSem)
{
    handle_del(sem);
    free(sem);
    return CUDA_SUCCESS;
}

/* Checks that all handles are semaphores. */
static CUresult check_semaphores(struct stream *s, const CUexternalSemaphore *sems, const void *params, unsigned n)
{
    if (!sems || !params || !n)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++)
        if (!handle_is(sems[i], H_SEMAPHORE))
            return CUDA_ERROR_INVALID_HANDLE;
    return s->capture ? capture_refuse(s) : CUDA_SUCCESS;
}

CUresult sim_cuWaitExternalSemaphoresAsync(struct stream *s, const CUexternalSemaphore *extSemArray,
                                           const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *paramsArray,
                                           unsigned int numExtSems, CUstream stream)
{
    CUresult r = check_semaphores(s, extSemArray, paramsArray, numExtSems);
    for (unsigned i = 0; i < numExtSems && r == CUDA_SUCCESS; i++) {
        struct word w = {.at = ((struct semaphore *)extSemArray[i])->value, .bytes = 8,
                         .value = paramsArray[i].params.fence.value, .flags = CU_STREAM_WAIT_VALUE_GEQ};
        r = word_wait(s, &w);
    }
    return r;
}

CUresult sim_cuSignalExternalSemaphoresAsync(struct stream *s, const CUexternalSemaphore *extSemArray,
                                             const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *paramsArray,
                                             unsigned int numExtSems, CUstream stream)
{
    CUresult r = check_semaphores(s, extSemArray, paramsArray, numExtSems);
    for (unsigned i = 0; i < numExtSems && r == CUDA_SUCCESS; i++) {
        struct task t = {.run = word_write_64, .addr = (uintptr_t)((struct semaphore *)extSemArray[i])->value,
                         .value = paramsArray[i].params.fence.value};
        r = transfer_task(s, &t);
    }
    return r;
}
