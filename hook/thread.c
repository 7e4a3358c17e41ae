/* thread.c: the threads that send work, and each one's lines for the streams it uses. */
#include "thread.h"

#include "clock.h"
#include "device.h"

#define STUCK_NS 10000000000u

__thread struct gf_thread gf_self GF_TLS;

static pthread_mutex_t threads_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gf_thread *threads;

void gf_thread_forget(struct gf_thread *thread)
{
    for (unsigned i = 0; i < GF_LINES; i++)
        gf_store(&thread->line[i].stream, NULL);
}

int64_t gf_lines_left(const struct gf_stream *entry)
{
    int64_t sum = 0;
    pthread_mutex_lock(&threads_lock);
    for (struct gf_thread *t = threads; t; t = t->next)
        for (unsigned i = 0; i < GF_CACHED; i++) {
            const struct gf_line *line = &t->line[i];
            if (gf_load(&line->stream) == entry->stream && gf_load(&line->entry) == entry && gf_load(&line->lease) == entry->lease)
                sum += gf_load(&line->until) - gf_load(&line->launches);
        }
    pthread_mutex_unlock(&threads_lock);
    return sum;
}

/* A thread that is setting its line at this moment may undo this. It checks the entry itself
 * afterwards (gf_enter_slow). */
void gf_forget_all(void)
{
    pthread_mutex_lock(&threads_lock);
    for (struct gf_thread *t = threads; t; t = t->next)
        gf_thread_forget(t);
    pthread_mutex_unlock(&threads_lock);
}

void gf_forget_entry(const struct gf_stream *entry)
{
    pthread_mutex_lock(&threads_lock);
    for (struct gf_thread *t = threads; t; t = t->next) {
        struct gf_line *line = &t->line[gf_line_index(entry->stream)];
        if (gf_load(&line->entry) == entry)
            gf_store(&line->stream, NULL);
    }
    pthread_mutex_unlock(&threads_lock);
}

/* Adds a line's count to the thread's. The list is locked, so that a sum over both includes the
 * count exactly once. */
static void merge_count(struct gf_thread *self, struct gf_line *line)
{
    if (line->launches)
        self->counts[gf_ordinal(line->device)].launches += (uint64_t)line->launches;
    line->launches = 0;
}

void gf_line_set_device(struct gf_line *line, struct gf_device *device)
{
    pthread_mutex_lock(&threads_lock);
    merge_count(&gf_self, line);
    gf_store(&line->device, device);
    pthread_mutex_unlock(&threads_lock);
}

void gf_thread_add(struct gf_thread *self)
{
    pthread_mutex_lock(&threads_lock);
    self->next = threads;
    threads = self;
    self->known = true;
    pthread_mutex_unlock(&threads_lock);
}

void gf_thread_remove(struct gf_thread *self)
{
    pthread_mutex_lock(&threads_lock);
    for (struct gf_thread **at = &threads; *at; at = &(*at)->next)
        if (*at == self) {
            *at = self->next;
            break;
        }
    for (unsigned i = 0; i < GF_CACHED; i++)
        merge_count(self, &self->line[i]);
    for (gf_each_device(d)) {
        struct gf_counts *own = &self->counts[gf_ordinal(d)];
        d->dead.launches += own->launches;
        d->dead.copies += own->copies;
        *own = (struct gf_counts){0};
    }
    self->known = false;
    pthread_mutex_unlock(&threads_lock);
}

bool gf_stuck(uint64_t *since)
{
    bool waits = false;
    for (gf_each_device(d))
        waits |= __atomic_load_n(&d->waiting, __ATOMIC_SEQ_CST) > 0;
    uint64_t now = gf_now_ns();
    if (!waits)
        *since = now;
    return now - *since > STUCK_NS;
}

static bool busy(struct gf_thread *t, struct gf_device *device)
{
    bool busy = __atomic_load_n(&t->in_multi_device_call, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < GF_LINES; i++)
        busy |= __atomic_load_n(&t->line[i].busy, __ATOMIC_ACQUIRE) && gf_load(&t->line[i].device) == device;
    return busy;
}

unsigned gf_busy(struct gf_device *device)
{
    unsigned count = 0;
    pthread_mutex_lock(&threads_lock);
    for (struct gf_thread *t = threads; t; t = t->next)
        count += busy(t, device);
    pthread_mutex_unlock(&threads_lock);
    return count;
}

struct gf_counts gf_count_all(struct gf_device *device)
{
    pthread_mutex_lock(&threads_lock);
    struct gf_counts sum = device->dead;
    for (struct gf_thread *t = threads; t; t = t->next) {
        sum.launches += gf_load(&t->counts[gf_ordinal(device)].launches);
        sum.copies += gf_load(&t->counts[gf_ordinal(device)].copies);
        for (unsigned i = 0; i < GF_CACHED; i++)
            if (gf_load(&t->line[i].device) == device)
                sum.launches += (uint64_t)gf_load(&t->line[i].launches);
    }
    pthread_mutex_unlock(&threads_lock);
    return sum;
}

void gf_thread_fork_child(void)
{
    pthread_mutex_init(&threads_lock, NULL);
    threads = NULL;
    gf_self = (struct gf_thread){0};
}
