/* library.h: the declarations that the parts of the simulated NVML share.
 *
 *   entry.c   the exported functions, generated from ../../nvml.def
 *   system.c  the host, and how its devices are found
 *   device.c  properties and activity of a device
 *   state.c   reads the state that the simulated driver's processes share
 *
 * It only reads: it creates no file, takes no shared lock, and waits for no process.
 */
#pragma once

#include "../sim.h"

#define NVML_EXPORT __attribute__((visibility("default")))
#define SIM_POWER_IDLE 50000u  /* mW of an idle device */
#define SIM_POWER_MOST 300000u /* mW of a device that is always busy; linear in between */
#include "../../nvml.h"

struct nvmlDevice_st {
    int index;
    int fd; /* of the device's state; -1: not open */
};
extern struct nvmlDevice_st sim_devices[SIM_MAX_DEVICES];

/* A process on a device. */
struct user {
    unsigned pid;
    uint64_t mem; /* bytes that it occupies, including its contexts */
    bool mps;
    unsigned busy; /* percent of the time since the last query in which it had the device; 0 at the first */
};

/* The state of a device at one moment. */
struct sight {
    uint64_t at;          /* ns */
    uint64_t total, used; /* bytes */
    unsigned busy;        /* percent of the last SIM_SIGHT_NS in which any process had work on it */
    unsigned n;           /* number of processes with an ID in this PID namespace */
    const struct user *user; /* valid until the next call */
};
#define SIM_SIGHT_NS 200000000u

nvmlReturn_t sim_read(struct nvmlDevice_st *device, struct sight *s);
/* Returns the number of devices: that of this process's environment, or more if others are in use. */
unsigned sim_count(void);

/* Stores a value in the program's variable; NULL is an error. */
#define STORE_NV(out, value) ((out) ? (*(out) = (value), NVML_SUCCESS) : NVML_ERROR_INVALID_ARGUMENT)

/* The list's column `sim` as in ../sim.h. */
#define SIM_NV_OWN OWN
#define SIM_NV_CALL CALL
#define SIM_NV_DEVICE DEVICE
#define SIM_NV_AS(call) AS, call
#define SIM_NV_ROW(use, name, params, args, ...) SIM_NV_ROW_(use, name, params, args, __VA_ARGS__, )
#define SIM_NV_ROW_(use, name, params, args, word, ...) use##word(name, params, args, __VA_ARGS__)

#define BODY_NV_OWN(name, ...)
#define BODY_NV_AS(name, ...)
#define BODY_NV_CALL(name, params, ...) nvmlReturn_t sim_##name params;
#define BODY_NV_DEVICE(name, params, ...) nvmlReturn_t sim_##name params;
#define NV(name, sim, hook, params, args) SIM_NV_ROW(BODY_NV_, name, params, args, SIM_NV_##sim)
#include "../../nvml.def"
