/* word.c: calls that make a stream write a word of memory, or wait until a word has a value. Programs use
 * them to synchronize streams, processes and the host. Other streams, other processes and the host may write
 * the word at any time, so the engine polls it (engine.c).
 *
 * These calls have two versions. Those without the suffix _v2 are refused, as a real driver refuses them
 * unless a parameter of its kernel module (NVreg_EnableStreamMemOPs) permits them. */
#include "transfer.h"

enum { MAX_OPERATIONS = 256 }; /* of a batch */

static uint64_t load(const void *at, unsigned bytes)
{
    return bytes == 4 ? __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE)
                      : __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
}

bool word_matches(const struct word *w)
{
    const uint64_t all = w->bytes == 4 ? UINT32_MAX : UINT64_MAX, got = load(w->at, w->bytes);
    switch (w->flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ: /* the difference, as a signed number, is not negative */
        return ((got - w->value) & (all / 2 + 1)) == 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return got == w->value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (got & w->value) != 0;
    default:
        return ((got | w->value) & all) != all;
    }
}

/* Locates a word that a stream waits for or writes: sets *view to its address in this process, and
 * *read_only if it was mapped without write access. */
static CUresult locate(CUdeviceptr addr, unsigned bytes, char **view, bool *read_only)
{
    enum mem_kind where;
    if (addr % bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = transfer_locate(addr, bytes, DRIVER_MEMORY, view, &where);
    *read_only = where == MEM_READ_ONLY;
    return r == CUDA_SUCCESS && where == MEM_PAGEABLE ? CUDA_ERROR_INVALID_VALUE : r;
}

CUresult word_wait(struct stream *s, const struct word *w)
{
    struct item *it = item_new(I_UNTIL);
    if (!it)
        return CUDA_ERROR_OUT_OF_MEMORY;
    it->u.word = *w;
    return engine_push(s, it);
}

static CUresult wait_word(struct stream *s, CUdeviceptr addr, uint64_t value, unsigned bytes, unsigned flags,
                          bool check_only)
{
    char *view;
    bool read_only;
    if (flags & ~(unsigned)(3 | CU_STREAM_WAIT_VALUE_FLUSH))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_STREAM_WAIT_VALUE_FLUSH) /* CAN_FLUSH_REMOTE_WRITES is 0 */
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult r = locate(addr, bytes, &view, &read_only);
    if (r != CUDA_SUCCESS || check_only)
        return r;
    return word_wait(s, &(struct word){.at = view, .value = value, .bytes = bytes, .flags = flags});
}

static void write_32(const struct task *t)
{
    __atomic_store_n((uint32_t *)(uintptr_t)t->addr, (uint32_t)t->value, __ATOMIC_RELEASE);
}

void word_write_64(const struct task *t)
{
    __atomic_store_n((uint64_t *)(uintptr_t)t->addr, t->value, __ATOMIC_RELEASE);
}

static void fault(const struct task *t)
{
    (void)t;
    ctx_fault(CUDA_ERROR_ILLEGAL_ADDRESS);
}

static CUresult write_word(struct stream *s, CUdeviceptr addr, uint64_t value, unsigned bytes, unsigned flags,
                           bool check_only)
{
    char *view;
    bool read_only;
    if (flags) /* NO_MEMORY_BARRIER exists only in the first version of these calls */
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = locate(addr, bytes, &view, &read_only);
    if (r != CUDA_SUCCESS || check_only)
        return r;
    struct task t = {.run = read_only ? fault : bytes == 4 ? write_32 : word_write_64, .addr = (uintptr_t)view,
                     .value = value};
    return transfer_task(s, &t);
}

/* Defines a call that waits for a word or writes one. */
#define WORD_CALL(name, bits, perform)                                                                              \
    CUresult sim_cuStream##name##Value##bits##_v2(struct stream *s, CUstream stream, CUdeviceptr addr,              \
                                                  cuuint##bits##_t value, unsigned int flags)                       \
    {                                                                                                               \
        return perform(s, addr, value, bits / 8, flags, false);                                                     \
    }
WORD_CALL(Wait, 32, wait_word)
WORD_CALL(Wait, 64, wait_word)
WORD_CALL(Write, 32, write_word)
WORD_CALL(Write, 64, write_word)

/* Performs one operation of a batch, or only checks it. */
static CUresult operate(struct stream *s, const CUstreamBatchMemOpParams *p, bool check_only)
{
    switch (p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        return wait_word(s, p->waitValue.address, p->waitValue.value, 4, p->waitValue.flags, check_only);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        return wait_word(s, p->waitValue.address, p->waitValue.value64, 8, p->waitValue.flags, check_only);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return write_word(s, p->writeValue.address, p->writeValue.value, 4, p->writeValue.flags, check_only);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return write_word(s, p->writeValue.address, p->writeValue.value64, 8, p->writeValue.flags, check_only);
    case CU_STREAM_MEM_OP_BARRIER: /* all operations are in order anyway */
        return CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuStreamBatchMemOp_v2(struct stream *s, CUstream stream, unsigned int count,
                                   CUstreamBatchMemOpParams *paramArray, unsigned int flags)
{
    if (!count || count > MAX_OPERATIONS || !paramArray || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++)
        r = operate(s, &paramArray[i], true);
    for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++)
        r = operate(s, &paramArray[i], false);
    return r;
}
