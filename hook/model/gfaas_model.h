/* gfaas_model.h: weights that all processes of a GPU share, from C.
 *
 * gfaas-modeld keeps one copy of a model's weights on the GPU. A process that
 * opens the model maps that copy, to read it:
 *
 *   gfaas_model *m;
 *   gfaas_tensor t;
 *   if (gfaas_model_open("resnet50", "resnet50.safetensors", &m))
 *       fprintf(stderr, "%s\n", gfaas_model_error());
 *   else if (!gfaas_model_find(m, "fc.weight", &t))
 *       launch(..., (const void *)t.ptr, ...);
 *
 * Link with -lgfaas-model; the driver is opened when it is first needed. All
 * functions may be called by any thread. A child that was forked has nothing of
 * its parent's models, as it has nothing of CUDA.
 */
#ifndef GFAAS_MODEL_H
#define GFAAS_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a function returns when it fails. */
enum gfaas_model_code {
    GFAAS_MODEL_OK = 0,
    GFAAS_MODEL_ABSENT = 1,       /* there is no such model, or no such tensor */
    GFAAS_MODEL_INVALID_FILE = 2, /* FILE is no safetensors file */
    GFAAS_MODEL_CHECKSUM = 3,     /* it is not the one that was expected */
    GFAAS_MODEL_CHANGED = 4,      /* it is not the one that it was */
    GFAAS_MODEL_CAPACITY = 5,     /* it is larger than the daemon may hold */
    GFAAS_MODEL_BUSY = 6,         /* what others hold leaves no room */
    GFAAS_MODEL_GPU_MEMORY = 7,   /* the GPU is full */
    GFAAS_MODEL_DENIED = 8,
    GFAAS_MODEL_USAGE = 9,        /* a wrong argument */
    GFAAS_MODEL_INTERNAL = 10,    /* in the daemon, or here: no memory, say */
    GFAAS_MODEL_NO_DAEMON = 11,   /* gfaas-modeld does not answer */
    GFAAS_MODEL_DRIVER = 12,      /* there is no CUDA driver, or it failed */
};

typedef struct gfaas_model gfaas_model;

/* A tensor; what the pointers mean lives as long as the model is open. */
typedef struct {
    const char *name, *dtype; /* dtype as safetensors has it: "F32", "BF16", ... */
    int32_t ndim;
    const int64_t *shape;     /* ndim of them, rows first; no strides: it is packed */
    uint64_t ptr, bytes;      /* on the GPU, at a multiple of 256; may be read, not written */
} gfaas_tensor;

/* Maps the model of that name, in the current context or, if there is none, the
 * primary one of device 0. If the daemon does not have it, it loads it: from file,
 * which is opened here, unless that is NULL. Waits until the weights are there.
 * The daemon's socket is $GFAAS_MODEL_SOCKET, else model.sock in the run directory
 * ($GFAAS_RUN_DIR, else $XDG_RUNTIME_DIR/gfaas, else the user's default). Returns 0, or a
 * code, and *out is NULL. */
int gfaas_model_open(const char *name, const char *file, gfaas_model **out);

/* How many tensors it has. */
size_t gfaas_model_count(const gfaas_model *);

/* Tensor number i, in the order of the file, and the one of that name. */
int gfaas_model_tensor(const gfaas_model *, size_t i, gfaas_tensor *out);
int gfaas_model_find(const gfaas_model *, const char *name, gfaas_tensor *out);

/* Of the file, in hexadecimal digits. */
const char *gfaas_model_sha256(const gfaas_model *);

/* Unmaps it. No work that reads it may be under way. NULL is nothing. */
void gfaas_model_close(gfaas_model *);

/* Why the last call of this thread that failed did; "" if none has. */
const char *gfaas_model_error(void);

#ifdef __cplusplus
}
#endif

#endif
