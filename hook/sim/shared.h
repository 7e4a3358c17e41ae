/* shared.h: the files in which processes share a simulated device.
 *
 * The directory is $GFAAS_SIM_DIR, else /dev/shm/gfaas-sim-<uid>. In it, for
 * device N of the machine:
 *
 *   gpuN.state          struct shared below, mapped by every process on the device
 *   gpuN.mem.<S>.<X>    the device memory of the process in slot S; X never repeats.
 *                       The name appears when memory is first handed to another
 *                       process; before that the file has none.
 *
 * Whether a process lives is told by record locks (fcntl F_SETLK) on gpuN.state,
 * never by its pid, so that processes in containers that share nothing but this
 * directory count each other: byte SIM_LOCK_SLOT+S is write-locked by the process
 * in slot S for as long as it lives, byte SIM_LOCK_SETUP by whoever is joining or
 * leaving. The kernel drops both at death, however it comes. Nothing else is
 * needed from the dead: their memory is counted and their place on the device
 * held only while their byte is locked, and the next process that looks clears
 * what they left.
 *
 * Cleaning up from outside: open gpuN.state and try to write-lock the whole file
 * (start 0, length 0) without waiting. If that succeeds nobody is on the device:
 * remove every file called gpuN.*, then the directory if it is empty. Whoever
 * has the directory mounted into a container keeps a file of its own in it, so
 * that it is not removed under the container; with GFAAS_SIM_DIR set the driver
 * itself never removes the directory.
 */
#ifndef GFAAS_SIM_SHARED_H
#define GFAAS_SIM_SHARED_H

#include "sim.h"

#include <stdatomic.h>

#define SIM_MAGIC 0x47534d31u /* "GSM1" */
#define SIM_LAYOUT 1u
#define SIM_SLOTS 128
#define SIM_GROUP SIM_SLOTS /* in an order of turns: all MPS processes together */
#define SIM_LOCK_SETUP (1 << 20)
#define SIM_LOCK_SLOT ((1 << 20) + 1)
#define SIM_SLICE_NS 1000000ull
#define SIM_REAP_NS 10000000ull

/* Who has work on the device and how far each has come, as of epoch. The device
 * time of a process at a later moment follows by arithmetic (sched.c), so nobody
 * has to run at the moment a turn passes on. */
struct sched {
    uint64_t epoch;  /* when this became true */
    uint64_t phase;  /* how much of its slice order[0] had then used */
    uint32_t n;      /* how many take turns */
    uint32_t sum;    /* thousandths of a percent of the busy MPS processes */
    uint8_t order[SIM_SLOTS + 1];
    struct {
        uint64_t progress; /* device time had, ever, as of epoch */
        uint32_t pct;      /* 0: takes turns */
        uint32_t busy;
    } slot[SIM_SLOTS];
};

struct shared {
    uint32_t magic, layout;
    pthread_mutex_t lock;   /* robust; guards what follows, the bells excepted */
    uint64_t serial;
    /* sched[gen & 1] is true; the next one is written into the other and then
     * gen is counted up, so a writer that dies half-way has changed nothing. */
    _Atomic uint32_t gen;
    struct sched sched[2];
    struct {
        uint64_t serial;        /* of its memory file; 0: slot not in use */
        _Atomic uint64_t mem;   /* bytes allocated; written by the process itself */
        _Atomic uint32_t bell;  /* futex: its worker sleeps on it */
        _Atomic uint32_t asleep;
    } proc[SIM_SLOTS];
};

void shared_file(char *buf, size_t len, int index, const char *rest); /* the path of gpuN.<rest> */
int shared_move_up(int fd); /* away from the low numbers; takes fd over */
CUresult arena_map(struct device *d);
void arena_remove(int index, unsigned slot, uint64_t serial);
void arena_remove_all(int index);
bool shared_lock(struct device *d);
void shared_unlock(struct device *d);
void sched_remove(struct sched *s, unsigned slot, uint64_t at);
void sched_reset_slot(struct sched *s, unsigned slot, uint32_t pct);

#endif
