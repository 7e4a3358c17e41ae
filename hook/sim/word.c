/* word.c: streams that write a word of memory in their turn, or wait for one: how
 * streams, processes and the host wait for each other. What is waited for may be
 * written by anybody, so it is looked at again and again (engine.c).
 *
 * The forms before _v2 are refused, as by drivers that are not told otherwise when
 * they are loaded. */
#include "transfer.h"

#include <string.h>

enum { MOST = 256 }; /* operations of a batch */

static uint64_t load(const void *at, unsigned bytes)
{
    return bytes == 4 ? __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE) : __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
}

bool word_there(const struct word *w)
{
    const uint64_t all = w->bytes == 4 ? UINT32_MAX : UINT64_MAX, got = load(w->at, w->bytes);
    switch (w->flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ: /* with overflow: half of all values come after any */
        return ((got - w->value) & (all / 2 + 1)) == 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return got == w->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (got & w->value) != 0;
    default:
        return ((got | w->value) & all) != all;
    }
}

/* Where a word is that is waited for or written. */
static CUresult locate(CUdeviceptr addr, unsigned bytes, char **view, bool *read_only)
{
    enum place where;
    if (addr % bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = transfer_locate(addr, bytes, true, view, &where);
    *read_only = where == P_READ_ONLY;
    return r == CUDA_SUCCESS && where == P_PAGEABLE ? CUDA_ERROR_INVALID_VALUE : r;
}

static CUresult await(struct stream *s, CUdeviceptr addr, uint64_t value, unsigned bytes, unsigned flags, bool look)
{
    char *view;
    bool read_only;
    if (flags & ~(unsigned)(3 | CU_STREAM_WAIT_VALUE_FLUSH))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_STREAM_WAIT_VALUE_FLUSH) /* CAN_FLUSH_REMOTE_WRITES is 0 */
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult r = locate(addr, bytes, &view, &read_only);
    if (r != CUDA_SUCCESS || look)
        return r;
    struct item *it = item_new(I_UNTIL);
    if (!it)
        return CUDA_ERROR_OUT_OF_MEMORY;
    it->u.word = (struct word){.at = view, .value = value, .bytes = bytes, .flags = flags};
    return engine_push(s, it);
}

static void write_32(const struct task *t)
{
    __atomic_store_n((uint32_t *)(uintptr_t)t->p, (uint32_t)t->n, __ATOMIC_RELEASE);
}

static void write_64(const struct task *t)
{
    __atomic_store_n((uint64_t *)(uintptr_t)t->p, t->n, __ATOMIC_RELEASE);
}

static void fault(const struct task *t)
{
    (void)t;
    ctx_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
}

static CUresult put(struct stream *s, CUdeviceptr addr, uint64_t value, unsigned bytes, unsigned flags, bool look)
{
    char *view;
    bool read_only;
    if (flags) /* NO_MEMORY_BARRIER is of the first version of these calls only */
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = locate(addr, bytes, &view, &read_only);
    if (r != CUDA_SUCCESS || look)
        return r;
    struct task t = {.run = read_only ? fault : bytes == 4 ? write_32 : write_64, .p = (uintptr_t)view, .n = value};
    return transfer_task(s, &t);
}

CUresult sim_cuStreamWaitValue32_v2(struct stream *s, CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
    return await(s, addr, value, 4, flags, false);
}

CUresult sim_cuStreamWaitValue64_v2(struct stream *s, CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
{
    return await(s, addr, value, 8, flags, false);
}

CUresult sim_cuStreamWriteValue32_v2(struct stream *s, CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags)
{
    return put(s, addr, value, 4, flags, false);
}

CUresult sim_cuStreamWriteValue64_v2(struct stream *s, CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags)
{
    return put(s, addr, value, 8, flags, false);
}

/* One operation of a batch, or with look only whether it is one. */
static CUresult operate(struct stream *s, const CUstreamBatchMemOpParams *p, bool look)
{
    switch (p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        return await(s, p->waitValue.address, p->waitValue.value, 4, p->waitValue.flags, look);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        return await(s, p->waitValue.address, p->waitValue.value64, 8, p->waitValue.flags, look);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return put(s, p->writeValue.address, p->writeValue.value, 4, p->writeValue.flags, look);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return put(s, p->writeValue.address, p->writeValue.value64, 8, p->writeValue.flags, look);
    case CU_STREAM_MEM_OP_BARRIER: /* everything here is in order */
        return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuStreamBatchMemOp_v2(struct stream *s, CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray, unsigned int flags)
{
    if (!count || count > MOST || !paramArray || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++)
        r = operate(s, &paramArray[i], true);
    for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++)
        r = operate(s, &paramArray[i], false);
    return r;
}
