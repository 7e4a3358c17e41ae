/* model.h: what the parts of the model client share.
 *
 *   model.c     the functions of gfaas_model.h
 *   daemon.c    talking to gfaas-modeld
 *   manifest.c  which tensors there are
 *   json.c      reads JSON
 *   mapping.c   the driver, and memory mapped with it
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

/* Says why this thread's call fails; returns the code. */
int model_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- the daemon ---- */

struct answer {
    char sha256[65], gpu[64];
    uint64_t size;     /* of the allocation, bytes */
    int memory, manifest; /* descriptors, the caller's to close; -1: none */
};

/* A new connection; it is closed on exec and in children. What it names is noted. */
int daemon_connect(int *sock, struct gf_inode *is);
/* Asks for a model, with the descriptor of its file unless that is -1. */
int daemon_get(int sock, const char *name, int file, struct answer *a);
void answer_close(struct answer *a);

/* ---- the manifest ---- */

struct tensors {
    gfaas_tensor *list;
    size_t count;
    size_t *by_name; /* places in the list, in order of the names */
    int64_t *shapes;
    char *text;      /* of names and dtypes */
};

/* Reads a manifest; the pointers of its tensors are offsets into an allocation of
 * that many bytes, in which each must lie. On failure nothing is left. */
int manifest_read(const char *json, size_t n, uint64_t size, struct tensors *t);
int manifest_map(int fd, uint64_t size, struct tensors *t);
const gfaas_tensor *tensors_find(const struct tensors *t, const char *name);
void tensors_free(struct tensors *t);

/* ---- memory ---- */

struct mapping {
    CUdeviceptr base;
    size_t size;
    CUdevice device;
    bool primary; /* whose primary context was retained for it */
};

/* Maps the memory that a descriptor means, to read it. */
int mapping_make(struct mapping *m, int fd, uint64_t size, const char *gpu);
void mapping_free(struct mapping *m);

/* ---- JSON ---- */

/* A reader. Values are read in order; what fails first makes all that follow fail,
 * and is told by why, with the place in at. */
struct json {
    const char *at, *end;
    char *room; /* where strings go; as much as the text is long will do */
    const char *why;
    unsigned depth;
};

/* Enters an object or a list, and goes to its next member: false at its end. A
 * member of an object has a key. */
bool json_enter(struct json *j, char open);
bool json_next(struct json *j, char close, bool *first);
bool json_key(struct json *j, const char **key);
/* A string as UTF-8, ended by a zero byte; a zero byte in it is an error, but not in
 * one that is skipped. */
bool json_string(struct json *j, const char **out);
bool json_integer(struct json *j, uint64_t *out); /* 0 to 2^63 - 1 */
bool json_boolean(struct json *j, bool *out);
bool json_skip(struct json *j); /* a value of any kind */
bool json_end(struct json *j);  /* nothing but space is left */
bool json_fail(struct json *j, const char *why);

#endif
