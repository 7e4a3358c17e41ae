/* turns.c: compares the arithmetic with which processes share a device (sched.c) with a simulation
 * of the same pattern in small steps. */
#include "../sched.c"

#include <stdio.h>
#include <stdlib.h>

#define SLOTS 9
#define STEP 50000ull /* in ns: 20 steps per time slice */

struct config g_config;

/* Adds to had[] the time that each busy slot gets within dt, computed step by step. */
static void slow_way(const struct sched *s, uint64_t dt, double had[])
{
    struct sched now = *s;
    uint64_t left = SIM_TIMESLICE_NS - now.phase;
    for (uint64_t t = 0; t < dt; t += STEP) {
        for (unsigned i = 0; i < SLOTS; i++) {
            unsigned id = now.slot[i].share ? SIM_GROUP : i;
            if (now.slot[i].busy && now.order[0] == id)
                had[i] += now.slot[i].share && now.sum > SIM_FULL ? (double)STEP * SIM_FULL / now.sum : (double)STEP;
        }
        left -= STEP;
        if (!left) {
            uint16_t first = now.order[0];
            memmove(now.order, now.order + 1, (now.n - 1) * sizeof *now.order);
            now.order[now.n - 1] = first;
            left = SIM_TIMESLICE_NS;
        }
    }
}

static bool agree(struct shared *sh, uint64_t dt)
{
    struct sched *s = &sh->sched[sh->gen & 1], moved = *s;
    double had[SLOTS] = {0};
    slow_way(s, dt, had);
    advance(&moved, s->epoch + dt);
    for (unsigned i = 0; i < SLOTS; i++) {
        if (!s->slot[i].busy)
            continue;
        struct device d = {.sh = sh, .slot = (int)i};
        uint64_t p = sched_progress(&d, s->epoch + dt), want = s->slot[i].progress + (uint64_t)had[i];
        uint64_t target = s->slot[i].progress + (uint64_t)rand() % 5000000 + 1, when = sched_when(&d, target);
        if (p + 100 < want || p > want + 100 || moved.slot[i].progress != p)
            return false;
        if (sched_progress(&d, when) < target || sched_progress(&d, when - 1) >= target)
            return false;
    }
    return true;
}

int main(void)
{
    static struct shared sh;
    unsigned busy = 0, failed = 0, checked = 0;
    srand(1);
    sh.sched[0].top = SLOTS;
    for (unsigned i = 0; i < SLOTS; i++)
        sh.sched[0].slot[i].share = i % 3 ? (unsigned)(rand() % 100 + 1) * (SIM_FULL / 100) : 0;
    for (int round = 0; round < 3000; round++) {
        struct sched *s = &sh.sched[0];
        unsigned i = (unsigned)rand() % SLOTS;
        advance(s, s->epoch + (uint64_t)(rand() % 100) * STEP);
        busy += s->slot[i].busy ? -1u : 1u;
        set_busy(s, i, !s->slot[i].busy);
        sh.gen += 2;
        if (!busy)
            continue;
        checked++;
        if (!agree(&sh, (uint64_t)(rand() % 400) * STEP)) {
            printf("not ok %d - round %d, %u busy\n", ++failed, round, busy);
        }
    }
    printf("ok 1 - %u patterns\n1..1\n", checked);
    return failed || checked < 1000;
}

bool shared_lock(struct device *d)
{
    (void)d;
    return true;
}

void shared_unlock(struct device *d)
{
    (void)d;
}
