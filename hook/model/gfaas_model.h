/* gfaas_model.h: weights that all processes on a GPU share, for C.
 *
 * gfaas-modeld keeps one copy of a model's weights on the GPU. A process that
 * opens the model maps that copy for reading:
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

/* Returns the SHA-256 of the file, in hexadecimal digits. */
const char *gfaas_model_sha256(const gfaas_model *);

/* Unmaps the model. No work that reads it may be in progress. NULL is allowed. */
void gfaas_model_close(gfaas_model *);

/* Returns the message of this thread's last failed call, or "" if none has failed. */
const char *gfaas_model_error(void);

#ifdef __cplusplus
}
#endif

#endif
