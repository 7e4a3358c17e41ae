/* sim.h: what the parts of the simulated driver share.
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

#define SIM_DRIVER_VERSION 12080
#define SIM_DEVICE_NAME "gfaas simulated GPU"
#define SIM_MAX_DEVICES 16
#define SIM_PAGE 4096u
#define SIM_QUEUE_DEPTH 1024

/* ---- configuration (config.c) ---- */

struct config {
    unsigned sms;       /* of the whole device */
    uint64_t mem;       /* bytes of one device */
    unsigned count;     /* devices there are */
    unsigned pct;       /* SM share in thousandths of a percent; 0: no MPS, takes turns */
    unsigned granted;   /* SMs of this process */
    unsigned visible;   /* devices this process sees, as indices into the machine's */
    int visible_index[SIM_MAX_DEVICES];
    char dir[3072];     /* where processes share, see shared.h */
    bool own_dir;       /* nobody named it: the last process removes it */
};
extern struct config g_config;
bool config_load(void);

/* ---- process state (init.c) ---- */

extern pthread_mutex_t g_lock;
struct ctx;
CUresult sim_begin(struct ctx **c); /* locks; on error the lock is not held; c may be NULL */
CUresult sim_end(CUresult r);       /* unlocks, returns r */
void sim_atexit_register(void);
extern __thread bool tls_in_callback;
extern __thread bool tls_per_thread; /* inside a _ptsz or _ptds call */

/* ---- handles (handle.c) ---- */

enum handle_kind { H_NONE, H_CTX, H_STREAM, H_EVENT, H_MODULE, H_FUNC };
bool handle_add(const void *p, enum handle_kind kind);
void handle_del(const void *p);
bool handle_is(const void *p, enum handle_kind kind);

/* ---- the state that processes share (shared.c, sched.c) ---- */

struct shared;
struct sched;

/* What this process last saw of its place on a device. */
struct sched_view {
    uint32_t gen;
    bool valid, group;
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
    char *arena_view;          /* where its bytes are */
    CUdeviceptr arena_base;    /* what programs call them */

    CUdeviceptr arena_hint;    /* where the next allocation is tried first */

    struct stream *busy;       /* streams with pending items */
    struct item *run;          /* the kernel that has the SMs */
    uint64_t run_end;          /* its end, in this process's device time */
    uint64_t free_at;          /* when the SMs became free */
    uint64_t free_progress;    /* and at which device time; valid while published */
    uint64_t pend_ns;          /* device time of all queued kernels, the running one excepted */
    unsigned n_prompt;         /* queued items that a thread of ours must act on in time */
    struct ctx *primary;
    unsigned primary_refs, primary_flags;
};
extern struct device g_device[SIM_MAX_DEVICES];

CUresult shared_join(struct device *d);
void shared_leave(struct device *d);
bool shared_mem_take(struct device *d, uint64_t bytes);
void shared_mem_give(struct device *d, uint64_t bytes);
uint64_t shared_mem_used(struct device *d);
void shared_reap(struct device *d, uint64_t now);
uint32_t shared_bell(struct device *d);
void shared_bell_wait(struct device *d, uint32_t seen, uint64_t until);
void shared_bell_ring(struct device *d);
int shared_open_memory(int index, unsigned slot, uint64_t serial);
bool shared_name_memory(struct device *d); /* so that others can open it */

void sched_publish(struct device *d, bool busy, uint64_t at, uint64_t now);
uint64_t sched_progress(struct device *d, uint64_t at);
uint64_t sched_when(struct device *d, uint64_t progress);
bool sched_contended(struct device *d);

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

/* thread.c: the calling thread's contexts, and the stream it knows as handle 2 */
struct ctx *ctx_current(void);
bool thread_push(struct ctx *c);
struct ctx *thread_pop(void);
struct stream *thread_stream(struct ctx *c);

/* ---- memory (range.c, memory.c, hostmem.c, ipc.c) ---- */

enum range_kind { R_DEVICE, R_IPC, R_HOST, R_REGISTERED };
struct range {
    CUdeviceptr base;
    size_t size;     /* as asked for */
    size_t span;     /* bytes taken */
    enum range_kind kind;
    struct ctx *ctx;
    char *view;      /* where the bytes are */
    unsigned flags, refs;
    uint64_t id, serial, offset;
};
struct range *range_find(CUdeviceptr p);
struct range *range_add(const struct range *r); /* NULL: no memory for it */
void range_del(struct range *r);
size_t range_count(void);
struct range *range_at(size_t i);
size_t range_after(CUdeviceptr p); /* index of the first that begins after p */
/* Where device or host-mapped bytes [p, p+n) are, or NULL when they are not all ours. */
void *range_translate(CUdeviceptr p, size_t n);
CUresult memory_alloc(struct ctx *c, CUdeviceptr *out, size_t size);
void memory_release(struct range *r); /* of a device range no work uses */
void memory_free_ctx(struct ctx *c);
void hostmem_release(struct range *r);
void ipc_release(struct range *r);

/* ---- modules (ptx.c, module.c) ---- */

enum op { OP_NONE, OP_VADD_F32, OP_SAXPY_F32, OP_SGEMM_F32 };
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
struct global {
    struct global *next;
    char *name;
    size_t size;
    unsigned char *init; /* size bytes, or NULL for zeros */
    CUdeviceptr ptr;
};
struct module {
    struct module *next;
    struct ctx *ctx;
    struct func *funcs;
    struct global *globals;
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
    uint64_t at;
    struct stream *stream; /* while not done: where it is, */
    uint64_t index;        /* and as which item of that stream */
};
struct record *record_new(void);
void record_unref(struct record *r);

struct event {
    struct event *next, **prev;
    struct ctx *ctx;
    unsigned flags;
    struct record *last;
};
void event_free(struct event *e);

enum item_kind { I_KERNEL, I_COPY, I_SET, I_RECORD, I_WAIT, I_HOST, I_CALLBACK };

struct copy { /* also a set: then src is NULL */
    char *dst;
    const char *src;
    size_t dst_pitch, src_pitch, dst_slice, src_slice; /* bytes from row to row, plane to plane */
    size_t width, height, depth;
    uint32_t value;
    unsigned elem;   /* 1, 2 or 4 */
    void *staged;    /* freed when done */
};

struct item {
    struct item *next, *xnext;
    struct stream *stream;
    enum item_kind kind;
    bool sent;       /* a thread of ours has it */
    bool computing;  /* a kernel whose effect is being computed */
    uint64_t seq, enqueued, ns, computed_at;
    union {
        struct {
            enum op op;
            const struct func *layout;
            unsigned char params[SIM_OP_BYTES];
        } kernel;
        struct copy copy;
        struct record *record;
        struct {
            CUhostFn fn;
            CUstreamCallback callback;
            void *data;
        } host;
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
    struct item *head, *tail;
    uint64_t enq, done; /* items put in and finished, ever */
    uint64_t done_at;   /* when the last one finished */
    uint64_t wake_at;   /* the count of finished items a sleeper waits for */
    unsigned waiters;
    bool dying;
};
struct stream *stream_new(struct ctx *c, enum stream_kind kind, unsigned flags, int priority);
void stream_drop(struct stream *s);
/* The stream a handle means in the current context; NULL with *r set when it means none. */
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

/* wait.c: waiting, with g_lock held but for the sleep itself. */
extern pthread_cond_t g_cond;
extern unsigned g_waiters;
void wait_stream(struct stream *s, uint64_t until); /* until s has finished that many items */
void wait_room(struct stream *s);
void wait_context(struct ctx *c, bool blocking_only);
void wait_record(struct record *r);
bool wait_init(void);

bool threads_start_worker(struct device *d);
bool threads_start_for(const struct item *it); /* the thread this item needs, if any */
void threads_kick(struct device *d);
void threads_send(struct item *it);
void copy_run(const struct copy *c);

#endif
