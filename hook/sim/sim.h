/* sim.h: the declarations that the parts of the simulated driver share.
 *
 *   entry.c         the exported functions, generated from ../symbols.def
 *   procaddr.c      cuGetProcAddress
 *   init.c          the process: its start, its end, its lock
 *   config.c        the simulated host's devices, from the environment; its clock
 *   handle.c        which pointers are live handles; arrays that grow
 *   thread.c        the state of a thread of the program
 *   shared.c        the files in which processes share a device; see shared.h
 *   folder.c        the folder of these files
 *   checkpoint.c    moves another process off its devices, and back
 *   sched.c         how processes share a device's time
 *   exports.c       allocations that several processes hold
 *   device.c        properties of a device
 *   context.c       contexts, and the current one
 *   module.c        modules; func.c: attributes of their kernels
 *   library.c       libraries and kernels without a context
 *   ptx.c           parses the PTX of modules
 *   ops.c           the computations of kernels
 *   launch.c        kernel launches
 *   stream.c        streams; event.c, ipcevent.c: events, also between processes
 *   engine.c        the work in streams, in simulated time
 *   threads.c       the driver's own threads; wait.c: waiting threads of the program
 *   copy.c          copies and fills; transfer.c: as work in streams
 *   range.c         the table of addresses; pointer.c: queries about addresses
 *   memory.c        device memory; hostmem.c, managed.c, array.c, ipc.c: other kinds
 *   pool.c          stream-ordered memory; poolapi.c: its calls
 *   vmm.c           virtual memory management
 *   graph.c         graphs; graph_work.c: the work of their nodes
 *   graph_exec.c    executable graphs; graph_run.c: their launches
 *   graph_memory.c  allocation nodes; graph_object.c: user objects
 *   capture.c       stream capture
 *
 * One lock, g_lock, guards all state of the process. User code (callbacks, copies
 * from user memory) never runs under it. Times are nanoseconds of CLOCK_MONOTONIC,
 * which all processes of a host share.
 */
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define CUDA_EXACT_NAMES
#define CUDA_EXPORT __attribute__((visibility("default")))
#include "../cuda.h"
#include "compat.h"

#include <pthread.h>
#include <stdbool.h>

#define SIM_DRIVER_VERSION 13020
#define SIM_DEVICE_NAME "gfaas simulated GPU"
#define SIM_MAX_DEVICES 16
#define SIM_PAGE 4096u
#define SIM_QUEUE_DEPTH 1024
#define SIM_LINK_BYTES_PER_NS 16 /* between a device and the host: the rate of PCIe 3.0 x16 */

static inline size_t page_up(size_t n) /* rounds up to whole pages; 0 on overflow */
{
    return (n + SIM_PAGE - 1) & ~(size_t)(SIM_PAGE - 1);
}

/* Adds an element to a list whose elements have these two links; prev points to the pointer to the element. */
#define LIST_ADD(list, element, next, prev)                   \
    do {                                                      \
        (element)->next = *(list);                            \
        (element)->prev = (list);                             \
        if ((element)->next)                                  \
            (element)->next->prev = &(element)->next;         \
        *(list) = (element);                                  \
    } while (0)
#define LIST_REMOVE(element, next, prev)                      \
    do {                                                      \
        *(element)->prev = (element)->next;                   \
        if ((element)->next)                                  \
            (element)->next->prev = (element)->prev;          \
    } while (0)
/* Removes an element from a list with one link, if it is there. */
#define LIST_UNLINK(list, element, next)                      \
    do {                                                      \
        __typeof__(&*(list)) at_ = (list);                    \
        while (*at_ && *at_ != (element))                     \
            at_ = &(*at_)->next;                              \
        if (*at_)                                             \
            *at_ = (element)->next;                           \
    } while (0)

/* Enlarges an allocated array to at least `need` elements of that size. `array` points to the pointer to it. Returns
 * false, and changes nothing, if out of memory. */
bool enlarge(void *array, size_t *cap, size_t need, size_t size);

/* ---- configuration (config.c) ---- */

struct config {
    unsigned sms;       /* SMs of the whole device */
    uint64_t mem;       /* bytes of one device */
    uint64_t context;   /* bytes that a process with contexts uses in addition to its allocations */
    unsigned count;     /* devices of the host */
    unsigned pct;       /* SM share in thousandths of a percent; 0: without MPS, processes take turns */
    unsigned granted;   /* SMs of this process */
    bool poison;        /* new device memory is not zeroed */
    unsigned visible;   /* number of devices that this process sees; visible_index has their indexes on the host */
    int visible_index[SIM_MAX_DEVICES];
    char dir[3072];     /* the folder of shared files, see shared.h */
    bool default_dir;   /* dir is the default folder, which the last process removes */
};
extern struct config g_config;
bool config_load(void);
#define SIM_UUID_BYTES 48
void sim_uuid(char uuid[SIM_UUID_BYTES], unsigned index);
extern const char sim_library[]; /* the name of this simulated library, driver or NVML */
void sim_say_simulated(void);    /* prints once that the GPU is simulated */
uint64_t now_ns(void);
void sim_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- process state (init.c) ---- */

extern pthread_mutex_t g_lock;
struct ctx;
CUresult sim_begin(struct ctx **c); /* locks; on error the lock is not held; c may be NULL */
CUresult sim_end(CUresult r);       /* unlocks and returns r */
CUresult sim_ready(void);           /* the error with which all calls are refused, if there is one; takes no lock */
CUresult ctx_usable(struct ctx **c); /* sets *c to the calling thread's context, or returns an error */
CUresult ctx_release(void); /* whether objects of any context may be freed; the context need not be current */
extern __thread bool tls_in_callback;
extern __thread bool tls_per_thread; /* inside a _ptsz or _ptds call */

/* ---- handles (handle.c) ---- */

enum handle_kind {
    H_NONE, H_CTX, H_STREAM, H_EVENT, H_MODULE, H_FUNC, H_GRAPH, H_NODE, H_EXEC, H_OBJECT,
    H_POOL, H_ALLOC, H_ARRAY, H_MIPMAP, H_LINK, H_LIBRARY, H_KERNEL, H_TEXTURE, H_SURFACE,
    H_SEMAPHORE,
};
bool handle_add(const void *p, enum handle_kind kind);
/* Allocates a zeroed object and makes it a live handle; NULL: out of memory. */
void *handle_new(size_t size, enum handle_kind kind);
void handle_del(const void *p);
bool handle_is(const void *p, enum handle_kind kind);
/* Returns the object of a program's handle, or NULL if it is not a live handle of that kind. */
static inline void *handle_of(const void *p, enum handle_kind kind)
{
    return handle_is(p, kind) ? (void *)(uintptr_t)p : NULL;
}

/* ---- the state that processes share (shared.c, sched.c) ---- */

struct shared;
struct sched;

/* What this process last knew about its turn on a device. */
struct sched_view {
    uint32_t gen;
    bool valid, group, busy;
    unsigned n, k;       /* number of entities that take turns, and this process's position */
    unsigned others;     /* not 0: other processes are busy */
    uint64_t epoch, phase, sum, progress;
};

struct item;
struct stream;

struct device {
    int index; /* on the host */
    bool joined, left, published, worker_started;
    int fd, slot;
    struct shared *sh;
    struct sched_view view;
    uint64_t next_reap;

    int arena_fd;
    bool arena_named;
    uint64_t arena_serial, arena_size;
    size_t arena_open; /* bytes of the view that can be read and written */
    char *arena_view;          /* the arena as mapped here */
    CUdeviceptr arena_base;    /* the arena's address for programs */

    CUdeviceptr arena_hint;    /* where the next allocation is tried first */

    struct stream *busy;       /* streams with pending items */
    unsigned n_busy;           /* number of these streams */
    struct run *runs;          /* started graph launches, see graph.h */
    struct item *run;          /* the kernel that has the SMs */
    uint64_t run_end;          /* its end, in this process's device time */
    uint64_t free_at;          /* when the SMs became free */
    uint64_t free_progress;    /* the device time then; valid while published */
    uint64_t pend_ns;          /* device time of all queued kernels, without the running one */
    unsigned n_prompt;         /* queued items that a thread of the driver must handle in time */
    unsigned n_words;          /* queued items that wait for a word of memory */
    struct ctx *primary;
    unsigned primary_refs, primary_flags;
    unsigned contexts; /* contexts of this process on the device */
    int ordinal;       /* in this process; -1: not visible */

    struct pool *pools;        /* all pools */
    struct pool *default_pool;
    struct pool *current_pool; /* the pool of cuMemAllocAsync */
    struct graph_memory {
        uint64_t used, used_high, reserved, reserved_high;
    } graph_memory;            /* see graph_memory.c */
};
extern struct device g_device[SIM_MAX_DEVICES];
struct device *device_of(int ordinal); /* NULL: not visible to the process */
CUresult device_joined(int ordinal, struct device **d); /* and joins the device */
struct device *device_at(int index); /* by its index on the host; NULL: not visible to the process */

CUresult shared_join(struct device *d);
void shared_leave(struct device *d);
bool shared_mem_reserve(struct device *d, uint64_t bytes);
void shared_mem_release(struct device *d, uint64_t bytes);
void shared_fixed(struct device *d, int more); /* adds to the count of objects that cannot leave the device */
void shared_pending(struct device *d, unsigned streams); /* sets the number of streams with work */
uint64_t shared_mem_used(struct device *d);
void shared_reap(struct device *d, uint64_t now);
void shared_reap_due(struct device *d, uint64_t now); /* unless another process has done it recently */
uint32_t shared_bell(struct device *d);
void shared_bell_wait(struct device *d, uint32_t seen, uint64_t until);
void shared_bell_ring(struct device *d);
int shared_open_memory(int index, unsigned slot, uint64_t serial);
bool shared_name_memory(struct device *d); /* so that other processes can open it */
bool shared_open_arena(struct device *d, size_t end); /* makes the view usable up to `end` */

void sched_publish(struct device *d, bool busy, uint64_t at, uint64_t now);
uint64_t sched_progress(struct device *d, uint64_t at);
uint64_t sched_when(struct device *d, uint64_t progress);
bool sched_contended(struct device *d);
bool sched_removed(struct device *d); /* another process has removed this one from the turns, as stopped */
/* Publishes the device time at which this process's work will have finished. */
void sched_set_until(struct device *d, uint64_t until);

/* ---- memory that another process removes (lost.c) ---- */

extern _Atomic bool g_lost;
/* lost_watch makes an access to missing pages of that mapping of a file an error instead of the end of
 * the process; lost_forget ends that. */
void lost_watch(void *base, size_t size);
void lost_forget(void *base);
/* Leaves the process without a device and returns the error. The caller holds g_lock. */
CUresult lost_notice(void);

/* ---- contexts (context.c) ---- */

struct ctx {
    struct ctx *next;
    struct device *dev;
    int ordinal;
    unsigned flags;
    bool primary, created, destroyed;
    CUresult error;  /* sticky */
    uint64_t id, seq;
    size_t limit[CU_LIMIT_MAX];
    CUfunc_cache cache;
    CUsharedconfig banks;
    unsigned api_version, attach;
    struct stream *legacy, *streams;
    struct module *modules;
    struct event *events;
};
extern struct ctx *g_contexts; /* all contexts ever created; a destroyed one stays in the list */
void ctx_fault(CUresult why);  /* sets a sticky error */

/* thread.c: the calling thread's contexts, and its own default stream (handle 2) */
struct ctx *ctx_current(void);
bool thread_push(struct ctx *c);
struct ctx *thread_pop(void);
struct stream *thread_stream(struct ctx *c);

/* ---- memory (range.c, memory.c, hostmem.c, managed.c, ipc.c; see also pool.h, vmm.h) ---- */

enum range_kind {
    R_DEVICE,     /* cuMemAlloc */
    R_IPC,        /* memory of another process, by handle */
    R_HOST,       /* pinned */
    R_REGISTERED, /* the program's own memory, pinned */
    R_POOL,       /* from a pool */
    R_MANAGED,
    R_VMM,        /* a mapping of a cuMemCreate allocation */
    R_ARRAY,
    R_GRAPH,      /* from an allocation node */
    R_HIDDEN,     /* part of the arena whose address programs cannot use */
};
struct range {
    CUdeviceptr base;
    size_t size;     /* as requested */
    size_t span;     /* bytes occupied */
    enum range_kind kind;
    struct device *dev; /* NULL: host memory */
    struct ctx *ctx;    /* NULL: belongs to no context */
    char *view;         /* the bytes, as mapped here */
    unsigned flags, refs; /* flags: of host or managed memory; R_VMM: the access rights; R_IPC: from a pool;
                             R_DEVICE: exported */
    uint64_t id, serial, offset;
    struct chunk *chunk;        /* of a pool */
    struct record *freed;       /* of a pool: completes when the stream reaches the free */
    struct stretch *stretches;  /* of managed memory */
    struct alloc *alloc;        /* R_VMM: the mapped allocation */
    struct mem *mem;            /* R_GRAPH: the node's memory, also while it is not allocated */
};
struct range *range_find(CUdeviceptr p);
struct range *range_raw(CUdeviceptr p); /* finds hidden ranges too */
struct range *range_add(const struct range *r); /* NULL: out of memory */
void range_del(struct range *r);
size_t range_count(void);
struct range *range_at(size_t i);
size_t range_after(CUdeviceptr p); /* index of the first range that begins after p */
bool range_overlaps(CUdeviceptr base, size_t size);
uint64_t range_new_id(void);
bool range_on_device(const struct range *r);
/* Returns the bytes from p, in r's view, that one operation may read or, with `write`, write. */
size_t range_reach(const struct range *r, CUdeviceptr p, bool write);
/* Reports whether the address belongs to the simulated device, in use or not. */
bool range_reserved(CUdeviceptr p);
/* Returns the bytes [p, p+n) for a kernel on d, or NULL if it may not access all of them. */
void *range_translate(struct device *d, CUdeviceptr p, size_t n, bool write);

/* Checks the type and the location of memory to allocate: only pinned memory of devices is simulated. */
CUresult memory_check(CUmemAllocationType type, const CUmemLocation *l);
CUresult memory_alloc(struct ctx *c, CUdeviceptr *out, size_t size);
/* Allocates a piece of the arena; *r has the other properties of the range. memory_place counts the
 * bytes, memory_hole takes addresses only. */
CUresult memory_hole(struct device *d, size_t span, struct range *r, struct range **out);
CUresult memory_place(struct device *d, size_t span, struct range *r, struct range **out);
CUresult memory_reserve(struct device *d, size_t bytes); /* counts bytes only */
void memory_poison(void *view, size_t n); /* fills new memory, if configured */
void memory_release(struct range *r); /* undoes memory_place, of a range that no work uses */
void memory_free_ctx(struct ctx *c);
void memory_wait(struct device *d);   /* for all work on the device */
void hostmem_release(struct range *r);
/* Moves [p, p+n) of managed memory to a device or to the host, as far as there is room. */
void managed_place(struct range *r, CUdeviceptr p, size_t n, int where);
/* Frees up to that many bytes on a device by moving managed memory out; false if it cannot. */
bool managed_evict(struct device *d, size_t bytes);
void managed_release(struct range *r);
CUmemLocation managed_location(CUdevice dev); /* of a device number, as the calls before CUDA 13 pass it */
/* Maps bytes of the process in that slot and adds them as a range. On entry, *g has the process's serial, the offset
 * and the size of the bytes in its memory file, and the span of the range. */
CUresult ipc_open(struct range *g, unsigned slot, CUdeviceptr *out);
void ipc_release(struct range *r);

/* ---- modules (ptx.c, module.c) ---- */

enum { OP_NONE }; /* a kernel's operation is an index of the table in ops.c; OP_NONE: none */
#define SIM_OP_BYTES 64
#define SIM_MAX_PARAMS 256
#define SIM_PARAM_BYTES 4096

struct func {
    struct func *next;
    struct module *module;
    char *name;
    uint64_t block_ns;
    unsigned op;
    unsigned nparams, bytes;
    unsigned short offset[SIM_MAX_PARAMS], size[SIM_MAX_PARAMS];
    struct func_settings {
        int max_dynamic, carveout, cache;
    } set; /* by the program */
    int block[3];
    unsigned shared, param_size;
    unsigned char *params; /* of the legacy interface */
};
struct address { /* the address of a variable, as the value of another variable or of a part of it */
    struct address *next;
    size_t at;    /* offset in that variable, in bytes */
    char *symbol; /* a function's address is unknown and stays 0 */
    uint64_t plus;
};
struct global {
    struct global *next;
    char *name;
    size_t size;
    unsigned char *init; /* size bytes, or NULL for zeros */
    struct address *addresses; /* addresses in the value */
    CUdeviceptr ptr;
};
struct module {
    struct module *next;
    struct ctx *ctx;
    struct func *funcs;
    struct global *globals;
    bool machine_code; /* loaded from a cubin: its kernels cannot run */
    struct library *library; /* the library that loaded and unloads it; NULL: loaded by the program */
};
/* Fills m from PTX text; on failure writes the reason to msg. */
CUresult ptx_parse(struct module *m, const char *text, char *msg, size_t len);
struct func *module_func(const struct module *m, const char *name); /* NULL: none has that name */
unsigned ops_find(const char *name);
bool ops_fits(unsigned op, const struct func *f);
CUresult ops_run(unsigned op, const unsigned char *params, const struct func *layout);
void module_free(struct module *m);
int func_blocks_per_sm(int threads, size_t dynamic);

/* ---- streams, events and the work in them (engine.c, wait.c, threads.c) ---- */

struct record { /* one recording of an event */
    unsigned refs;
    bool done;
    bool watched;          /* a stream of another device waits for it */
    bool inner;            /* made by a node of a graph, inside that item */
    bool foreign;          /* made by another process, in none of this process's streams */
    unsigned shared;       /* of an event that other processes know: its entry, from 1 */
    uint32_t number;       /* the number of the recording of that event */
    struct device *dev;    /* the device of that event */
    uint64_t at;
    struct stream *stream; /* while not done: its stream */
    uint64_t index;        /* and the item's number in that stream */
};
struct record *record_new(void);
void record_unref(struct record *r);
void record_finish(struct record *r, struct device *d, uint64_t at);
void record_watch(struct record *r, const struct device *waiting);

struct event {
    struct event *next, **prev;
    struct ctx *ctx;
    unsigned flags;
    struct record *last;
    struct captured_event *captured; /* its last recording in a capturing stream */
    unsigned shared; /* if other processes know it: its entry, from 1; see ipcevent.h */
};
struct event *event_new(struct ctx *c, unsigned flags);
void event_free(struct event *e);

enum item_kind { I_KERNEL, I_COPY, I_SET, I_RECORD, I_WAIT, I_HOST, I_CALLBACK, I_GRAPH, I_DESTROY, I_TASK, I_UNTIL };

struct copy { /* a copy of a box of bytes; a fill if src is NULL */
    char *dst;
    const char *src;
    size_t dst_pitch, src_pitch, dst_slice, src_slice; /* bytes between rows, and between planes */
    size_t width, height, depth;
    uint32_t value;  /* of a fill */
    unsigned elem;   /* bytes of the value: 1, 2 or 4 */
    void *staged;    /* a copy of the source, freed after the copy; or NULL */
    bool fault;      /* the copy writes to read-only memory */
};

struct item {
    struct item *next, *xnext;
    struct stream *stream;
    enum item_kind kind;
    bool sent;       /* a thread of the driver has it */
    bool computing;  /* a kernel whose result is being computed */
    int priority;
    struct run *run; /* the graph launch of which this is step number `step` */
    uint32_t step;
    uint64_t seq, enqueued, ns;
    uint64_t began, computed_at; /* of a kernel with a result */
    union {
        struct {
            unsigned op;
            const struct func *layout;
            unsigned char params[SIM_OP_BYTES];
        } kernel;
        struct copy copy;
        struct word { /* a word of memory that is waited for, see word.c */
            const void *at;
            uint64_t value;
            unsigned bytes, flags; /* bytes: 4 or 8 */
        } word;
        struct record *record;
        struct task { /* a task of the driver, run under g_lock */
            void (*run)(const struct task *t);
            uint64_t (*takes)(const struct task *t); /* ns from the start of its turn until it runs; NULL: none */
            CUdeviceptr addr; /* of the memory that it concerns */
            union {
                size_t bytes;
                uint64_t value; /* to write there */
            };
            int where;
        } task;
        struct {
            CUhostFn fn;
            CUstreamCallback callback;
            void *data;
        } host;
        struct run *graph;
    } u;
};

enum stream_kind { S_LEGACY, S_THREAD, S_CREATED };
struct stream {
    struct stream *next, **prev;            /* of the context */
    struct stream *busy_next, **busy_prev;  /* of the device, while work is pending */
    struct ctx *ctx;
    enum stream_kind kind;
    const void *owner; /* the thread of an S_THREAD stream */
    unsigned flags;
    int priority;
    uint64_t id;
    struct capture *capture; /* see capture.h */
    struct item *head, *tail;
    uint64_t enq, done; /* number of items ever added and ever finished */
    uint64_t done_at;   /* when the last one finished */
    uint64_t wake_at;   /* the number of finished items for which a sleeping thread waits */
    unsigned waiters;
    bool dying;
    struct stream *captured_next; /* next stream of the capture */
    struct deps *deps;
};
struct stream *stream_new(struct ctx *c, enum stream_kind kind, unsigned flags, int priority);
void stream_drop(struct stream *s);
/* Return the stream of a handle in the current context, or NULL with *r set. stream_get is for use of the
 * stream; stream_find is enough for a query. */
struct stream *stream_find(struct ctx *c, CUstream h, CUresult *r);
struct stream *stream_get(struct ctx *c, CUstream h, CUresult *r);
bool stream_blocking(const struct stream *s);

struct item *item_new(enum item_kind kind);
void item_free(struct item *it);
/* Adds an item to the end of a stream. It owns the item, also if it fails. */
CUresult engine_push(struct stream *s, struct item *it);
void engine_advance(struct device *d, uint64_t now);
void engine_finish(struct item *it, uint64_t at);
/* Returns when an event is due on d: when this much more device time has passed after the running kernel,
 * or at the kernel's end if there may be something to do then. 0: unknown. */
uint64_t engine_deadline(struct device *d, uint64_t more, uint64_t now);

/* word.c. Reports whether the word has the expected value. */
bool word_matches(const struct word *w);
CUresult word_wait(struct stream *s, const struct word *w); /* makes the stream wait until then */
void word_write_64(const struct task *t);                   /* writes t->value to t->addr */

/* wait.c: waits; g_lock is held except during the sleep. */
extern pthread_cond_t g_cond;
extern unsigned g_waiters;
void wait_stream(struct stream *s, uint64_t until); /* until s has finished that many items */
void wait_room(struct stream *s);
void wait_context(struct ctx *c, bool blocking_only);
void wait_record(struct record *r);
bool wait_init(void);

bool threads_start_worker(struct device *d);
bool threads_start(void *(*fn)(void *), void *arg); /* starts a detached thread that receives no signals */
void threads_sleep(uint64_t until);
void threads_name(const char *name);     /* names the calling thread */
void threads_settle(void);               /* after an event for which any device may have waited */
bool threads_start_for(const struct item *it); /* the thread that this item needs, if any */
void threads_kick(struct device *d);
void threads_send(struct item *it);
void copy_run(const struct copy *c);

/* ---- the calls: functions that entry.c calls, by the column `sim` of the list ---- */

/* Returns from the calling function with the call's result if that is an error. */
#define TRY(call)                            \
    do {                                     \
        const CUresult tried_ = (call);      \
        if (tried_ != CUDA_SUCCESS)          \
            return tried_;                   \
    } while (0)
/* Stores a value in the program's variable; NULL is an error. */
#define STORE(out, value) ((out) ? (*(out) = (value), CUDA_SUCCESS) : CUDA_ERROR_INVALID_VALUE)

/* The column as a list of arguments: its first word, and what the entry needs besides. That is for HANDLE: the type
 * of the object, whether the call needs a current context, and the error if there is no such object. */
#define SIM_STUB STUB
#define SIM_ALIAS ALIAS
#define SIM_AS(call) AS, call
#define SIM_OWN OWN
#define SIM_LOCKED LOCKED
#define SIM_CONTEXT CONTEXT
#define SIM_UNSAFE UNSAFE
#define SIM_STREAM STREAM
#define SIM_QUERY QUERY
#define SIM_DEVICE(dev) DEVICE, dev
#define SIM_GET(word, out, value) GET, out, value, SIM_##word
#define SIM_HANDLE(kind, h) HANDLE, H_##kind, h, SIM_OBJECT_##kind
#define SIM_OBJECT_ALLOC alloc, false, CUDA_ERROR_INVALID_VALUE
#define SIM_OBJECT_ARRAY array, false, CUDA_ERROR_INVALID_HANDLE
#define SIM_OBJECT_EVENT event, false, CUDA_ERROR_INVALID_HANDLE
#define SIM_OBJECT_EXEC exec, false, CUDA_ERROR_INVALID_VALUE
#define SIM_OBJECT_FUNC func, true, CUDA_ERROR_INVALID_HANDLE
#define SIM_OBJECT_GRAPH graph, false, CUDA_ERROR_INVALID_VALUE
#define SIM_OBJECT_KERNEL kernel, false, CUDA_ERROR_INVALID_HANDLE
#define SIM_OBJECT_LIBRARY library, false, CUDA_ERROR_INVALID_HANDLE
#define SIM_OBJECT_LINK link, false, CUDA_ERROR_INVALID_HANDLE
#define SIM_OBJECT_MIPMAP mipmap, false, CUDA_ERROR_INVALID_HANDLE
#define SIM_OBJECT_MODULE module, true, CUDA_ERROR_INVALID_HANDLE
#define SIM_OBJECT_NODE node, false, CUDA_ERROR_INVALID_VALUE
#define SIM_OBJECT_POOL pool, false, CUDA_ERROR_INVALID_VALUE
#define SIM_OBJECT_SEMAPHORE semaphore, true, CUDA_ERROR_INVALID_HANDLE
#define SIM_OBJECT_STREAM stream, false, CUDA_ERROR_INVALID_HANDLE
#define SIM_OBJECT_SURFACE texture, false, CUDA_ERROR_INVALID_VALUE
#define SIM_OBJECT_TEXTURE texture, false, CUDA_ERROR_INVALID_VALUE

/* Expands a row to USE_WORD(name, stream, params, args, the other arguments). */
#define SIM_ROW(use, name, stream, params, args, ...) SIM_ROW_(use, name, stream, params, args, __VA_ARGS__, )
#define SIM_ROW_(use, name, stream, params, args, word, ...) use##word(name, stream, params, args, __VA_ARGS__)

#define SIM_LIST(...) __VA_ARGS__
struct array;
struct graph;
struct kernel;
struct link;
struct mipmap;
struct node;
struct exec;
struct semaphore;
struct texture;
#define BODY_STUB(name, stream, params, ...)
#define BODY_ALIAS(name, stream, params, ...)
#define BODY_AS(name, stream, params, ...)
#define BODY_OWN(name, stream, params, ...)
#define BODY_GET(name, stream, params, ...)
#define BODY_LOCKED(name, stream, params, ...) CUresult sim_##name params;
#define BODY_WITH(type, name, params) CUresult sim_##name(struct type *, SIM_LIST params);
#define BODY_CONTEXT(name, stream, params, ...) BODY_WITH(ctx, name, params)
#define BODY_UNSAFE(name, stream, params, ...) BODY_WITH(ctx, name, params)
#define BODY_STREAM(name, handle, params, ...) BODY_WITH(stream, name, params)
#define BODY_QUERY(name, handle, params, ...) BODY_WITH(stream, name, params)
#define BODY_DEVICE(name, stream, params, ...) BODY_WITH(device, name, params)
#define BODY_HANDLE(name, stream, params, args, kind, h, type, ...) BODY_WITH(type, name, params)
#define CU(name, since, variant, hook, sim, stream, params, args) SIM_ROW(BODY_, name, stream, params, args, SIM_##sim)
#include "../symbols.def"
