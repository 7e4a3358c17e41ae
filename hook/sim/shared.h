/* shared.h: the files in which processes share a simulated device.
 *
 * The folder is $GFAAS_SIM_DIR, or /dev/shm/gfaas-sim-<uid>, which is used only if it
 * belongs to the user, other users cannot write to it, and it is no link. For device N
 * of the host it contains:
 *
 *   gpuN.state          struct shared below, mapped by every process on the device
 *   gpuN.mem.<S>.<X>    the device memory of the process in slot S; X never repeats.
 *                       The file gets this name when memory is first exported to
 *                       another process; before that it has none.
 *   gpuN.mem.x<I>       an allocation that was exported as a descriptor, by its id. A
 *                       lock of the open file (F_OFD_SETLK) exists as long as any
 *                       descriptor of it is open, even in transit through a socket.
 *
 * Record locks (fcntl F_SETLK) on gpuN.state, and not process IDs, tell whether a
 * process lives, so processes in containers that share only this folder count each
 * other. The process in slot S holds a write lock on byte SIM_LOCK_SLOT+S while it
 * lives; a process that joins or leaves holds one on byte SIM_LOCK_SETUP. The kernel
 * releases both locks at the process's end, of whatever kind. Nothing else is needed
 * from a dead process: its memory is counted, and its slot occupied, only while its
 * byte is locked, and the next process that checks clears the rest.
 *
 * Cleaning up from outside: open gpuN.state and try to get a write lock on the whole
 * file (start 0, length 0) without waiting. If that succeeds, no process is on the
 * device: remove every file gpuN.*, then the folder if it is empty. A program that
 * mounts the folder into a container keeps a file of its own in it, so that the folder
 * is not removed under the container. If GFAAS_SIM_DIR is set, the driver itself never
 * removes the folder.
 */
#pragma once

#include "folder.h"
#include "sim.h"

#include <stdatomic.h>

#define SIM_MAGIC 0x47534d31u /* "GSM1" */
#define SIM_LAYOUT 6u
#define SIM_SLOTS 2048
#define SIM_NOBODY SIM_SLOTS /* the owner of an export that exists only as an open descriptor */
#define SIM_GROUP SIM_SLOTS /* in the order of turns: all MPS processes together */
#define SIM_LOCK_SETUP (1 << 20)
#define SIM_LOCK_SLOT ((1 << 20) + 1)
#define SIM_TIMESLICE_NS 1000000ull /* length of a turn of a process on a device */
#define SIM_REAP_NS 10000000ull
#define SIM_FULL 1000000u /* all SMs of the device, in the unit of MPS processes' shares */
#define SIM_LATE_NS 20000000ull /* device time by which a process may be late to report the end of its work */
#define SIM_EXPORTS 1024
#define SIM_EVENTS 256
#define SIM_POINTS 16          /* number of past points that are stored */
#define SIM_POINT_NS 25000000u /* time between two of them */

/* The processes that have work on the device, and the device time of each, as of epoch. The device time
 * at a later time follows by arithmetic (sched.c), so no process has to run at the time when a turn
 * ends. */
struct sched {
    uint64_t epoch;  /* time at which this state began */
    uint64_t phase;  /* part of its time slice that order[0] had used at the epoch */
    uint64_t busy;   /* ns in which any process had work, in total, as of epoch */
    struct {
        uint64_t at, busy; /* `busy` at past moments; points % SIM_POINTS is the oldest */
    } past[SIM_POINTS];
    uint32_t points; /* number of points ever stored */
    uint32_t n;      /* number of entities that take turns */
    uint32_t sum;    /* SMs of the busy MPS processes, in SIM_FULLths of all */
    uint32_t top;    /* number of leading slots that have ever had a process; never decreases */
    uint16_t order[SIM_SLOTS + 1]; /* the entities in the order of turns: slots of processes, and SIM_GROUP */
    struct {
        uint64_t progress; /* device time in total, as of epoch */
        uint32_t share;    /* SMs of an MPS process, in SIM_FULLths of all; 0: the process takes turns */
        uint32_t busy;
    } slot[SIM_SLOTS];
};

/* The processes that hold an object: one bit for each slot. */
struct holders {
    uint64_t bit[SIM_SLOTS / 64];
};

/* An allocation that was exported to other processes. Its bytes count as the owner's. When the owner frees
 * it or ends, another holder becomes the owner. While there is no holder and a descriptor is open, the
 * bytes count as unowned. */
struct export {
    uint64_t id; /* 0: unused entry */
    uint64_t bytes;
    uint32_t owner;
    struct holders holders;
};

/* An event that several processes know. Its recordings are numbered. */
struct shared_event {
    uint64_t id; /* 0: unused entry */
    _Atomic uint32_t recorded; /* number of the latest recording */
    uint32_t slot;             /* slot of the process that made it */
    uint64_t serial;           /* serial of that process; if the slot has another one, the process has ended */
    _Atomic uint32_t done;     /* number of the latest completed recording; a futex */
    struct holders holders;
};

/* The progress of moving a process off its devices (checkpoint.c). */
enum {
    SIM_RUNNING,
    SIM_LOCKED,  /* no further call begins; earlier calls may still run */
    SIM_LEAVING, /* it has left some of its devices; the process that moves it may have died */
    SIM_AWAY,    /* it has left all of them */
    SIM_BROKEN,  /* and cannot come back */
};

/* The gate that every call of a process passes. It is in the slot that the process got first. */
struct gate {
    _Atomic uint32_t state;  /* one of the values above; a futex for waiting calls */
    _Atomic uint32_t inside; /* calls that have begun and not ended; written under the process's g_lock */
};

struct shared {
    uint32_t magic, layout;
    uint32_t proc_at, proc_size; /* offset of proc[0] and the distance to proc[1], for other readers */
    uint64_t total;         /* bytes of the device's memory */
    pthread_mutex_t lock;   /* robust; guards the following fields, except the bells */
    uint64_t serial;
    /* sched[gen & 1] is valid. A writer fills the other one and then increments gen, so a writer that
     * dies in between has changed nothing. */
    _Atomic uint32_t gen;
    struct sched sched[2];
    struct proc {
        _Alignas(64) uint64_t serial; /* of its memory file; 0: unused slot */
        _Atomic uint64_t mem;   /* bytes that it occupies, including its contexts */
        _Atomic uint32_t away;  /* 1: a checkpoint has moved it off the device; it occupies nothing now, and `mem` when it is back */
        _Atomic uint32_t home;  /* 1: its gate is in this slot */
        _Atomic uint32_t bell;  /* futex: its worker sleeps on it */
        _Atomic uint32_t asleep;
        _Atomic uint64_t until; /* its device time at which all work that it has sent will have finished */
        struct gate gate;       /* in a cache line that no other process writes, since each launch writes it */
        _Atomic uint32_t pending; /* streams with work */
        _Atomic uint32_t fixed; /* its objects that cannot leave: managed memory, and exported memory */
    } proc[SIM_SLOTS];
    struct export exports[SIM_EXPORTS];
    struct shared_event events[SIM_EVENTS];
    _Atomic uint32_t events_bell; /* futex: rung when a recording of any event completes */
    _Atomic uint64_t unowned;     /* bytes of exports without an owner */
    _Atomic uint64_t reaped;      /* when a waiting process last looked for dead ones */
};
_Static_assert(offsetof(struct shared, proc_at) == 8, "pkg/adapter/simgpu reads the beginning");
_Static_assert(offsetof(struct proc, mem) == 8 && offsetof(struct proc, away) == 16, "and these of each process");

/* Returns the process ID of the process in a slot: 0 if there is none, -1 if it has no ID in this PID
 * namespace. fd is the open state file. The result may be the calling process. */
int shared_holder(int fd, unsigned slot);

void gate_move(struct gate *to); /* sets the gate that the process's calls pass; NULL: a private one */
void gate_sleep(struct gate *g, uint32_t seen); /* while that is its state, for at most a second */
void gate_wake(struct gate *g);
int shared_new_file(void); /* creates a file without a name; -1 on failure */
bool shared_lock(struct device *d);
void shared_unlock(struct device *d);
/* Copies the state into the other of the two, for changes; it becomes valid when gen is incremented. */
struct sched *sched_next(struct shared *sh);
void sched_remove(struct sched *s, unsigned slot, uint64_t at);
uint64_t sched_progress_of(const struct sched *s, unsigned slot, uint64_t at); /* like sched_progress */
void sched_reset_slot(struct sched *s, unsigned slot, uint32_t share);

/* exports.c. export_hold notes that this process holds the allocation. `counted`: its bytes are counted;
 * otherwise they are counted now if no process holds it, provided that there is room. */
uint64_t export_new_id(const struct device *d);
bool export_hold(struct device *d, uint64_t id, uint64_t bytes, bool counted);
void export_drop(struct device *d, uint64_t id);
void holders_forget(struct device *d, unsigned slot); /* the slot's process has ended; under the lock */
bool export_publish(const struct device *d, uint64_t id, int fd); /* before the first descriptor is passed on */
void exports_find(struct device *d); /* on a device that had no process */
void exports_reap(struct device *d); /* removes exports without a holder; under the lock */
bool shared_link(int fd, const char *name); /* gives a file without a name that name */
/* Calls fn with the name of each memory file of the device, and with the part that its owner chose. */
void shared_each_memory(int index, void (*fn)(struct device *d, const char *name, const char *rest), struct device *d);
void event_leave(struct shared_event *e, unsigned slot); /* like holders_forget */
/* Returns the number of leading slots that have, or had, a process. */
static inline unsigned shared_top(const struct shared *sh) { return sh->sched[atomic_load(&sh->gen) & 1].top; }
bool shared_alive(const struct device *d, unsigned slot);
void holders_add(struct holders *h, unsigned slot);
