/* shared.h: the files in which processes share a simulated device.
 *
 * The directory is $GFAAS_SIM_DIR, else /dev/shm/gfaas-sim-<uid>, which is used
 * only if it is the user's own, not writable by others, and no link. In it, for
 * device N of the machine:
 *
 *   gpuN.state          struct shared below, mapped by every process on the device
 *   gpuN.mem.<S>.<X>    the device memory of the process in slot S; X never repeats.
 *                       The name appears when memory is first handed to another
 *                       process; before that the file has none.
 *   gpuN.mem.x<I>       an allocation that has been exported as a descriptor, by its
 *                       id. Whether a descriptor of it is open anywhere, if only on
 *                       its way through a socket, is told by a lock of the open file
 *                       (F_OFD_SETLK) that goes with the last of them.
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

#include "folder.h"
#include "sim.h"

#include <stdatomic.h>

#define SIM_MAGIC 0x47534d31u /* "GSM1" */
#define SIM_LAYOUT 6u
#define SIM_SLOTS 2048
#define SIM_NOBODY SIM_SLOTS /* owns an export that is only an open descriptor */
#define SIM_GROUP SIM_SLOTS /* in an order of turns: all MPS processes together */
#define SIM_LOCK_SETUP (1 << 20)
#define SIM_LOCK_SLOT ((1 << 20) + 1)
#define SIM_SLICE_NS 1000000ull
#define SIM_REAP_NS 10000000ull
#define SIM_FULL 1000000u /* all SMs of the device, in the unit of the shares of MPS processes */
#define SIM_LATE_NS 20000000ull /* of device time: who is that late to say that its work is over is taken off */
#define SIM_EXPORTS 1024
#define SIM_EVENTS 256
#define SIM_POINTS 16          /* kept of the past, at least */
#define SIM_POINT_NS 25000000u /* apart */

/* Who has work on the device and how far each has come, as of epoch. The device
 * time of a process at a later moment follows by arithmetic (sched.c), so nobody
 * has to run at the moment a turn passes on. */
struct sched {
    uint64_t epoch;  /* when this became true */
    uint64_t phase;  /* how much of its slice order[0] had then used */
    uint64_t busy;   /* ns in which anybody had work, ever, as of epoch */
    struct {
        uint64_t at, busy; /* what it was at some moments before, oldest first from `points` on */
    } past[SIM_POINTS];
    uint32_t points; /* kept ever */
    uint32_t n;      /* how many take turns */
    uint32_t sum;    /* of the SMs that the busy MPS processes have, in SIM_FULLths of all */
    uint32_t top;    /* slots from the first on that have had a process; it never gets less */
    uint16_t order[SIM_SLOTS + 1];
    struct {
        uint64_t progress; /* device time had, ever, as of epoch */
        uint32_t share;    /* SMs that it has, in SIM_FULLths of all; 0: takes turns */
        uint32_t busy;
    } slot[SIM_SLOTS];
};

/* Which processes hold a thing: one bit for each slot. */
struct holders {
    uint64_t bit[SIM_SLOTS / 64];
};

/* An allocation that has been handed to other processes. Its bytes count as the
 * owner's; when the owner lets go of it or dies, another holder is made owner, and
 * while there is none and a descriptor is open they count as nobody's. */
struct export {
    uint64_t id; /* 0: entry not in use */
    uint64_t bytes;
    uint32_t owner;
    struct holders holders;
};

/* An event that several processes know: its recordings are numbered. */
struct shared_event {
    uint64_t id; /* 0: entry not in use */
    _Atomic uint32_t recorded; /* the latest recording; */
    uint32_t slot;             /* who made it: the process in this slot, */
    uint64_t serial;           /* as long as the slot has this serial */
    _Atomic uint32_t done;     /* the latest that has come to pass; a futex */
    struct holders holders;
};

/* How far a process has been taken off its devices (checkpoint.c). */
enum {
    SIM_RUNNING,
    SIM_LOCKED,  /* no further call begins; those that have begun may not be over yet */
    SIM_LEAVING, /* it is off some of its devices, maybe not all: who does it may have died */
    SIM_AWAY,    /* off all of them */
    SIM_BROKEN,  /* and will never come back */
};

/* What every call of a process passes. It is in the slot that the process took first. */
struct gate {
    _Atomic uint32_t state;  /* one of these; a futex for the calls that wait */
    _Atomic uint32_t inside; /* calls that have begun and not ended; written under the process's g_lock */
};

struct shared {
    uint32_t magic, layout;
    uint32_t proc_at, proc_size; /* where proc[0] is and how far proc[1] is from it, for other readers */
    uint64_t total;         /* bytes of memory that it has */
    pthread_mutex_t lock;   /* robust; guards what follows, the bells excepted */
    uint64_t serial;
    /* sched[gen & 1] is true; the next one is written into the other and then
     * gen is counted up, so a writer that dies half-way has changed nothing. */
    _Atomic uint32_t gen;
    struct sched sched[2];
    struct proc {
        _Alignas(64) uint64_t serial; /* of its memory file; 0: slot not in use */
        _Atomic uint64_t mem;   /* bytes it occupies, its contexts included */
        _Atomic uint32_t away;  /* 1: a checkpoint has taken it off the device: it occupies nothing, and mem when it is back */
        _Atomic uint32_t home;  /* 1: this is where its gate is */
        _Atomic uint32_t bell;  /* futex: its worker sleeps on it */
        _Atomic uint32_t asleep;
        _Atomic uint64_t until; /* device time of its own at which all work that it has sent is over */
        struct gate gate;       /* in a line of the cache with nothing of another process: each launch writes it */
        _Atomic uint32_t pending; /* streams with work in them */
        _Atomic uint32_t fixed; /* things it has that cannot leave: managed memory, and what others have too */
    } proc[SIM_SLOTS];
    struct export exports[SIM_EXPORTS];
    struct shared_event events[SIM_EVENTS];
    _Atomic uint32_t events_bell; /* futex: rung when a recording of any of them is over */
    _Atomic uint64_t unowned;     /* bytes of the exports that nobody owns */
    _Atomic uint64_t reaped;      /* when the dead were last looked for while others waited */
};
_Static_assert(offsetof(struct shared, proc_at) == 8, "pkg/adapter/simgpu reads the beginning");
_Static_assert(offsetof(struct proc, mem) == 8 && offsetof(struct proc, away) == 16, "and these of each process");

/* The process that has a slot: 0 if there is none, -1 if it has no number here. fd is
 * of the state; the answer may be this process. */
int shared_holder(int fd, unsigned slot);

void gate_move(struct gate *to); /* the process's calls pass that one from now on; NULL: none that others know of */
void gate_sleep(struct gate *g, uint32_t seen); /* while that is its state, for a second at most */
void gate_wake(struct gate *g);
int shared_new_file(void); /* one without a name; -1 when there can be none */
bool shared_lock(struct device *d);
void shared_unlock(struct device *d);
/* Writes a new state into the other of the two: it is in force when gen is counted up. */
struct sched *sched_next(struct shared *sh);
void sched_remove(struct sched *s, unsigned slot, uint64_t at);
uint64_t sched_progress_of(const struct sched *s, unsigned slot, uint64_t at); /* as sched_progress */
void sched_reset_slot(struct sched *s, unsigned slot, uint32_t share);

/* exports.c. To hold: this process has the allocation. Its bytes are counted
 * already or, when nobody has it, counted now if there is room. */
uint64_t export_new_id(const struct device *d);
bool export_hold(struct device *d, uint64_t id, uint64_t bytes, bool counted);
void export_drop(struct device *d, uint64_t id);
void holders_forget(struct device *d, unsigned slot); /* who was there is gone; under the lock */
bool export_publish(const struct device *d, uint64_t id, int fd); /* before the first descriptor is handed out */
void exports_find(struct device *d); /* on a device that nobody was on */
void exports_reap(struct device *d); /* those nobody has any more; under the lock */
bool shared_link(int fd, const char *name); /* gives a nameless file that name */
/* Calls fn with the name of each memory file of the device, and of what its owner calls it. */
void shared_each_memory(int index, void (*fn)(struct device *d, const char *name, const char *rest), struct device *d);
void event_leave(struct shared_event *e, unsigned slot); /* the same */
/* Slots from the first on: those behind have no process, and had none. */
static inline unsigned shared_top(const struct shared *sh) { return sh->sched[atomic_load(&sh->gen) & 1].top; }
bool shared_alive(const struct device *d, unsigned slot);
void holders_add(struct holders *h, unsigned slot);

#endif
