/* fault.c: the first CUDA error after which a process cannot use CUDA any more.
 *
 * Such an error is sticky: after a kernel has caused it, every call of the process returns it. The
 * helper of a device reports the first one to the daemon, with the name of the call. Successful
 * calls cost nothing more: the wrappers check the error in the branch for refused work, and calls
 * that wait for work or query it compare their result once.
 *
 * The helper queries events itself, and may see an error before the program does, or while the
 * program makes no calls. It then waits a moment for the program to see the error in a call of its
 * own, whose name says more. */
#include "fault.h"

#include "clock.h"
#include "device.h"
#include "handshake.h"
#include "link.h"

#include <errno.h>
#include <string.h>

#define TOLD_NS 2000000000u  /* longest wait for the report, before the program learns of the error and may end */
#define TOLD_POLL_MS 100
#define UNSEEN_NS 100000000u /* how long the helper waits for the program to see the error */

enum { NONE, NOTING, NOTED };

static struct {
    uint32_t state;
    uint32_t told; /* futex: the report was sent, or the daemon does not accept it */
    CUresult code;
    char call[GF_NAME_SIZE];
    struct gf_device *device; /* its helper reports */
} fault;

static struct {
    CUresult code; /* seen by a helper; 0: none */
    uint64_t since;
} unseen;

static bool is_sticky(CUresult result)
{
    switch ((int)result) {
    case 226: /* CUDA_ERROR_CONTAINED */
    case 700: /* CUDA_ERROR_ILLEGAL_ADDRESS */
    case 702: /* CUDA_ERROR_LAUNCH_TIMEOUT */
    case 710: /* CUDA_ERROR_ASSERT */
    case 714: /* CUDA_ERROR_HARDWARE_STACK_ERROR */
    case 715: /* CUDA_ERROR_ILLEGAL_INSTRUCTION */
    case 716: /* CUDA_ERROR_MISALIGNED_ADDRESS */
    case 717: /* CUDA_ERROR_INVALID_ADDRESS_SPACE */
    case 718: /* CUDA_ERROR_INVALID_PC */
    case 719: /* CUDA_ERROR_LAUNCH_FAILED */
    case 810: /* CUDA_ERROR_MPS_CLIENT_TERMINATED */
    case 911: /* CUDA_ERROR_EXTERNAL_DEVICE */
        return true;
    }
    return false;
}

/* Returns a device whose helper runs: the calling thread's current device if possible. NULL if no helper
 * runs. */
static struct gf_device *reporting_device(void)
{
    struct gf_device *device = gf_device_current();
    if (device && __atomic_load_n(&device->link.started, __ATOMIC_ACQUIRE))
        return device;
    for (gf_each_device(d))
        if (__atomic_load_n(&d->link.started, __ATOMIC_ACQUIRE))
            return d;
    return NULL;
}

/* Stores the first error. Returns false if there is one already, or no device whose helper could report
 * it. */
static bool note(CUresult result, const char *call, struct gf_device *device)
{
    uint32_t none = NONE;
    if (!device || !__atomic_compare_exchange_n(&fault.state, &none, NOTING, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return false;
    fault.code = result;
    fault.device = device;
    strncpy(fault.call, call, sizeof fault.call - 1);
    fault.call[strcspn(fault.call, "_")] = 0; /* _v2, _ptsz */
    __atomic_store_n(&fault.state, NOTED, __ATOMIC_SEQ_CST);
    return true;
}

/* Waits until the helper has reported the fault; not while the daemon is gone. */
static void await_told(void)
{
    uint64_t until = gf_now_ns() + TOLD_NS;
    while (!__atomic_load_n(&fault.told, __ATOMIC_SEQ_CST) && gf_load(&fault.device->link.sock) >= 0 && gf_now_ns() < until)
        gf_futex_wait(&fault.told, 0, TOLD_POLL_MS);
}

GF_COLD void gf_saw_error(CUresult result, const char *call)
{
    if (!is_sticky(result) || gf_load(&fault.state) != NONE)
        return;
    int saved = errno;
    if (note(result, call, reporting_device())) {
        gf_link_kick(fault.device);
        await_told();
    }
    errno = saved;
}

CUresult gf_fault_watch(CUresult result)
{
    if (gf_unlikely(result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) && !gf_load(&unseen.code) && is_sticky(result)) {
        gf_store(&unseen.since, gf_now_ns());
        gf_store(&unseen.code, result);
    }
    return result;
}

int gf_fault_tend(struct gf_device *device, bool *told)
{
    uint32_t state = __atomic_load_n(&fault.state, __ATOMIC_SEQ_CST);
    if (state == NONE && gf_load(&unseen.code)) {
        uint64_t waited = gf_now_ns() - gf_load(&unseen.since);
        if (waited < UNSEEN_NS)
            return (int)((UNSEEN_NS - waited) / 1000000) + 1;
        note(gf_load(&unseen.code), "cuEventQuery", device);
        state = __atomic_load_n(&fault.state, __ATOMIC_SEQ_CST);
    }
    if (state != NOTED || fault.device != device || *told)
        return -1;
    struct gf_fault message = {.h = gf_header(GF_MSG_FAULT, sizeof message), .code = (uint32_t)fault.code};
    memcpy(message.call, fault.call, sizeof message.call);
    *told = true;
    gf_link_tell(device, GF_PAGE_FAULTS, &message, sizeof message);
    __atomic_store_n(&fault.told, 1, __ATOMIC_SEQ_CST);
    gf_futex_wake(&fault.told);
    return -1;
}

void gf_fault_fork_child(void)
{
    memset(&fault, 0, sizeof fault);
    memset(&unseen, 0, sizeof unseen);
}
