/* model.h: the declarations that the parts of the model client share.
 *
 *   model.c     the functions of gfaas_model.h
 *   daemon.c    messages exchanged with gfaas-modeld
 *   manifest.c  the tensors of a model
 *   json.c      reads JSON
 *   mapping.c   the driver, and mappings of memory
 */
#ifndef GFAAS_MODEL_INTERNAL_H
#define GFAAS_MODEL_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define CUDA_EXACT_NAMES
#include "../cuda.h"
#include "../descriptor.h"
#include "compat.h"
#include "gfaas_model.h"

#include <stdbool.h>

/* Stores the message of this thread's failing call; returns the code. */
int model_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- the daemon ---- */

struct answer {
    char sha256[65], gpu[64];
    uint64_t size;     /* of the allocation, bytes */
    int memory, manifest; /* descriptors, the caller's to close; -1: none */
};

/* Opens a connection and stores its identity; it is closed on exec and in children. */
int daemon_connect(int *sock, struct gf_inode *is);
/* Requests a model, with the descriptor of its file (-1: none). */
int daemon_get(int sock, const char *name, int file, struct answer *a);
void answer_close(struct answer *a);

/* ---- the manifest ---- */

struct tensors {
    gfaas_tensor *list;
    size_t count;
    const gfaas_tensor **by_name; /* sorted by name */
    int64_t *shapes;
    char *text;      /* of names and dtypes */
};

/* Reads a manifest. The pointers of its tensors are offsets into an allocation of `size` bytes, in which each tensor
 * must lie. On failure, nothing remains allocated. */
int manifest_read(const char *json, size_t n, uint64_t size, struct tensors *t);
int manifest_map(int fd, uint64_t size, struct tensors *t);
const gfaas_tensor *tensors_find(const struct tensors *t, const char *name);
void tensors_free(struct tensors *t);

/* ---- memory ---- */

struct mapping {
    CUdeviceptr base;
    size_t size;
    CUdevice device;
    bool primary; /* the device's primary context was retained for it */
};

/* Maps the memory of a descriptor for reading. */
int mapping_make(struct mapping *m, int fd, uint64_t size, const char *gpu);
void mapping_free(struct mapping *m);

/* ---- JSON ---- */

/* A reader. Values are read in order. After the first failure all following reads fail; `why` has the reason and `at`
 * the position. */
struct json {
    const char *at, *end;
    char *room; /* space for strings, as large as the text */
    const char *why;
    unsigned depth;
};

/* json_enter enters an object or a list; json_next goes to its next member, and returns false at its end. A member of
 * an object has a key. */
bool json_enter(struct json *j, char open);
bool json_next(struct json *j, char close, bool *first);
bool json_key(struct json *j, const char **key);
/* Reads a string as UTF-8 with a final zero byte. A zero byte in the string is an error, except in a string that is
 * skipped. */
bool json_string(struct json *j, const char **out);
bool json_integer(struct json *j, uint64_t *out); /* 0 to 2^63 - 1 */
bool json_boolean(struct json *j, bool *out);
bool json_skip(struct json *j); /* a value of any kind */
bool json_end(struct json *j);  /* reports whether only space remains */
bool json_fail(struct json *j, const char *why);

#endif
