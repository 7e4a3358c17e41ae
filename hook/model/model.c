/* model.c: the functions of gfaas_model.h. */
#include "model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_NAME 255

static __thread char error[512];

int model_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error, sizeof error, format, args);
    va_end(args);
    return code;
}

/* ---- opening ---- */

int model_check_name(const char *name)
{
    size_t n = name ? strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/-") : 0;
    if (n && n <= MOST_NAME && !name[n] && !strchr("._/-", name[0]))
        return GFAAS_MODEL_OK;
    return model_fail(GFAAS_MODEL_USAGE, "invalid model name %.300s: expected at most 255 letters, digits, '.', '_', '/' or '-', starting with a letter or digit", name ? name : "NULL");
}

/* Requests the model from the daemon, with the open file. The daemon checks that it is a regular file. If it cannot be
 * opened, that is an error only if the daemon does not have the model. */
static int ask(int sock, const char *name, const char *file, struct answer *a)
{
    const int how = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK; /* a pipe would wait for a writer */
    int fd = file ? open(file, how) : -1, why = errno;
    int code = daemon_get(sock, name, fd, a);
    if (fd >= 0)
        close(fd);
    else if (file && code == GFAAS_MODEL_ABSENT)
        model_fail(code, "model %s is not loaded, and cannot be loaded from %s: %s", name, file, strerror(why));
    return code;
}

int model_map(struct gfaas_model *m, const struct answer *a, bool writable)
{
    memcpy(m->sha256, a->sha256, sizeof m->sha256);
    int code = manifest_map(a->manifest, a->size, &m->tensors);
    if (!code && (code = mapping_make(&m->mapping, a->memory, a->size, a->gpu, writable)))
        tensors_free(&m->tensors);
    for (size_t i = 0; !code && i < m->tensors.count; i++)
        m->tensors.list[i].ptr += m->mapping.base;
    return code;
}

static int open_model(struct gfaas_model *m, const char *name, const char *file)
{
    struct answer a;
    int code = connection_open(&m->connection);
    if (code)
        return code;
    code = ask(m->connection.sock, name, file, &a);
    if (!code) {
        code = model_map(m, &a, false);
        answer_close(&a);
    }
    if (code)
        connection_close(&m->connection);
    return code;
}

PUBLIC int gfaas_model_open(const char *name, const char *file, gfaas_model **out)
{
    if (!out)
        return model_fail(GFAAS_MODEL_USAGE, "gfaas_model_open: out is NULL");
    *out = NULL;
    int code = model_check_name(name);
    if (code)
        return code;
    struct gfaas_model *m = calloc(1, sizeof *m);
    if (!m)
        return model_fail(GFAAS_MODEL_INTERNAL, "out of memory");
    code = open_model(m, name, file);
    if (code)
        free(m);
    else
        *out = m;
    return code;
}

PUBLIC void gfaas_model_close(gfaas_model *m)
{
    if (!m)
        return;
    if (connection_here(&m->connection)) {
        mapping_free(&m->mapping);
        connection_close(&m->connection);
    }
    tensors_free(&m->tensors);
    free(m);
}

/* ---- tensors ---- */

PUBLIC size_t gfaas_model_count(const gfaas_model *m) { return m ? m->tensors.count : 0; }

PUBLIC int gfaas_model_tensor(const gfaas_model *m, size_t i, gfaas_tensor *out)
{
    if (!m || !out || i >= m->tensors.count)
        return model_fail(GFAAS_MODEL_USAGE, "gfaas_model_tensor: there is no tensor %zu, or an argument is NULL", i);
    *out = m->tensors.list[i];
    return GFAAS_MODEL_OK;
}

PUBLIC int gfaas_model_find(const gfaas_model *m, const char *name, gfaas_tensor *out)
{
    if (!m || !name || !out)
        return model_fail(GFAAS_MODEL_USAGE, "gfaas_model_find: an argument is NULL");
    const gfaas_tensor *t = tensors_find(&m->tensors, name);
    if (!t)
        return model_fail(GFAAS_MODEL_ABSENT, "the model has no tensor %.300s", name);
    *out = *t;
    return GFAAS_MODEL_OK;
}

PUBLIC const char *gfaas_model_sha256(const gfaas_model *m) { return m ? m->sha256 : ""; }

PUBLIC const char *gfaas_model_error(void) { return error; }
