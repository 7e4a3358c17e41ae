/* frame.c: messages exchanged with the daemon. If the daemon is gone, the process ends. */
#include "executor.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const void *get_bytes(struct reader *r, size_t n)
{
    if (r->bad || (size_t)(r->end - r->at) < n) {
        r->bad = true;
        return NULL;
    }
    const void *at = r->at;
    r->at += n;
    return at;
}

static void get(struct reader *r, void *v, size_t n)
{
    const void *at = get_bytes(r, n);
    if (at)
        memcpy(v, at, n);
}

uint32_t get32(struct reader *r)
{
    uint32_t v = 0;
    get(r, &v, sizeof v);
    return v;
}

uint64_t get64(struct reader *r)
{
    uint64_t v = 0;
    get(r, &v, sizeof v);
    return v;
}

static void put(struct writer *w, const void *data, size_t n)
{
    if (n > sizeof w->data - w->len)
        abort(); /* MAX_TEXT bounds all data */
    memcpy(w->data + w->len, data, n);
    w->len += n;
}

void put32(struct writer *w, uint32_t v) { put(w, &v, sizeof v); }
void put64(struct writer *w, uint64_t v) { put(w, &v, sizeof v); }

void put_text(struct writer *w, const char *s)
{
    size_t n = strnlen(s, MAX_TEXT - 1);
    put32(w, (uint32_t)n);
    put(w, s, n);
}

/* Sends header and data in one write, so that the daemon wakes once. */
void message_send(uint32_t kind, struct writer *w)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    unsigned char out[sizeof w->data + 8];
    uint32_t len = (uint32_t)w->len;
    memcpy(out, &len, 4);
    memcpy(out + 4, &kind, 4);
    memcpy(out + 8, w->data, w->len);
    pthread_mutex_lock(&lock);
    for (size_t done = 0; done < w->len + 8;) {
        ssize_t n = write(ANSWERS, out + done, w->len + 8 - done);
        if (n < 0 && errno != EINTR)
            _exit(0);
        done += n > 0 ? (size_t)n : 0;
    }
    pthread_mutex_unlock(&lock);
    w->len = 0;
}

/* Reads the next message; its data is valid until the next call. Returns false if the daemon has closed the pipe. */
bool message_receive(uint32_t *kind, struct reader *r)
{
    static unsigned char *buf;
    static size_t room, have, used;
    memmove(buf, buf + used, have -= used);
    used = 0;
    for (;;) {
        uint32_t len = 0;
        if (have >= 8) {
            memcpy(&len, buf, 4);
            if (len > MAX_MESSAGE)
                abort();
            if (have >= 8 + (size_t)len) {
                memcpy(kind, buf + 4, 4);
                *r = (struct reader){.at = buf + 8, .end = buf + 8 + len};
                used = 8 + (size_t)len;
                return true;
            }
        }
        size_t want = 8 + (size_t)len < 65536 ? 65536 : 8 + (size_t)len;
        if (want > room) {
            unsigned char *more = realloc(buf, want);
            if (!more)
                abort();
            buf = more;
            room = want;
        }
        ssize_t n = read(JOBS, buf + have, room - have);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        have += n > 0 ? (size_t)n : 0;
    }
}
