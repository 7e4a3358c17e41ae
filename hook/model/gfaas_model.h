/* gfaas_model.h: weights that all processes on a GPU share, for C.
 *
 * gfaas-modeld keeps one copy of a model's weights on the GPU. A process that
 * opens the model maps that copy for reading, and a process that has the weights of
 * a model can store it for all (see gfaas_model_store):
 *
 *   gfaas_model *m;
 *   gfaas_tensor t;
 *   if (gfaas_model_open("resnet50", "resnet50.safetensors", &m))
 *       fprintf(stderr, "%s\n", gfaas_model_error());
 *   else if (!gfaas_model_find(m, "fc.weight", &t))
 *       launch(..., (const void *)t.ptr, ...);
 *
 * Link with -lgfaas-model; the library opens the driver at the first use. Any thread
 * may call any function. A forked child cannot use its parent's models, just as it
 * cannot use its parent's CUDA contexts.
 */
#ifndef GFAAS_MODEL_H
#define GFAAS_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The results of functions. */
enum gfaas_model_code {
    GFAAS_MODEL_OK = 0,
    GFAAS_MODEL_ABSENT = 1,       /* there is no such model, or no such tensor */
    GFAAS_MODEL_INVALID_FILE = 2, /* the file is not a safetensors file */
    GFAAS_MODEL_CHECKSUM = 3,     /* the file is not the expected one */
    GFAAS_MODEL_CHANGED = 4,      /* the file has changed */
    GFAAS_MODEL_CAPACITY = 5,     /* the model is larger than the daemon's limit */
    GFAAS_MODEL_BUSY = 6,         /* models in use leave too little of the limit */
    GFAAS_MODEL_GPU_MEMORY = 7,   /* the GPU is out of memory */
    GFAAS_MODEL_DENIED = 8,       /* permission denied */
    GFAAS_MODEL_USAGE = 9,        /* invalid argument */
    GFAAS_MODEL_INTERNAL = 10,    /* in the daemon or the library, for example out of memory */
    GFAAS_MODEL_NO_DAEMON = 11,   /* gfaas-modeld does not answer */
    GFAAS_MODEL_DRIVER = 12,      /* there is no CUDA driver, or it failed */
    GFAAS_MODEL_SLICE_MEMORY = 13, /* the store exceeds the memory limit of the process's slice */
};

typedef struct gfaas_model gfaas_model;

/* A tensor. Its pointers are valid while the model is open. */
typedef struct {
    const char *name, *dtype; /* dtype as in safetensors: "F32", "BF16", ... */
    int32_t ndim;
    const int64_t *shape;     /* ndim values, outermost dimension first; the tensor is packed */
    uint64_t ptr, bytes;      /* device address, a multiple of 256, and size; read-only */
} gfaas_tensor;

/* Maps the model with that name, in the current context or, if there is none, in the primary context of device 0. If
 * the daemon does not have the model, it loads it from `file`, which this function opens (NULL: no file). Waits until
 * the weights are loaded. The daemon's socket is $GFAAS_MODEL_SOCKET, or else model.sock in the run directory
 * ($GFAAS_RUN_DIR, or else $XDG_RUNTIME_DIR/gfaas, or else the user's default). Returns 0, or a code with *out set to
 * NULL. */
int gfaas_model_open(const char *name, const char *file, gfaas_model **out);

/* Returns the number of tensors. */
size_t gfaas_model_count(const gfaas_model *);

/* Set *out to tensor number i, in the order of the file, and to the tensor with that name. */
int gfaas_model_tensor(const gfaas_model *, size_t i, gfaas_tensor *out);
int gfaas_model_find(const gfaas_model *, const char *name, gfaas_tensor *out);

/* Returns the SHA-256 of the file, in hexadecimal digits; "" for a model that was stored, which has no file. */
const char *gfaas_model_sha256(const gfaas_model *);

/* Unmaps the model. No work that reads it may be in progress. NULL is allowed. */
void gfaas_model_close(gfaas_model *);

/* ---- storing a model ----
 *
 * A process can write the weights of a model itself, one tensor after the other, and then publish the model:
 *
 *   int64_t shape[] = {10, 4};
 *   gfaas_tensor fc = {.name = "fc.weight", .dtype = "F32", .ndim = 2, .shape = shape};
 *   gfaas_store *s;
 *   gfaas_model *m = NULL;
 *   int code = gfaas_model_store("resnet50", &fc, 1, NULL, &s);
 *   if (!code)
 *       code = gfaas_store_put(s, "fc.weight", weights, sizeof weights);
 *   if (!code)
 *       code = gfaas_store_commit(s, &m);
 *   gfaas_store_close(s);   in every case; without a commit, this drops the model
 *
 * Only the commit makes the model visible, with all of its tensors. It becomes the next generation of the model with
 * that name, as with `gfaas-modeld put`; processes that have an earlier generation open keep it. Several clients can
 * store a model of the same name at the same time: each has memory of its own, and the last commit determines the
 * model that is opened later.
 *
 * A stored model has no file. If no process has it open, gfaas-modeld may evict it, and it is then gone, as after the
 * end of gfaas-modeld. So keep *m open, or save the model with `gfaas-modeld get NAME FILE`. */

typedef struct gfaas_store gfaas_store;

/* Settings of a store. Bytes that you do not set must be zero, for example by `gfaas_store_options o = {0}`. */
typedef struct {
    const char *const *metadata; /* keys and values in turn, then NULL; or NULL: none */
    int64_t timeout_ms;          /* longest wait for room, while models in use leave too little */
    int32_t everyone;            /* not 0: other tenants may use the model, as with `put --public` */
    int32_t reserved[7];
} gfaas_store_options;

/* Requests memory for a model with these tensors, and maps it for writing, in the same context as gfaas_model_open.
 * Uses name, dtype, ndim and shape of each tensor, and copies them. The tensors lie in the memory in this order, each
 * packed, at the next multiple of 256 bytes, and all bytes are zero. The memory counts against the memory limit of the
 * process's slice until the commit. options may be NULL. Returns 0, or a code with *out set to NULL. */
int gfaas_model_store(const char *name, const gfaas_tensor *tensors, size_t count, const gfaas_store_options *options,
                      gfaas_store **out);

/* Copies a whole tensor, of exactly its size, from host or device memory. Returns when the copy has finished. Work that
 * writes the data on another stream must have finished before. Threads may put different tensors at the same time. */
int gfaas_store_put(gfaas_store *, const char *name, const void *data, uint64_t bytes);

/* Sets *out to the tensor with that name, whose memory the caller may write until the commit, for example with a
 * kernel. For the commit, the tensor counts as written. */
int gfaas_store_find(gfaas_store *, const char *name, gfaas_tensor *out);

/* Tells gfaas-modeld that the store continues. A store ends if gfaas-modeld receives nothing for 60 s: later calls then
 * fail with GFAAS_MODEL_ABSENT, and gfaas_store_close is the only useful one. gfaas_store_put includes this call, so it
 * is necessary only in longer pauses, and while kernels write. */
int gfaas_store_touch(gfaas_store *);

/* Publishes the model. Waits for all work in the current context (or, if that is of another GPU, in the GPU's primary
 * context), and makes the mapping read-only before the model becomes visible. Work in other contexts must have
 * finished. No other call for the store may be in progress. Sets *out to the model, which then is open as after
 * gfaas_model_open; NULL: does not keep it open. Fails with GFAAS_MODEL_USAGE if a tensor was not written; you can then
 * write it and commit again. After any other failure, the store cannot be committed any more. */
int gfaas_store_commit(gfaas_store *, gfaas_model **out);

/* Frees the store. Drops the model unless it was committed. No work that writes to it may be in progress. A forked child
 * can only close its parent's store, which does not affect the parent. NULL is allowed. */
void gfaas_store_close(gfaas_store *);

/* Returns the message of this thread's last failed call, or "" if none has failed. */
const char *gfaas_model_error(void);

#ifdef __cplusplus
}
#endif

#endif
