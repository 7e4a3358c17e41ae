/* sim.h: what the parts of the simulated driver share.
 *
 *   entry.c         the exported functions, made from ../symbols.def
 *   procaddr.c      cuGetProcAddress
 *   init.c          the process: its start, its end, its lock
 *   config.c        the shape of the machine, from the environment
 *   handle.c        which pointers are live handles
 *   thread.c        what belongs to a thread of the program
 *   shared.c        the files in which processes share a device; see shared.h
 *   folder.c        the folder that they are in
 *   checkpoint.c    taking another process off its devices, and putting it back
 *   sched.c         how they share its time
 *   exports.c       allocations that several processes have
 *   device.c        what a device says of itself
 *   context.c       contexts, and which one is current
 *   module.c        modules; func.c: attributes of their kernels
 *   library.c       libraries and kernels of no context
 *   ptx.c           reads the text of modules
 *   ops.c           what kernels compute
 *   launch.c        kernel launches
 *   stream.c        streams; event.c, ipcevent.c: events, between processes too
 *   engine.c        the work in streams, in simulated time
 *   threads.c       the driver's own threads; wait.c: the program's that wait
 *   copy.c          copies and fills; transfer.c: as work in streams
 *   range.c         the table of addresses; pointer.c: what is told of it
 *   memory.c        device memory; hostmem.c, managed.c, array.c, ipc.c: other kinds
 *   pool.c          stream-ordered memory; poolapi.c: its calls
 *   vmm.c           virtual memory management
 *   graph.c         graphs; graph_work.c: what their nodes do
 *   graph_exec.c    instances of graphs; graph_run.c: launches of them
 *   graph_memory.c  nodes that allocate; graph_object.c: user objects
 *   capture.c       stream capture
 *
 * One lock, g_lock, guards everything in the process. User code (callbacks,
 * copies from user memory) never runs under it. Times are nanoseconds of
 * CLOCK_MONOTONIC, which all processes of a machine share.
 */
#ifndef GFAAS_SIM_H
#define GFAAS_SIM_H

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
#define SIM_LINK_BYTES_PER_NS 16 /* between a device and the host: PCIe 3.0 with 16 lanes at its best */

static inline size_t page_up(size_t n) /* to whole pages; 0 when it wraps */
{
    return (n + SIM_PAGE - 1) & ~(size_t)(SIM_PAGE - 1);
}

/* ---- configuration (config.c) ---- */

struct config {
    unsigned sms;       /* of the whole device */
    uint64_t mem;       /* bytes of one device */
    uint64_t context;   /* bytes that a process with contexts takes beside its allocations */
    unsigned count;     /* devices there are */
    unsigned pct;       /* SM share in thousandths of a percent; 0: no MPS, takes turns */
    unsigned granted;   /* SMs of this process */
    bool poison;        /* fresh device memory holds no zeros */
    unsigned visible;   /* devices this process sees, as indices into the machine's */
    int visible_index[SIM_MAX_DEVICES];
    char dir[3072];     /* where processes share, see shared.h */
    bool own_dir;       /* nobody named it: the last process removes it */
};
extern struct config g_config;
bool config_load(void);
#define SIM_UUID_BYTES 48
void sim_uuid(char uuid[SIM_UUID_BYTES], unsigned index);
extern const char sim_library[]; /* which of the two simulated ones this is */
void sim_say_simulated(void);    /* unless it has been said */
void sim_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- process state (init.c) ---- */

extern pthread_mutex_t g_lock;
struct ctx;
CUresult sim_begin(struct ctx **c); /* locks; on error the lock is not held; c may be NULL */
CUresult sim_end(CUresult r);       /* unlocks, returns r */
CUresult sim_ready(void);           /* why calls are refused, if they are; takes no lock */
CUresult ctx_usable(struct ctx **c); /* the calling thread's context, if work may go to it */
CUresult ctx_release(void); /* whether what belongs to some context may be given back: it need not be current */
extern __thread bool tls_in_callback;
extern __thread bool tls_per_thread; /* inside a _ptsz or _ptds call */

/* ---- handles (handle.c) ---- */

enum handle_kind {
    H_NONE, H_CTX, H_STREAM, H_EVENT, H_MODULE, H_FUNC, H_GRAPH, H_NODE, H_EXEC, H_OBJECT,
    H_POOL, H_ALLOC, H_ARRAY, H_MIPMAP, H_LINK, H_LIBRARY, H_KERNEL, H_TEXTURE, H_SURFACE,
    H_SEMAPHORE,
};
bool handle_add(const void *p, enum handle_kind kind);
void handle_del(const void *p);
bool handle_is(const void *p, enum handle_kind kind);
/* What a program's handle means, NULL when it is not a live one of that kind. */
static inline void *handle_of(const void *p, enum handle_kind kind)
{
    return handle_is(p, kind) ? (void *)(uintptr_t)p : NULL;
}

/* ---- the state that processes share (shared.c, sched.c) ---- */

struct shared;
struct sched;

/* What this process last saw of its place on a device. */
struct sched_view {
    uint32_t gen;
    bool valid, group, busy;
    unsigned n, k;       /* entities that take turns, and which one we are */
    unsigned others;     /* other processes that are busy */
    uint64_t epoch, phase, sum, progress;
};

struct item;
struct stream;

struct device {
    int index; /* on the machine */
    bool joined, left, published, worker_started;
    int fd, slot;
    struct shared *sh;
    struct sched_view view;
    uint64_t next_reap;

    int arena_fd;
    bool arena_named;
    uint64_t arena_serial, arena_size;
    size_t arena_open; /* so much of the view can be read and written */
    char *arena_view;          /* where its bytes are */
    CUdeviceptr arena_base;    /* what programs call them */

    CUdeviceptr arena_hint;    /* where the next allocation is tried first */

    struct stream *busy;       /* streams with pending items, */
    unsigned n_busy;           /* so many of them */
    struct run *runs;          /* graph launches whose turn has come, see graph.h */
    struct item *run;          /* the kernel that has the SMs */
    uint64_t run_end;          /* its end, in this process's device time */
    uint64_t free_at;          /* when the SMs became free */
    uint64_t free_progress;    /* and at which device time; valid while published */
    uint64_t pend_ns;          /* device time of all queued kernels, the running one excepted */
    unsigned n_prompt;         /* queued items that a thread of ours must act on in time */
    unsigned n_words;          /* queued items that wait for a word of memory */
    struct ctx *primary;
    unsigned primary_refs, primary_flags;
    unsigned contexts; /* that this process has on it */
    int ordinal;       /* as this process counts, -1 when it does not see it */

    struct pool *pools;        /* all of them, and of these */
    struct pool *default_pool; /* the one that is always there, */
    struct pool *current_pool; /* the one cuMemAllocAsync takes from */
    struct graph_memory {
        uint64_t used, used_high, reserved, reserved_high;
    } graph_memory;            /* see graph_memory.c */
};
extern struct device g_device[SIM_MAX_DEVICES];
struct device *device_of(int ordinal); /* NULL: the process sees no such device */
CUresult device_joined(int ordinal, struct device **d); /* and this process is on it */

CUresult shared_join(struct device *d);
void shared_leave(struct device *d);
bool shared_mem_take(struct device *d, uint64_t bytes);
void shared_mem_give(struct device *d, uint64_t bytes);
void shared_fixed(struct device *d, int more); /* so many more things of this process cannot leave the device */
void shared_pending(struct device *d, unsigned streams); /* so many of its streams have work */
uint64_t shared_mem_used(struct device *d);
void shared_reap(struct device *d, uint64_t now);
void shared_reap_due(struct device *d, uint64_t now); /* unless another process has, of late */
uint32_t shared_bell(struct device *d);
void shared_bell_wait(struct device *d, uint32_t seen, uint64_t until);
void shared_bell_ring(struct device *d);
int shared_open_memory(int index, unsigned slot, uint64_t serial);
bool shared_name_memory(struct device *d); /* so that others can open it */
bool shared_open_arena(struct device *d, size_t end); /* the view can be used up to there */

void sched_publish(struct device *d, bool busy, uint64_t at, uint64_t now);
uint64_t sched_progress(struct device *d, uint64_t at);
uint64_t sched_when(struct device *d, uint64_t progress);
bool sched_contended(struct device *d);
bool sched_out(struct device *d); /* another process has taken this one for stopped, and out of the pattern */
void sched_tell(struct device *d, uint64_t until); /* when its work will be over, in its device time */

/* ---- memory that another process takes away (lost.c) ---- */

extern _Atomic bool g_lost;
/* From now on what is missing of that mapping of a file is an error, not the end
 * of the process; from now on no more. */
void lost_watch(void *base, size_t size);
void lost_forget(void *base);
/* Leaves the process without a device, and returns with what. Under g_lock. */
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
extern struct ctx *g_contexts; /* all there ever were: a destroyed one stays known as such */
void ctx_fault(CUresult why);  /* work went wrong on the device */

/* thread.c: the calling thread's contexts, and the stream it knows as handle 2 */
struct ctx *ctx_current(void);
bool thread_push(struct ctx *c);
struct ctx *thread_pop(void);
struct stream *thread_stream(struct ctx *c);

/* ---- memory (range.c, memory.c, hostmem.c, managed.c, ipc.c; see also pool.h, vmm.h) ---- */

enum range_kind {
    R_DEVICE,     /* cuMemAlloc */
    R_IPC,        /* another process's, by handle */
    R_HOST,       /* pinned */
    R_REGISTERED, /* the program's own, pinned */
    R_POOL,       /* from a pool */
    R_MANAGED,
    R_VMM,        /* a mapping of a cuMemCreate allocation */
    R_ARRAY,
    R_GRAPH,      /* from an allocation node */
    R_HIDDEN,     /* part of the arena, but no address of it means anything to programs */
};
struct range {
    CUdeviceptr base;
    size_t size;     /* as asked for */
    size_t span;     /* bytes taken */
    enum range_kind kind;
    struct device *dev; /* NULL: memory of the host */
    struct ctx *ctx;    /* NULL: it belongs to no context */
    char *view;         /* where the bytes are */
    unsigned flags, refs; /* flags: of the host's or managed memory; R_VMM: what access there is; R_IPC: from a pool;
                             R_DEVICE: handed to others */
    uint64_t id, serial, offset;
    struct chunk *chunk;        /* of a pool */
    struct record *freed;       /* of a pool: when the stream gets to the freeing of it */
    struct stretch *stretches;  /* of managed memory */
    struct alloc *alloc;        /* what an R_VMM shows */
    struct mem *mem;            /* of a graph's allocation, also while it has no memory */
};
struct range *range_find(CUdeviceptr p);
struct range *range_raw(CUdeviceptr p); /* finds what is hidden too */
struct range *range_add(const struct range *r); /* NULL: no memory for it */
void range_del(struct range *r);
size_t range_count(void);
struct range *range_at(size_t i);
size_t range_after(CUdeviceptr p); /* index of the first that begins after p */
bool range_overlaps(CUdeviceptr base, size_t size);
uint64_t range_new_id(void);
bool range_on_device(const struct range *r);
/* Bytes from p on, in the view of r, that one operation may reach, to read them or to write too. */
size_t range_reach(const struct range *r, CUdeviceptr p, bool write);
/* Whether the address is the simulated device's, in use or not. */
bool range_reserved(CUdeviceptr p);
/* Where the bytes [p, p+n) are for a kernel on d, or NULL when it may not reach them all. */
void *range_translate(struct device *d, CUdeviceptr p, size_t n, bool write);

CUresult memory_alloc(struct ctx *c, CUdeviceptr *out, size_t size);
/* Takes a piece of the arena; r says the rest of what it is. memory_place counts it,
 * memory_hole takes addresses only. */
CUresult memory_hole(struct device *d, size_t span, struct range *r, struct range **out);
CUresult memory_place(struct device *d, size_t span, struct range *r, struct range **out);
CUresult memory_take(struct device *d, size_t bytes); /* only counts it */
void memory_poison(void *view, size_t n); /* if fresh memory is to be */
void memory_release(struct range *r); /* the opposite, of a range no work uses */
void memory_free_ctx(struct ctx *c);
void memory_wait(struct device *d);   /* for all work on the device */
void hostmem_release(struct range *r);
/* Brings [p, p+n) of managed memory to a device or to the host, as far as there is room. */
void managed_place(struct range *r, CUdeviceptr p, size_t n, int where);
/* Makes room for that much on a device, or for less; false when it cannot. */
bool managed_evict(struct device *d, size_t bytes);
void managed_release(struct range *r);
CUresult ipc_map(struct range *g, int device, unsigned slot);
void ipc_unmap(const struct range *r);
void ipc_release(struct range *r);

/* ---- modules (ptx.c, module.c) ---- */

enum op { OP_NONE, OP_VADD_F32, OP_SAXPY_F32, OP_SGEMM_F32, OP_FAULT };
#define SIM_OP_BYTES 64
#define SIM_MAX_PARAMS 256
#define SIM_PARAM_BYTES 4096

struct func {
    struct func *next;
    struct module *module;
    char *name;
    uint64_t block_ns;
    enum op op;
    unsigned nparams, bytes;
    unsigned short offset[SIM_MAX_PARAMS], size[SIM_MAX_PARAMS];
    int max_dynamic, carveout, cache;
    int block[3];
    unsigned shared, param_size;
    unsigned char *params; /* of the legacy interface */
};
struct address { /* of a variable, as the value of another one or of a part of it */
    struct address *next;
    size_t at;    /* bytes into that */
    char *symbol; /* a function's is not known, and stays 0 */
    uint64_t plus;
};
struct global {
    struct global *next;
    char *name;
    size_t size;
    unsigned char *init; /* size bytes, or NULL for zeros */
    struct address *addresses; /* that are among them */
    CUdeviceptr ptr;
};
struct module {
    struct module *next;
    struct ctx *ctx;
    struct func *funcs;
    struct global *globals;
    struct library *library; /* that it was loaded of, and goes with; NULL: the program's own */
};
/* Fills m from PTX text; on failure says why in msg. */
CUresult ptx_parse(struct module *m, const char *text, char *msg, size_t len);
enum op ops_find(const char *name);
bool ops_fits(enum op op, const struct func *f);
CUresult ops_run(enum op op, const unsigned char *params, const struct func *layout);
void module_free(struct module *m);
int func_blocks_per_sm(int threads, size_t dynamic);

/* ---- streams, events and the work in them (engine.c, wait.c, threads.c) ---- */

struct record { /* one recording of an event */
    unsigned refs;
    bool done;
    bool watched;          /* a stream of another device waits for it */
    bool inner;            /* by a node of a graph: somewhere inside that item */
    bool foreign;          /* made by another process: in no stream of ours */
    unsigned shared;       /* of an event that other processes know: which, from 1, */
    uint32_t number;       /* and as which recording of it, */
    struct device *dev;    /* on which device */
    uint64_t at;
    struct stream *stream; /* while not done: where it is, */
    uint64_t index;        /* and as which item of that stream */
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
    struct captured *captured; /* when it was last recorded in a capturing stream */
    unsigned shared; /* when other processes know it: as which, from 1; see ipcevent.h */
};
struct event *event_new(struct ctx *c, unsigned flags);
void event_free(struct event *e);

enum item_kind { I_KERNEL, I_COPY, I_SET, I_RECORD, I_WAIT, I_HOST, I_CALLBACK, I_GRAPH, I_DESTROY, I_TASK, I_UNTIL };

struct copy { /* also a set: then src is NULL */
    char *dst;
    const char *src;
    size_t dst_pitch, src_pitch, dst_slice, src_slice; /* bytes from row to row, plane to plane */
    size_t width, height, depth;
    uint32_t value;
    unsigned elem;   /* 1, 2 or 4 */
    void *staged;    /* freed when done */
    bool fault;      /* it goes where it may not */
};

struct item {
    struct item *next, *xnext;
    struct stream *stream;
    enum item_kind kind;
    bool sent;       /* a thread of ours has it */
    bool computing;  /* a kernel whose effect is being computed */
    int priority;
    struct run *run; /* the graph launch that this is step number `step` of */
    uint32_t step;
    uint64_t seq, enqueued, ns;
    uint64_t began, computed_at; /* of a kernel that has an effect */
    union {
        struct {
            enum op op;
            const struct func *layout;
            unsigned char params[SIM_OP_BYTES];
        } kernel;
        struct copy copy;
        struct word { /* of memory that is waited for, see word.c */
            const void *at;
            uint64_t value;
            unsigned bytes, flags; /* 4 or 8 */
        } word;
        struct record *record;
        struct task { /* something of our own, done under g_lock */
            void (*run)(const struct task *t);
            uint64_t (*takes)(const struct task *t); /* ns before that, from when it is its turn; NULL: none */
            CUdeviceptr p;
            size_t n;
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
    uint64_t enq, done; /* items put in and finished, ever */
    uint64_t done_at;   /* when the last one finished */
    uint64_t wake_at;   /* the count of finished items a sleeper waits for */
    unsigned waiters;
    bool dying;
    struct stream *captured_next; /* of the capture */
    struct deps *deps;
};
struct stream *stream_new(struct ctx *c, enum stream_kind kind, unsigned flags, int priority);
void stream_drop(struct stream *s);
/* The stream a handle means in the current context; NULL with *r set when it means
 * none. To use it takes stream_get, to look at it stream_find will do. */
struct stream *stream_find(struct ctx *c, CUstream h, CUresult *r);
struct stream *stream_get(struct ctx *c, CUstream h, CUresult *r);
bool stream_blocking(const struct stream *s);

uint64_t now_ns(void);
struct item *item_new(enum item_kind kind);
void item_free(struct item *it);
/* Puts an item at the end of a stream. Takes it over, also when it fails. */
CUresult engine_push(struct stream *s, struct item *it);
void engine_advance(struct device *d, uint64_t now);
void engine_finish(struct item *it, uint64_t at);
/* When something will be due on d: when this much more device time has passed
 * after the running kernel, or at its end if something may need doing then. 0: unknown. */
uint64_t engine_deadline(struct device *d, uint64_t more, uint64_t now);

bool word_there(const struct word *w); /* word.c: whether it is what is waited for */

/* wait.c: waiting, with g_lock held but for the sleep itself. */
extern pthread_cond_t g_cond;
extern unsigned g_waiters;
void wait_stream(struct stream *s, uint64_t until); /* until s has finished that many items */
void wait_room(struct stream *s);
void wait_context(struct ctx *c, bool blocking_only);
void wait_record(struct record *r);
bool wait_init(void);

bool threads_start_worker(struct device *d);
bool threads_start(void *(*fn)(void *)); /* one more thread of ours */
void threads_name(const char *name);     /* of the calling one */
void threads_settle(void);               /* after something that any device may have waited for */
bool threads_start_for(const struct item *it); /* the thread this item needs, if any */
void threads_kick(struct device *d);
void threads_send(struct item *it);
void copy_run(const struct copy *c);

/* ---- the calls: what entry.c enters, by the column `sim` of the list ---- */

#define SIM_LIST(...) __VA_ARGS__
#define SIM_BODY_STUB(name, params)
#define SIM_BODY_ALIAS(name, params)
#define SIM_BODY_OWN(name, params)
#define SIM_BODY_LOCKED(name, params) CUresult sim_##name params;
#define SIM_BODY_CONTEXT(name, params) CUresult sim_##name(struct ctx *c, SIM_LIST params);
#define SIM_BODY_UNSAFE(name, params) CUresult sim_##name(struct ctx *c, SIM_LIST params);
#define SIM_BODY_STREAM(name, params) CUresult sim_##name(struct stream *s, SIM_LIST params);
#define CU(name, since, variant, hook, sim, stream, params, args) SIM_BODY_##sim(name, params)
#include "../symbols.def"

#endif
