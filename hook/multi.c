/* multi.c: the wrapper of cuLaunchCooperativeKernelMultiDevice, the only call that launches on several
 * devices at once. */
#include "fault.h"
#include "gate.h"
#include "real.h"

static uint64_t blocks_of(const CUDA_LAUNCH_PARAMS *p) { return (uint64_t)p->gridDimX * p->gridDimY * p->gridDimZ; }

/* Reports whether the leases under which the thread passed the devices' gates are still in the gates. */
static bool leases_hold(const struct gf_line *entered, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (entered[i].device && __atomic_load_n(gf_load(&entered[i].device->gate), __ATOMIC_SEQ_CST) != entered[i].lease)
            return false;
    return true;
}

/* Copies what the end of the call needs from a line (thread.h), since the stream of the next device
 * may use the same line. `spent` are the blocks that an earlier pass of the caller's loop took from the
 * device's budget. */
static struct gf_line snapshot(const struct gf_line *line, uint64_t spent)
{
    struct gf_line copy = {.device = line->device, .lease = line->lease, .counts = line->counts, .entry = line->entry};
    copy.spent = line->device ? line->spent + spent : 0; /* no device: the stream is captured */
    copy.slow_end = line->slow_end || copy.spent;
    return copy;
}

/* The gates of all devices must be open at the same time. The thread passes them one after the other,
 * and starts again if a lease has ended meanwhile. While it waits at one gate it does not keep another
 * one busy, since the devices could otherwise wait for each other. The first pass takes the blocks of
 * the launch from the budgets. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList, unsigned int numDevices,
                                                        unsigned int flags)
{
    struct gf_line entered[GF_DEVICES] = {0};
    struct gf_thread *self = &gf_self;
    /* A process cannot use more than GF_DEVICES devices: the driver refuses a longer list. */
    unsigned n = launchParamsList && numDevices <= GF_DEVICES ? numDevices : 0;
    bool spent = false;
    do {
        gf_store(&self->in_multi_device_call, 0);
        for (unsigned i = 0; i < n; i++) {
            CUstream stream = launchParamsList[i].hStream;
            struct gf_line *line = gf_enter(stream ? stream : CU_STREAM_LEGACY, spent ? 0 : blocks_of(&launchParamsList[i]));
            if (!line)
                return GF_NOT_SENT; /* the spent blocks are lost, but the program is about to end */
            line->until--; /* one piece of work: the launch is counted in `counts`, not in line->launches */
            entered[i] = snapshot(line, entered[i].spent);
            gf_leave_sync(line);
        }
        spent = true;
        __atomic_store_n(&self->in_multi_device_call, n != 0, __ATOMIC_SEQ_CST);
    } while (!leases_hold(entered, n));
    CUresult result = gf_real.cuLaunchCooperativeKernelMultiDevice(launchParamsList, numDevices, flags);
    for (unsigned i = 0; i < n; i++) {
        if (result == CUDA_SUCCESS)
            gf_store(&entered[i].counts->launches, entered[i].counts->launches + 1);
        if ((unsigned)entered[i].slow_end | (unsigned)result)
            gf_done_uncounted(&entered[i], result);
    }
    __atomic_store_n(&self->in_multi_device_call, 0, __ATOMIC_RELEASE);
    gf_saw(result, "cuLaunchCooperativeKernelMultiDevice");
    return result;
}
