/* visible.c: which of the instance's GPUs a device is.
 *
 * The daemon knows an instance's GPUs by their places in GFAAS_DEVICES. The driver
 * shows those that CUDA_VISIBLE_DEVICES names, and programs put lists of their own
 * there, in every spelling that the driver accepts: numbers, whole UUIDs, beginnings of
 * them. So a device is identified by its UUID, and the management library says which
 * UUID a number in GFAAS_DEVICES stands for. It is asked only where the list, or the
 * order in which the driver counts, is not the one that the instance was given.
 *
 * The driver ends its list at the first entry that names no GPU. Here a GPU that is none
 * of the instance's is such an entry: the program sees the devices before it, and with
 * none before it cuInit fails. Nothing waits for a GPU that is not the instance's. */
#include "visible.h"

#include "real.h"
#include "say.h"
#include "uuid.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define GIVEN "GFAAS_DEVICES"
#define VISIBLE "CUDA_VISIBLE_DEVICES"
#define ALL UINT_MAX
#define SHOWN 160 /* bytes of a list that a message has room for */

struct lists {
    char given[2048], visible[2048];
    bool by_bus; /* the driver counts GPUs as GFAAS_DEVICES does */
};

static struct lists read_last;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of it: held for copies only */
static uint32_t settled;
static unsigned reach = ALL; /* devices that the program sees; ALL: the driver's */
static unsigned places[GF_DEVICES];

static void copy(char *to, size_t size, const char *name)
{
    const char *value = getenv(name);
    snprintf(to, size, "%s", value ? value : "");
}

/* A program that has taken the variable out of its environment would see all GPUs of the
 * machine: it sees the instance's. */
void gf_visible_read(void)
{
    if (__atomic_load_n(&settled, __ATOMIC_ACQUIRE))
        return;
    pthread_mutex_lock(&lock);
    copy(read_last.given, sizeof read_last.given, GIVEN);
    if (*read_last.given)
        setenv(VISIBLE, read_last.given, 0);
    copy(read_last.visible, sizeof read_last.visible, VISIBLE);
    const char *order = getenv("CUDA_DEVICE_ORDER");
    read_last.by_bus = order && strcmp(order, "PCI_BUS_ID") == 0;
    pthread_mutex_unlock(&lock);
}

void gf_visible_fork_child(void)
{
    pthread_mutex_init(&lock, NULL);
    settled = 0;
    reach = ALL;
}

/* ---- lists ---- */

/* An entry of a list. */
struct entry {
    const char *text;
    size_t length;
    unsigned number; /* UINT_MAX: it is none */
};

static bool is_blank(char c) { return c == ' ' || c == '\t'; }

/* Cuts the entry off that a list begins with, and returns the rest; NULL: it was the
 * last. */
static const char *cut(const char *list, struct entry *e)
{
    size_t n = strcspn(list, ",");
    const char *rest = list[n] ? list + n + 1 : NULL;
    for (; n && is_blank(*list); n--)
        list++;
    while (n && is_blank(list[n - 1]))
        n--;
    *e = (struct entry){.text = list, .length = n, .number = UINT_MAX};
    if (n && n < 10 && strspn(list, "0123456789") >= n)
        e->number = (unsigned)strtoul(list, NULL, 10);
    return rest;
}

static unsigned cut_all(const char *list, struct entry into[GF_DEVICES])
{
    unsigned n = 0;
    while (list && n < GF_DEVICES)
        list = cut(list, &into[n++]);
    return n;
}

/* Whether an entry is a UUID of that kind, whole or in its beginning. The UUID may lack
 * its kind. */
static bool names(const struct entry *e, const char *kind, const char *uuid)
{
    size_t n = strlen(kind);
    if (strncasecmp(uuid, kind, n) == 0)
        uuid += n;
    return *uuid && e->length > n && strncasecmp(e->text, kind, n) == 0 && e->length - n <= strlen(uuid) &&
           strncasecmp(e->text + n, uuid, e->length - n) == 0;
}

unsigned gf_visible_find(const char *list, unsigned number, const char *uuid)
{
    struct entry e[GF_DEVICES];
    for (unsigned p = 0, n = cut_all(list, e); p < n; p++)
        if (e[p].number != UINT_MAX ? e[p].number == number : names(&e[p], "GPU-", uuid) || names(&e[p], "MIG-", uuid))
            return p;
    return GF_DEVICES;
}

/* ---- devices ---- */

typedef CUresult uuid_function(CUuuid *uuid, CUdevice device);

static void uuid_text(uuid_function *get, unsigned ordinal, char text[GF_UUID])
{
    CUuuid uuid;
    *text = 0;
    if (get(&uuid, (CUdevice)ordinal) != CUDA_SUCCESS)
        return;
    for (unsigned i = 0; i < sizeof uuid.bytes; i++)
        text += sprintf(text, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)uuid.bytes[i]);
}

/* The place of a device among those given, whose numbers stand for these UUIDs. Without
 * the UUIDs, numbers are compared with numbers. */
static unsigned place_of(unsigned ordinal, const struct entry *given, unsigned n, char (*uuids)[GF_UUID], const struct entry *visible)
{
    char own[GF_UUID], whole[GF_UUID]; /* of a MIG instance and its GPU; of a GPU they are the same */
    uuid_text(gf_real.cuDeviceGetUuid_v2, ordinal, own);
    uuid_text(gf_real.cuDeviceGetUuid, ordinal, whole);
    for (unsigned p = 0; p < n; p++) {
        const struct entry *e = &given[p];
        bool same;
        if (e->number == UINT_MAX)
            same = names(e, "MIG-", own) || names(e, "GPU-", own) || names(e, "GPU-", whole);
        else if (*uuids[p] && (*own || *whole))
            same = strcasecmp(uuids[p], own) == 0 || strcasecmp(uuids[p], whole) == 0;
        else
            same = e->number == visible->number;
        if (same)
            return p;
    }
    return GF_DEVICES;
}

/* Finds the places of the driver's devices, up to the first that has none, and returns
 * how many those are. */
static unsigned find(const struct lists *l, unsigned count, unsigned place[GF_DEVICES])
{
    struct entry given[GF_DEVICES], visible[GF_DEVICES] = {{0}};
    char uuids[GF_DEVICES][GF_UUID] = {{0}};
    unsigned numbers[GF_DEVICES], n = cut_all(l->given, given), seen;
    bool any = false;
    for (unsigned p = 0; p < n; p++) {
        numbers[p] = given[p].number;
        any |= numbers[p] != UINT_MAX;
    }
    bool same = strcmp(l->given, l->visible) == 0 && (l->by_bus || !any);
    if (!same && any)
        gf_uuids(numbers, n, uuids);
    cut_all(l->visible, visible);
    for (seen = 0; seen < count && seen < GF_DEVICES; seen++) {
        place[seen] = same ? seen : place_of(seen, given, n, uuids, &visible[seen]);
        if (place[seen] >= n)
            break;
    }
    return seen;
}

/* Threads that are here together find the same and store the same. A lock would
 * deadlock, since what is called takes the loader's (real.c). */
static CUresult settle(void)
{
    struct lists l;
    unsigned place[GF_DEVICES], seen = ALL;
    int count = 0;
    pthread_mutex_lock(&lock);
    l = read_last;
    pthread_mutex_unlock(&lock);
    if (*l.given && gf_real.cuDeviceGetCount(&count) == CUDA_SUCCESS)
        seen = find(&l, (unsigned)count, place);
    for (unsigned i = 0; seen != ALL && i < seen; i++)
        gf_store(&places[i], place[i]);
    gf_store(&reach, seen);
    __atomic_store_n(&settled, 1, __ATOMIC_RELEASE);
    if (seen && seen < (unsigned)count)
        gf_say(GF_SAY_VISIBLE, "device %u of " VISIBLE "=%.*s is none of the GPUs that this instance was given (%.*s): the program sees %u",
               seen, SHOWN, l.visible, SHOWN, l.given, seen);
    return seen ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult gf_visible_settle(CUresult initialised)
{
    if (initialised == CUDA_SUCCESS)
        initialised = __atomic_load_n(&settled, __ATOMIC_ACQUIRE) ? (gf_load(&reach) ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE) : settle();
    if (initialised == CUDA_ERROR_NO_DEVICE) {
        pthread_mutex_lock(&lock);
        struct lists l = read_last;
        pthread_mutex_unlock(&lock);
        if (*l.given)
            gf_say(GF_SAY_VISIBLE, VISIBLE "=%.*s shows none of the GPUs that this instance was given (%.*s): the program sees no GPU",
                   SHOWN, l.visible, SHOWN, l.given);
    }
    return initialised;
}

bool gf_visible_outside(CUdevice ordinal) { return (unsigned)ordinal >= gf_load(&reach) && ordinal >= 0; }

unsigned gf_visible_place(unsigned ordinal)
{
    gf_visible_read();
    if (!__atomic_load_n(&settled, __ATOMIC_ACQUIRE))
        settle(); /* the program has initialised the driver behind this library's back */
    unsigned seen = gf_load(&reach);
    return seen == ALL ? ordinal : ordinal < seen ? gf_load(&places[ordinal]) : GF_DEVICES;
}

/* ---- wrappers ---- */

CUresult cuDeviceGetCount(int *count)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = gf_real.cuDeviceGetCount(count);
    unsigned seen = gf_load(&reach);
    if (result == CUDA_SUCCESS && *count >= 0 && (unsigned)*count > seen)
        *count = (int)seen;
    return result;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    if (!gf_boot())
        return CUDA_ERROR_NOT_INITIALIZED;
    return gf_visible_outside(ordinal) ? CUDA_ERROR_INVALID_DEVICE : gf_real.cuDeviceGet(device, ordinal);
}
