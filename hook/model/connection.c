/* connection.c: connections to gfaas-modeld, which end in forked children. */
#include "model.h"

#include <pthread.h>

/* A child closes its copies of the parent's connections, which would otherwise keep a model as long as the child
 * lives. It cannot use the parent's mappings, either. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct connection *connections;
static bool forks_seen;

static void before_fork(void) { pthread_mutex_lock(&lock); }

static void in_parent(void) { pthread_mutex_unlock(&lock); }

static void in_child(void)
{
    for (struct connection *c = connections; c; c = c->next) {
        gf_close_own(c->sock, c->is);
        c->sock = -1;
    }
    connections = NULL;
    pthread_mutex_init(&lock, NULL);
}

static bool list_add(struct connection *c)
{
    pthread_mutex_lock(&lock);
    if (!forks_seen)
        forks_seen = pthread_atfork(before_fork, in_parent, in_child) == 0;
    c->next = connections;
    if (forks_seen)
        connections = c;
    pthread_mutex_unlock(&lock);
    return forks_seen;
}

static void list_del(const struct connection *c)
{
    pthread_mutex_lock(&lock);
    for (struct connection **at = &connections; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    pthread_mutex_unlock(&lock);
}

int connection_open(struct connection *c)
{
    int code = daemon_connect(&c->sock, &c->is);
    if (code)
        return code;
    if (list_add(c)) /* before the first request, which may take long */
        return GFAAS_MODEL_OK;
    gf_close_own(c->sock, c->is);
    return model_fail(GFAAS_MODEL_INTERNAL, "out of memory");
}

bool connection_here(const struct connection *c) { return c->sock >= 0; }

void connection_close(struct connection *c)
{
    list_del(c);
    gf_close_own(c->sock, c->is);
}
