/* semaphore.c: semaphores of other interfaces that streams wait for and signal.
 *
 * Of the kinds that the driver can import only timeline semaphores are here, each a
 * number of 64 bits that grows. There is no Vulkan to make one: the descriptor names a
 * file, of memfd_create for example, that begins with the number. */
#include "capture.h"
#include "transfer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct semaphore {
    uint64_t *value; /* in a page that others have too */
};

enum { PAGE = 4096 };

CUresult sim_cuImportExternalSemaphore(struct ctx *c, CUexternalSemaphore *extSem_out, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *semHandleDesc)
{
    (void)c;
    if (!extSem_out || !semHandleDesc || semHandleDesc->flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (semHandleDesc->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    int fd = semHandleDesc->handle.fd;
    if (lseek(fd, 0, SEEK_END) < (off_t)sizeof(uint64_t))
        return CUDA_ERROR_INVALID_VALUE;
    struct semaphore *sem = calloc(1, sizeof *sem);
    void *page = sem ? mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (page == MAP_FAILED || !handle_add(sem, H_SEMAPHORE)) {
        if (page != MAP_FAILED)
            munmap(page, PAGE);
        free(sem);
        return sem ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    sem->value = page;
    close(fd); /* it is the driver's now */
    *extSem_out = (CUexternalSemaphore)sem;
    return CUDA_SUCCESS;
}

/* The page stays: streams may still wait for it. */
CUresult sim_cuDestroyExternalSemaphore(struct ctx *c, CUexternalSemaphore extSem)
{
    (void)c;
    struct semaphore *sem = handle_of(extSem, H_SEMAPHORE);
    if (!sem)
        return CUDA_ERROR_INVALID_HANDLE;
    handle_del(sem);
    free(sem);
    return CUDA_SUCCESS;
}

/* Whether each is a semaphore. */
static CUresult check(struct stream *s, const CUexternalSemaphore *sems, const void *params, unsigned n)
{
    if (!sems || !params || !n)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++)
        if (!handle_is(sems[i], H_SEMAPHORE))
            return CUDA_ERROR_INVALID_HANDLE;
    return s->capture ? capture_refuse(s) : CUDA_SUCCESS;
}

CUresult sim_cuWaitExternalSemaphoresAsync(struct stream *s, const CUexternalSemaphore *extSemArray,
                                           const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *paramsArray, unsigned int numExtSems, CUstream stream)
{
    (void)stream;
    CUresult r = check(s, extSemArray, paramsArray, numExtSems);
    for (unsigned i = 0; i < numExtSems && r == CUDA_SUCCESS; i++) {
        struct item *it = item_new(I_UNTIL);
        if (!it)
            return CUDA_ERROR_OUT_OF_MEMORY;
        it->u.word = (struct word){.at = ((struct semaphore *)extSemArray[i])->value, .value = paramsArray[i].params.fence.value, .bytes = 8,
                                   .flags = CU_STREAM_WAIT_VALUE_GEQ};
        r = engine_push(s, it);
    }
    return r;
}

static void signal(const struct task *t)
{
    __atomic_store_n((uint64_t *)(uintptr_t)t->p, t->n, __ATOMIC_RELEASE);
}

CUresult sim_cuSignalExternalSemaphoresAsync(struct stream *s, const CUexternalSemaphore *extSemArray,
                                             const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *paramsArray, unsigned int numExtSems, CUstream stream)
{
    (void)stream;
    CUresult r = check(s, extSemArray, paramsArray, numExtSems);
    for (unsigned i = 0; i < numExtSems && r == CUDA_SUCCESS; i++) {
        struct task t = {.run = signal, .p = (uintptr_t)((struct semaphore *)extSemArray[i])->value, .n = paramsArray[i].params.fence.value};
        r = transfer_task(s, &t);
    }
    return r;
}
