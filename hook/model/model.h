/* model.h: the declarations that the parts of the model client share.
 *
 *   model.c       the functions of gfaas_model.h that open models
 *   store.c       the functions of gfaas_model.h that store models
 *   connection.c  connections to gfaas-modeld
 *   daemon.c      messages exchanged with gfaas-modeld
 *   manifest.c    the tensors of a model
 *   layout.c      the tensors of a model that is to be stored
 *   json.c        reads JSON
 *   mapping.c     the driver, and mappings of memory
 */
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define CUDA_EXACT_NAMES
#include "../cuda.h"
#include "../descriptor.h"
#include "compat.h"
#include "gfaas_model.h"

#include <stdbool.h>

#define PUBLIC __attribute__((visibility("default")))

/* Stores the message of this thread's failing call; returns the code. */
int model_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- the daemon ---- */

struct answer {
    char sha256[65], gpu[64];
    uint64_t size;     /* of the allocation, bytes */
    int memory, manifest; /* descriptors, the caller's to close; -1: none */
};

/* Opens a connection and stores its identity; it is closed on exec. */
int daemon_connect(int *sock, struct gf_inode *is);
/* Requests a model, with the descriptor of its file (-1: none). */
int daemon_get(int sock, const char *name, int file, struct answer *a);
/* Requests memory of `size` bytes to store a model in, with the descriptor of its manifest. */
int daemon_store(int sock, const char *name, uint64_t size, int64_t timeout_ms, bool everyone, int manifest, struct answer *a);
/* Sends a request that has only a name: "touch" or "commit". */
int daemon_tell(int sock, const char *op, const char *name);
void answer_close(struct answer *a);

/* ---- connections ---- */

/* A connection. While it is open, the daemon keeps its model or its store. It must stay at its address. */
struct connection {
    struct connection *next; /* in the list of open connections */
    int sock;                /* -1: in a forked child, where it is closed */
    struct gf_inode is;      /* the identity of sock */
};

int connection_open(struct connection *c);
/* Reports whether this process opened the connection, rather than a parent. */
bool connection_here(const struct connection *c);
void connection_close(struct connection *c);

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
/* Returns the bytes of one element, or 0 for an unknown dtype. */
uint64_t dtype_bytes(const char *dtype);

/* ---- the layout of a store ---- */

/* Writes the manifest of a store to a new file, and sets *size to the bytes that the tensors need. */
int layout_make(const gfaas_tensor *tensors, size_t count, const char *const *metadata, int *file, uint64_t *size);

/* ---- memory ---- */

struct mapping {
    CUdeviceptr base;
    size_t size;
    CUdevice device;
    bool primary; /* the device's primary context was retained for it */
};

/* Maps the memory of a descriptor for reading and, if wanted, for writing. */
int mapping_make(struct mapping *m, int fd, uint64_t size, const char *gpu, bool writable);
/* Copies host or device memory to an address of the mapping, and waits for the end of the copy. */
int mapping_copy(const struct mapping *m, uint64_t to, const void *from, uint64_t bytes);
/* Waits for the work in the context, and makes the mapping read-only. */
int mapping_seal(const struct mapping *m);
void mapping_free(struct mapping *m);

/* ---- models ---- */

struct gfaas_model {
    struct connection connection;
    char sha256[65];
    struct mapping mapping;
    struct tensors tensors;
};

int model_check_name(const char *name);
/* Maps the manifest and the memory of the daemon's answer. */
int model_map(struct gfaas_model *m, const struct answer *a, bool writable);

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
