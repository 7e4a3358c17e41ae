/* layout.c: the tensors of a model that is to be stored: their offsets in its memory, and the manifest for
 * gfaas-modeld. */
#include "model.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALIGNMENT 256

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1
#endif

/* A text that grows. */
struct text {
    char *at;
    size_t n, room;
    bool failed; /* out of memory */
};

static void append(struct text *t, const char *bytes, size_t n)
{
    if (t->n + n > t->room && !t->failed) {
        size_t room = 2 * (t->n + n) + 4096;
        char *more = realloc(t->at, room);
        t->failed = !more;
        if (more) {
            t->at = more;
            t->room = room;
        }
    }
    if (t->failed)
        return;
    memcpy(t->at + t->n, bytes, n);
    t->n += n;
}

/* Appends a text of at most 100 bytes. */
static void __attribute__((format(printf, 2, 3))) print(struct text *t, const char *format, ...)
{
    char some[128];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(some, sizeof some, format, args);
    va_end(args);
    append(t, some, (size_t)n);
}

static void quote(struct text *t, const char *s)
{
    append(t, "\"", 1);
    for (const char *c = s; *c; c++)
        if (*c == '"' || *c == '\\')
            append(t, (char[]){'\\', *c}, 2);
        else if ((unsigned char)*c < ' ')
            print(t, "\\u%04x", (unsigned)*c);
        else
            append(t, c, 1);
    append(t, "\"", 1);
}

/* Computes the bytes of a tensor from its dtype and its shape. */
static int measure(const gfaas_tensor *t, uint64_t *bytes)
{
    if (!t->name || !t->dtype || t->ndim < 0 || (t->ndim && !t->shape))
        return model_fail(GFAAS_MODEL_USAGE, "cannot store tensor %.300s: it lacks name, dtype or shape", t->name ? t->name : "NULL");
    *bytes = dtype_bytes(t->dtype);
    if (!*bytes)
        return model_fail(GFAAS_MODEL_USAGE, "cannot store tensor %.300s: unknown dtype %.40s", t->name, t->dtype);
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(*bytes, (uint64_t)t->shape[i], bytes) || *bytes > INT64_MAX)
            return model_fail(GFAAS_MODEL_USAGE, "cannot store tensor %.300s: its shape is invalid or too large", t->name);
    return GFAAS_MODEL_OK;
}

static void write_tensor(struct text *text, const gfaas_tensor *t, uint64_t offset, uint64_t bytes)
{
    quote(text, t->name);
    print(text, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype);
    for (int32_t i = 0; i < t->ndim; i++)
        print(text, i ? ",%" PRId64 : "%" PRId64, t->shape[i]);
    print(text, "],\"offset\":%" PRIu64 ",\"bytes\":%" PRIu64 "}", offset, bytes);
}

/* Writes the tensors one after the other. Sets *size to the end of the last one, but at least 1. */
static int write_tensors(struct text *text, const gfaas_tensor *tensors, size_t count, uint64_t *size)
{
    uint64_t end = 0, bytes = 0;
    append(text, "{\"tensors\":{", 12);
    for (size_t i = 0; i < count; i++) {
        uint64_t offset = (end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        int code = measure(&tensors[i], &bytes);
        if (code)
            return code;
        if (bytes > INT64_MAX - ALIGNMENT - offset)
            return model_fail(GFAAS_MODEL_USAGE, "cannot store tensor %.300s: the model is too large", tensors[i].name);
        if (i)
            append(text, ",", 1);
        write_tensor(text, &tensors[i], offset, bytes);
        end = offset + bytes;
    }
    append(text, "}", 1);
    *size = end ? end : 1;
    return GFAAS_MODEL_OK;
}

static int write_metadata(struct text *text, const char *const *pairs)
{
    append(text, ",\"metadata\":{", 13);
    for (size_t i = 0; pairs && pairs[i]; i += 2) {
        if (!pairs[i + 1])
            return model_fail(GFAAS_MODEL_USAGE, "metadata %.300s has no value", pairs[i]);
        if (i)
            append(text, ",", 1);
        quote(text, pairs[i]);
        append(text, ":", 1);
        quote(text, pairs[i + 1]);
    }
    append(text, "}}", 2);
    return GFAAS_MODEL_OK;
}

/* Returns a new file with the text, or -1. */
static int file_of(const struct text *text)
{
    int fd = (int)syscall(SYS_memfd_create, "gfaas-store", MFD_CLOEXEC);
    for (size_t at = 0; fd >= 0 && at < text->n;) {
        ssize_t n = write(fd, text->at + at, text->n - at);
        if (n > 0) {
            at += (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            close(fd);
            return -1;
        }
    }
    return fd;
}

int layout_make(const gfaas_tensor *tensors, size_t count, const char *const *metadata, int *file, uint64_t *size)
{
    struct text text = {0};
    int code = write_tensors(&text, tensors, count, size);
    if (!code)
        code = write_metadata(&text, metadata);
    if (!code && text.failed)
        code = model_fail(GFAAS_MODEL_INTERNAL, "out of memory for the list of tensors");
    if (!code && (*file = file_of(&text)) < 0)
        code = model_fail(GFAAS_MODEL_INTERNAL, "cannot write the list of tensors: %s", strerror(errno));
    free(text.at);
    return code;
}
