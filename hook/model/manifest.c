/* manifest.c: which tensors a model has, and where in its allocation. */
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

#define MOST_BYTES ((off_t)1 << 30) /* of a manifest: headers have at most 100 MB */

static const struct {
    const char *name;
    uint64_t bytes;
} dtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},   {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
    {"BF16", 2}, {"U32", 4}, {"I32", 4},  {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8},
};

/* A list that grows. */
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
                return json_fail(j, "no memory");
            r->t->shapes = p;
        }
        if (!json_integer(j, &n))
            return false;
        r->t->shapes[r->shapes++] = (int64_t)n;
        t->ndim++;
    }
    return !j->why;
}

/* Whether shape and dtype make that many bytes. A dtype that is not known here is
 * for the program to know. */
static bool fits(const gfaas_tensor *t, const int64_t *shape)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(t->dtype, dtypes[i].name))
            bytes = dtypes[i].bytes;
    if (!bytes)
        return true;
    for (int32_t i = 0; i < t->ndim; i++)
        if (__builtin_mul_overflow(bytes, (uint64_t)shape[i], &bytes))
            return false;
    return bytes == t->bytes;
}

/* One tensor, its name being read. The shape is the last ndim of those read. */
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
        return json_fail(j, "a tensor lies beyond the allocation");
    return fits(t, r->t->shapes + shape) || json_fail(j, "a tensor's bytes are not those of its shape");
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
                return json_fail(j, "no memory");
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

static int by_name(const void *a, const void *b, void *list)
{
    const gfaas_tensor *t = list;
    return strcmp(t[*(const size_t *)a].name, t[*(const size_t *)b].name);
}

/* What can be said once all is read, and nothing moves any more. */
static bool finish(struct tensors *t)
{
    const int64_t *shape = t->shapes;
    t->by_name = malloc((t->count + 1) * sizeof *t->by_name);
    if (!t->by_name)
        return false;
    for (size_t i = 0; i < t->count; i++) {
        t->list[i].shape = shape;
        shape += t->list[i].ndim;
        t->by_name[i] = i;
    }
    qsort_r(t->by_name, t->count, sizeof *t->by_name, by_name, t->list);
    return true;
}

int manifest_read(const char *json, size_t n, uint64_t size, struct tensors *t)
{
    struct reading r = {.t = t, .size = size};
    const char *key;
    bool first = true;
    *t = (struct tensors){.text = malloc(n + 1)};
    struct json j = {json, json + n, t->text, t->text ? NULL : "no memory", 0};
    for (bool in = json_enter(&j, '{'); in && json_next(&j, '}', &first);) {
        if (!json_key(&j, &key))
            break;
        if (!strcmp(key, "tensors") && !t->list)
            read_tensors(&j, &r);
        else
            json_skip(&j);
    }
    if (json_end(&j) && !finish(t))
        json_fail(&j, "no memory");
    if (!j.why)
        return GFAAS_MODEL_OK;
    tensors_free(t);
    return model_fail(GFAAS_MODEL_INTERNAL, "the daemon's list of tensors, at byte %zu: %s", (size_t)(j.at - json), j.why);
}

/* The manifest can only be mapped safely if nobody can make it shorter. */
int manifest_map(int fd, uint64_t size, struct tensors *t)
{
    off_t n = lseek(fd, 0, SEEK_END);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_WRITE)) != (F_SEAL_SHRINK | F_SEAL_WRITE))
        return model_fail(GFAAS_MODEL_INTERNAL, "the daemon's list of tensors is not sealed");
    if (n <= 0 || n > MOST_BYTES)
        return model_fail(GFAAS_MODEL_INTERNAL, "the daemon's list of tensors is empty, or too long");
    const char *p = mmap(NULL, (size_t)n, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return model_fail(GFAAS_MODEL_INTERNAL, "no memory for the list of tensors");
    int code = manifest_read(p, (size_t)n, size, t);
    munmap((void *)(uintptr_t)p, (size_t)n);
    return code;
}

const gfaas_tensor *tensors_find(const struct tensors *t, const char *name)
{
    size_t low = 0, high = t->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const gfaas_tensor *one = &t->list[t->by_name[middle]];
        int order = strcmp(name, one->name);
        if (!order)
            return one;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

void tensors_free(struct tensors *t)
{
    free(t->list);
    free(t->by_name);
    free(t->shapes);
    free(t->text);
    *t = (struct tensors){0};
}
