/* store.c: the functions of gfaas_model.h that store a model (gfaas_store). */
#include "model.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE ((uint64_t)256 << 20) /* bytes copied between two requests "touch"; about 30 ms at 10 GB/s */

struct gfaas_store {
    gfaas_model *model;   /* NULL: it was committed */
    pthread_mutex_t lock; /* of the connection */
    bool failed;          /* a commit has failed; no other can succeed */
    bool *written;        /* of each tensor of the model */
    char name[];
};

/* Requests memory from the daemon and maps it. */
static int map_store(gfaas_model *m, const char *name, int manifest, uint64_t size, const gfaas_store_options *o)
{
    struct answer a;
    int code = connection_open(&m->connection);
    if (code)
        return code;
    code = daemon_store(m->connection.sock, name, size, o->timeout_ms, o->everyone != 0, manifest, &a);
    if (code == GFAAS_MODEL_INVALID_FILE)
        code = GFAAS_MODEL_USAGE; /* the manifest was made from the caller's arguments */
    if (!code) {
        code = model_map(m, &a, true);
        answer_close(&a);
    }
    if (code)
        connection_close(&m->connection);
    return code;
}

static int open_store(gfaas_store *s, int manifest, uint64_t size, const gfaas_store_options *o)
{
    s->model = calloc(1, sizeof *s->model);
    if (!s->model)
        return model_fail(GFAAS_MODEL_INTERNAL, "out of memory");
    int code = map_store(s->model, s->name, manifest, size, o);
    if (code) {
        free(s->model);
        return code;
    }
    s->written = calloc(s->model->tensors.count + 1, sizeof *s->written);
    if (s->written)
        return GFAAS_MODEL_OK;
    gfaas_model_close(s->model);
    return model_fail(GFAAS_MODEL_INTERNAL, "out of memory");
}

static int check_options(const gfaas_store_options *o)
{
    for (size_t i = 0; i < sizeof o->reserved / sizeof *o->reserved; i++)
        if (o->reserved[i])
            return model_fail(GFAAS_MODEL_USAGE, "gfaas_model_store: a reserved field of the options is not 0");
    if (o->timeout_ms < 0)
        return model_fail(GFAAS_MODEL_USAGE, "gfaas_model_store: timeout_ms is negative");
    return GFAAS_MODEL_OK;
}

PUBLIC int gfaas_model_store(const char *name, const gfaas_tensor *tensors, size_t count, const gfaas_store_options *options, gfaas_store **out)
{
    static const gfaas_store_options defaults;
    const gfaas_store_options *o = options ? options : &defaults;
    uint64_t size;
    int manifest, code;
    if (!out || (count && !tensors))
        return model_fail(GFAAS_MODEL_USAGE, "gfaas_model_store: an argument is NULL");
    *out = NULL;
    if ((code = model_check_name(name)) || (code = check_options(o)) || (code = layout_make(tensors, count, o->metadata, &manifest, &size)))
        return code;
    gfaas_store *s = calloc(1, sizeof *s + strlen(name) + 1);
    if (s) {
        strcpy(s->name, name);
        pthread_mutex_init(&s->lock, NULL);
        code = open_store(s, manifest, size, o);
    } else {
        code = model_fail(GFAAS_MODEL_INTERNAL, "out of memory");
    }
    close(manifest);
    if (code)
        free(s);
    else
        *out = s;
    return code;
}

/* Checks that the store can be written and committed. */
static int check_open(const gfaas_store *s, const char *what)
{
    if (!s)
        return model_fail(GFAAS_MODEL_USAGE, "%s: the store is NULL", what);
    if (!s->model)
        return model_fail(GFAAS_MODEL_USAGE, "%s: the store of model %s was committed", what, s->name);
    if (!connection_here(&s->model->connection))
        return model_fail(GFAAS_MODEL_USAGE, "%s: the store of model %s belongs to the parent process", what, s->name);
    if (s->failed)
        return model_fail(GFAAS_MODEL_USAGE, "%s: the commit of model %s has failed", what, s->name);
    return GFAAS_MODEL_OK;
}

/* Sends the request "touch" or "commit" for the store, and waits for the answer. */
static int tell(gfaas_store *s, const char *op)
{
    const struct connection *c = &s->model->connection;
    if (!gf_still(c->sock, c->is)) /* the program has closed all descriptors */
        return model_fail(GFAAS_MODEL_NO_DAEMON, "the connection to gfaas-modeld that stores model %s was closed", s->name);
    pthread_mutex_lock(&s->lock);
    int code = daemon_tell(c->sock, op, s->name);
    pthread_mutex_unlock(&s->lock);
    return code;
}

static int find(const gfaas_store *s, const char *name, const gfaas_tensor **t)
{
    *t = tensors_find(&s->model->tensors, name);
    return *t ? GFAAS_MODEL_OK : model_fail(GFAAS_MODEL_ABSENT, "model %s has no tensor %.300s", s->name, name);
}

static void set_written(gfaas_store *s, const gfaas_tensor *t)
{
    __atomic_store_n(&s->written[t - s->model->tensors.list], true, __ATOMIC_RELAXED);
}

PUBLIC int gfaas_store_put(gfaas_store *s, const char *name, const void *data, uint64_t bytes)
{
    const gfaas_tensor *t;
    int code = check_open(s, "gfaas_store_put");
    if (!code && (!name || (!data && bytes)))
        code = model_fail(GFAAS_MODEL_USAGE, "gfaas_store_put: an argument is NULL");
    if (code || (code = find(s, name, &t)))
        return code;
    if (bytes != t->bytes)
        return model_fail(GFAAS_MODEL_USAGE, "tensor %.300s has %llu bytes, got %llu", name, (unsigned long long)t->bytes, (unsigned long long)bytes);
    for (uint64_t at = 0; !code && at < bytes; at += PIECE) {
        code = tell(s, "touch");
        if (!code)
            code = mapping_copy(&s->model->mapping, t->ptr + at, (const char *)data + at, bytes - at < PIECE ? bytes - at : PIECE);
    }
    if (!code)
        set_written(s, t);
    return code;
}

PUBLIC int gfaas_store_find(gfaas_store *s, const char *name, gfaas_tensor *out)
{
    const gfaas_tensor *t;
    int code = check_open(s, "gfaas_store_find");
    if (!code && (!name || !out))
        code = model_fail(GFAAS_MODEL_USAGE, "gfaas_store_find: an argument is NULL");
    if (code || (code = find(s, name, &t)))
        return code;
    set_written(s, t);
    *out = *t;
    return GFAAS_MODEL_OK;
}

PUBLIC int gfaas_store_touch(gfaas_store *s)
{
    int code = check_open(s, "gfaas_store_touch");
    return code ? code : tell(s, "touch");
}

static int check_written(const gfaas_store *s)
{
    const struct tensors *t = &s->model->tensors;
    for (size_t i = 0; i < t->count; i++)
        if (t->list[i].bytes && !s->written[i])
            return model_fail(GFAAS_MODEL_USAGE, "cannot commit model %s: tensor %.300s was not written", s->name, t->list[i].name);
    return GFAAS_MODEL_OK;
}

PUBLIC int gfaas_store_commit(gfaas_store *s, gfaas_model **out)
{
    if (out)
        *out = NULL;
    int code = check_open(s, "gfaas_store_commit");
    if (code || (code = check_written(s)))
        return code;
    code = mapping_seal(&s->model->mapping);
    if (!code)
        code = tell(s, "commit");
    s->failed = code != GFAAS_MODEL_OK;
    if (code)
        return code;
    if (out)
        *out = s->model;
    else
        gfaas_model_close(s->model);
    s->model = NULL;
    return GFAAS_MODEL_OK;
}

PUBLIC void gfaas_store_close(gfaas_store *s)
{
    if (!s)
        return;
    gfaas_model_close(s->model);
    pthread_mutex_destroy(&s->lock);
    free(s->written);
    free(s);
}
