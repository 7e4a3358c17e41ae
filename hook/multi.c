/* multi.c: the one call that launches on several devices. */
#include "fault.h"
#include "gate.h"
#include "real.h"

static uint64_t blocks_of(const CUDA_LAUNCH_PARAMS *p) { return (uint64_t)p->gridDimX * p->gridDimY * p->gridDimZ; }

/* Whether the leases that a thread entered under still hold. */
static bool hold(const struct gf_line *entered, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (entered[i].device && __atomic_load_n(gf_load(&entered[i].device->gate), __ATOMIC_SEQ_CST) != entered[i].lease)
            return false;
    return true;
}

/* What a line says of the launch, for which so much was spent before: the next
 * device's stream may take its place. */
static struct gf_line note(const struct gf_line *line, uint64_t spent)
{
    struct gf_line noted = {.device = line->device, .lease = line->lease, .counts = line->counts, .entry = line->entry};
    noted.spent = line->device ? line->spent + spent : 0; /* or it is captured now */
    noted.late = line->late || noted.spent;
    return noted;
}

/* All devices' gates must be open at once. While a thread waits at one it is
 * not inside of another: else each device could wait for the next. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList, unsigned int numDevices,
                                                        unsigned int flags)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    struct gf_line entered[GF_DEVICES] = {0};
    struct gf_thread *self = &gf_self;
    /* More than there are: the driver will say so. */
    unsigned n = launchParamsList && numDevices <= GF_DEVICES ? numDevices : 0;
    bool spent = false;
    do {
        gf_store(&self->everywhere, 0);
        for (unsigned i = 0; i < n; i++) {
            CUstream stream = launchParamsList[i].hStream;
            struct gf_line *line = gf_enter(stream ? stream : CU_STREAM_LEGACY, spent ? 0 : blocks_of(&launchParamsList[i]));
            if (!line)
                return GF_NOT_SENT; /* and what was spent is lost, as the program is to be */
            line->until--;
            entered[i] = note(line, entered[i].spent);
            gf_leave_sync(line);
        }
        spent = true;
        __atomic_store_n(&self->everywhere, n != 0, __ATOMIC_SEQ_CST);
    } while (!hold(entered, n));
    CUresult result = gf_real.cuLaunchCooperativeKernelMultiDevice(launchParamsList, numDevices, flags);
    for (unsigned i = 0; i < n; i++) {
        if (result == CUDA_SUCCESS)
            gf_store(&entered[i].counts->launches, entered[i].counts->launches + 1);
        if ((unsigned)entered[i].late | (unsigned)result)
            gf_done_uncounted(&entered[i], result);
    }
    __atomic_store_n(&self->everywhere, 0, __ATOMIC_RELEASE);
    gf_saw(result, "cuLaunchCooperativeKernelMultiDevice");
    return result;
}
