/* manifest.c: the tensors of a model and their offsets in its allocation. */
#include "model.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 2
#define F_SEAL_WRITE 8
#endif

#define MOST_BYTES ((off_t)1 << 30) /* largest manifest; headers have at most 100 MB */

static const struct {
    const char *name;
    uint64_t bytes;
} dtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},   {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
    {"BF16", 2}, {"U32", 4}, {"I32", 4},  {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8},
};

/* The tensors read so far. */
struct reading {
    struct tensors *t;
    size_t room, shapes, shape_room;
    uint64_t size;
};

static void *grown(void *list, size_t *room, size_t each)
{
    size_t more = *room ? 2 * *room : 64;
    void *p = realloc(list, more * each);
    if (p)
        *room = more;
    return p;
}

static bool read_shape(struct json *j, struct reading *r, gfaas_tensor *t)
{
    bool first = true;
    uint64_t n;
    t->ndim = 0;
    if (!json_enter(j, '['))
        return false;
    while (json_next(j, ']', &first)) {
        if (r->shapes == r->shape_room) {
            int64_t *p = grown(r->t->shapes, &r->shape_room, sizeof *p);
            if (!p)
                return json_fail(j, "out of memory");
            r->t->shapes = p;
        }
        if (!json_integer(j, &n))
            return false;
        r->t->shapes[r->shapes++] = (int64_t)n;
        t->ndim++;
    }
    return !j->why;
}

uint64_t dtype_bytes(const char *dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(dtype, dtypes[i].name))
            return dtypes[i].bytes;
    return 0;
}

/* Reports whether shape and dtype agree with the number of bytes. An unknown dtype is not checked. */
static bool fits(const gfaas_tensor *t, const int64_t *shape)
{
    uint64_t bytes = dtype_bytes(t->dtype);
    if (!bytes)
        return true;
    for (int32_t i = 0; i < t->ndim; i++)
        if (__builtin_mul_overflow(bytes, (uint64_t)shape[i], &bytes))
            return false;
    return bytes == t->bytes;
}

/* Reads one tensor after its name. Its shape is the last ndim entries of r->shapes. */
static bool read_tensor(struct json *j, struct reading *r, gfaas_tensor *t)
{
    bool first = true, has_shape = false, has_bytes = false, has_offset = false;
    size_t shape = r->shapes;
    uint64_t offset = 0;
    const char *key;
    if (!json_enter(j, '{'))
        return false;
    while (json_next(j, '}', &first)) {
        if (!json_key(j, &key))
            return false;
        if (!strcmp(key, "dtype"))
            json_string(j, &t->dtype);
        else if (!strcmp(key, "shape"))
            has_shape = (r->shapes = shape, read_shape(j, r, t));
        else if (!strcmp(key, "offset"))
            has_offset = json_integer(j, &offset);
        else if (!strcmp(key, "bytes"))
            has_bytes = json_integer(j, &t->bytes);
        else
            json_skip(j);
    }
    if (j->why)
        return false;
    t->ptr = offset;
    if (!t->dtype || !has_shape || !has_offset || !has_bytes)
        return json_fail(j, "a tensor lacks dtype, shape, offset or bytes");
    if (t->bytes > r->size || offset > r->size - t->bytes)
        return json_fail(j, "a tensor ends beyond the allocation");
    return fits(t, r->t->shapes + shape) || json_fail(j, "the length of a tensor does not match its shape");
}

static bool read_tensors(struct json *j, struct reading *r)
{
    bool first = true;
    struct tensors *t = r->t;
    if (!json_enter(j, '{'))
        return false;
    while (json_next(j, '}', &first)) {
        if (t->count == r->room) {
            gfaas_tensor *p = grown(t->list, &r->room, sizeof *p);
            if (!p)
                return json_fail(j, "out of memory");
            t->list = p;
        }
        gfaas_tensor *one = &t->list[t->count];
        memset(one, 0, sizeof *one);
        if (!json_key(j, &one->name) || !read_tensor(j, r, one))
            return false;
        t->count++;
    }
    return !j->why;
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp((*(const gfaas_tensor *const *)a)->name, (*(const gfaas_tensor *const *)b)->name);
}

/* Sets the pointers and sorts the tensors by name, after all arrays have their final addresses. */
static bool finish(struct tensors *t)
{
    const int64_t *shape = t->shapes;
    t->by_name = malloc((t->count + 1) * sizeof *t->by_name);
    if (!t->by_name)
        return false;
    for (size_t i = 0; i < t->count; i++) {
        t->list[i].shape = shape;
        shape += t->list[i].ndim;
        t->by_name[i] = &t->list[i];
    }
    qsort(t->by_name, t->count, sizeof *t->by_name, compare_tensors);
    return true;
}

int manifest_read(const char *json, size_t n, uint64_t size, struct tensors *t)
{
    struct reading r = {.t = t, .size = size};
    const char *key;
    bool first = true;
    *t = (struct tensors){.text = malloc(n + 1)};
    struct json j = {json, json + n, t->text, t->text ? NULL : "out of memory", 0};
    for (bool in = json_enter(&j, '{'); in && json_next(&j, '}', &first);) {
        if (!json_key(&j, &key))
            break;
        if (!strcmp(key, "tensors") && !t->list)
            read_tensors(&j, &r);
        else
            json_skip(&j);
    }
    if (json_end(&j) && !finish(t))
        json_fail(&j, "out of memory");
    if (!j.why)
        return GFAAS_MODEL_OK;
    tensors_free(t);
    return model_fail(GFAAS_MODEL_INTERNAL, "cannot read the daemon's list of tensors, at byte %zu: %s", (size_t)(j.at - json), j.why);
}

/* The manifest must be sealed against shrinking, since a read beyond its end would end the process. */
int manifest_map(int fd, uint64_t size, struct tensors *t)
{
    off_t n = lseek(fd, 0, SEEK_END);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_WRITE)) != (F_SEAL_SHRINK | F_SEAL_WRITE))
        return model_fail(GFAAS_MODEL_INTERNAL, "the daemon's list of tensors is not sealed");
    if (n <= 0 || n > MOST_BYTES)
        return model_fail(GFAAS_MODEL_INTERNAL, "the daemon's list of tensors is empty or too long");
    const char *p = mmap(NULL, (size_t)n, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return model_fail(GFAAS_MODEL_INTERNAL, "out of memory for the list of tensors");
    int code = manifest_read(p, (size_t)n, size, t);
    munmap((void *)(uintptr_t)p, (size_t)n);
    return code;
}

const gfaas_tensor *tensors_find(const struct tensors *t, const char *name)
{
    const gfaas_tensor wanted = {.name = name}, *key = &wanted;
    const gfaas_tensor **found = bsearch(&key, t->by_name, t->count, sizeof *t->by_name, compare_tensors);
    return found ? *found : NULL;
}

void tensors_free(struct tensors *t)
{
    free(t->list);
    free(t->by_name);
    free(t->shapes);
    free(t->text);
    *t = (struct tensors){0};
}
