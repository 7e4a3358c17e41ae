/* model.c: the functions of gfaas_model.h. */
#include "model.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))
#define MOST_NAME 255

struct gfaas_model {
    struct gfaas_model *next; /* in the list of open models */
    int sock;                 /* the daemon keeps the model while it is open; -1: in a child */
    struct gf_inode is;       /* the identity of sock */
    char sha256[65];
    struct mapping mapping;
    struct tensors tensors;
};

static __thread char error[512];

int model_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error, sizeof error, format, args);
    va_end(args);
    return code;
}

/* ---- the models that are open or being opened ---- */

/* A child closes its copies of the parent's connections, which would otherwise keep a model as long as the child
 * lives. It cannot use the parent's mappings, either. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct gfaas_model *models;
static bool forks_seen;

static void before_fork(void) { pthread_mutex_lock(&lock); }

static void in_parent(void) { pthread_mutex_unlock(&lock); }

static void in_child(void)
{
    for (struct gfaas_model *m = models; m; m = m->next) {
        gf_close_own(m->sock, m->is);
        m->sock = -1;
    }
    models = NULL;
    pthread_mutex_init(&lock, NULL);
}

static bool list_add(struct gfaas_model *m)
{
    pthread_mutex_lock(&lock);
    if (!forks_seen)
        forks_seen = pthread_atfork(before_fork, in_parent, in_child) == 0;
    m->next = models;
    if (forks_seen)
        models = m;
    pthread_mutex_unlock(&lock);
    return forks_seen;
}

static void list_del(const struct gfaas_model *m)
{
    pthread_mutex_lock(&lock);
    for (struct gfaas_model **at = &models; *at; at = &(*at)->next)
        if (*at == m) {
            *at = m->next;
            break;
        }
    pthread_mutex_unlock(&lock);
}

/* ---- opening ---- */

static bool good_name(const char *name)
{
    size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/-");
    return n && n <= MOST_NAME && !name[n] && !strchr("._/-", name[0]);
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

/* Maps the manifest and the memory of the daemon's answer. */
static int map_answer(struct gfaas_model *m, const struct answer *a)
{
    memcpy(m->sha256, a->sha256, sizeof m->sha256);
    int code = manifest_map(a->manifest, a->size, &m->tensors);
    if (!code && (code = mapping_make(&m->mapping, a->memory, a->size, a->gpu)))
        tensors_free(&m->tensors);
    for (size_t i = 0; !code && i < m->tensors.count; i++)
        m->tensors.list[i].ptr += m->mapping.base;
    return code;
}

static int open_model(struct gfaas_model *m, const char *name, const char *file)
{
    struct answer a;
    int code = daemon_connect(&m->sock, &m->is);
    if (code)
        return code;
    if (!list_add(m)) /* before the request, which may take long */
        code = model_fail(GFAAS_MODEL_INTERNAL, "out of memory");
    if (!code)
        code = ask(m->sock, name, file, &a);
    if (!code) {
        code = map_answer(m, &a);
        answer_close(&a);
    }
    if (code) {
        list_del(m);
        gf_close_own(m->sock, m->is);
    }
    return code;
}

PUBLIC int gfaas_model_open(const char *name, const char *file, gfaas_model **out)
{
    if (!out)
        return model_fail(GFAAS_MODEL_USAGE, "gfaas_model_open: out is NULL");
    *out = NULL;
    if (!name || !good_name(name))
        return model_fail(GFAAS_MODEL_USAGE, "invalid model name %.300s: expected at most 255 letters, digits, '.', '_', '/' or '-', starting with a letter or digit", name ? name : "NULL");
    struct gfaas_model *m = calloc(1, sizeof *m);
    if (!m)
        return model_fail(GFAAS_MODEL_INTERNAL, "out of memory");
    int code = open_model(m, name, file);
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
    if (m->sock >= 0) {
        list_del(m);
        mapping_free(&m->mapping);
        gf_close_own(m->sock, m->is);
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
