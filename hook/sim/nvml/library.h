/* library.h: what the parts of the simulated management library share.
 *
 *   entry.c   the exported functions, made from ../../nvml.def
 *   system.c  the machine, and how its devices are found
 *   device.c  what a device is and does
 *   state.c   reads the state that the simulated driver's processes share
 *
 * It looks, and changes nothing: no file is made, no lock taken, nobody waited for.
 */
#ifndef GFAAS_SIM_NVML_H
#define GFAAS_SIM_NVML_H

#include "../sim.h"

#define NVML_EXPORT __attribute__((visibility("default")))
#define SIM_POWER_IDLE 50000u  /* mW of a device that does nothing */
#define SIM_POWER_MOST 300000u /* and of one that is always busy; between them a straight line */
#include "../../nvml.h"

struct nvmlDevice_st {
    int index;
    int fd; /* of the device's state; -1: not open */
};
extern struct nvmlDevice_st sim_devices[SIM_MAX_DEVICES];

/* A process on a device. */
struct user {
    unsigned pid;
    uint64_t mem; /* bytes that it occupies, its contexts included */
    bool mps;
    unsigned busy; /* percent of the time in which it had the device, of late; 0 when nobody looked before */
};

/* A device at one moment. */
struct sight {
    uint64_t at;          /* ns */
    uint64_t total, used; /* bytes */
    unsigned busy;        /* percent of the last SIM_SIGHT_NS in which anybody had work on it */
    unsigned n;           /* processes: those that have a pid in this one's namespace */
    const struct user *user; /* until the next look */
};
#define SIM_SIGHT_NS 200000000u

nvmlReturn_t sim_see(struct nvmlDevice_st *device, struct sight *s);
/* How many devices there are: as many as this process's environment says, and those
 * that somebody is on. */
unsigned sim_count(void);

#define SIM_NV_OWN(name, params)
#define SIM_NV_CALL(name, params) nvmlReturn_t sim_##name params;
#define SIM_NV_DEVICE(name, params) nvmlReturn_t sim_##name params;
#define NV(name, sim, hook, params, args) SIM_NV_##sim(name, params)
#include "../../nvml.def"

#endif
