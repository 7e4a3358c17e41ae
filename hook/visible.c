/* visible.c: maps the program's devices to the instance's GPUs.
 *
 * The daemon knows an instance's GPUs by their positions in GFAAS_DEVICES. The driver shows the GPUs in
 * CUDA_VISIBLE_DEVICES. Programs set that variable too, in every form that the driver accepts: indexes,
 * UUIDs, and prefixes of UUIDs. So a device is identified by its UUID, and NVML translates an index in
 * GFAAS_DEVICES to a UUID. NVML is needed only if the list, or the driver's order of GPUs, differs from
 * what the instance was given.
 *
 * The driver ends its list at the first entry that names no GPU. This library treats a GPU that does not
 * belong to the instance as such an entry: the program sees the devices before it, and if there is none,
 * cuInit fails. So no work waits for a GPU that is not the instance's. */
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
#define SHOWN 160 /* longest part of a list in a message, in bytes */

struct lists {
    char given[2048], visible[2048];
    bool by_bus; /* the driver orders GPUs as GFAAS_DEVICES does */
};

static struct lists read_last;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects read_last; held for copies only */
static uint32_t resolved; /* seen_devices and places are set */
static unsigned seen_devices = ALL; /* number of devices that the program sees; ALL: all of the driver's */
static unsigned places[GF_DEVICES];

static void copy(char *to, size_t size, const char *name)
{
    const char *value = getenv(name);
    snprintf(to, size, "%s", value ? value : "");
}

/* If the program has removed CUDA_VISIBLE_DEVICES from its environment, it would see all GPUs of the
 * host, so the variable is set to the instance's GPUs. */
void gf_visible_read(void)
{
    if (__atomic_load_n(&resolved, __ATOMIC_ACQUIRE))
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
    resolved = 0;
    seen_devices = ALL;
}

/* ---- lists ---- */

/* An entry of a list. */
struct entry {
    const char *text;
    size_t length;
    unsigned number; /* UINT_MAX: not a number */
};

static bool is_blank(char c) { return c == ' ' || c == '\t'; }

/* Parses the first entry of a list and returns the rest, or NULL after the last entry. */
static const char *next_entry(const char *list, struct entry *e)
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

static unsigned parse_list(const char *list, struct entry into[GF_DEVICES])
{
    unsigned n = 0;
    while (list && n < GF_DEVICES)
        list = next_entry(list, &into[n++]);
    return n;
}

/* Reports whether an entry is a UUID of that kind ("GPU-", "MIG-"), or a prefix of one. `uuid` may lack
 * the kind. */
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
    for (unsigned p = 0, n = parse_list(list, e); p < n; p++)
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

/* Returns the position of a device in the given list, or GF_DEVICES. `uuids` are those of the list's
 * indexes; if they are unknown, indexes are compared. */
static unsigned place_of(unsigned ordinal, const struct entry *given, unsigned n, char (*uuids)[GF_UUID], const struct entry *visible)
{
    char own[GF_UUID], whole[GF_UUID]; /* of a MIG instance and of its GPU; equal for a whole GPU */
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

/* Finds the positions of the driver's devices, up to the first that has none, and returns the number of
 * devices found. */
static unsigned find(const struct lists *l, unsigned count, unsigned place[GF_DEVICES])
{
    struct entry given[GF_DEVICES], visible[GF_DEVICES] = {{0}};
    char uuids[GF_DEVICES][GF_UUID] = {{0}};
    unsigned numbers[GF_DEVICES], n = parse_list(l->given, given), seen;
    bool any = false;
    for (unsigned p = 0; p < n; p++) {
        numbers[p] = given[p].number;
        any |= numbers[p] != UINT_MAX;
    }
    bool same = strcmp(l->given, l->visible) == 0 && (l->by_bus || !any);
    if (!same && any)
        gf_uuids(numbers, n, uuids);
    parse_list(l->visible, visible);
    for (seen = 0; seen < count && seen < GF_DEVICES; seen++) {
        place[seen] = same ? seen : place_of(seen, given, n, uuids, &visible[seen]);
        if (place[seen] >= n)
            break;
    }
    return seen;
}

/* Threads that run this at the same time find and store the same values. It takes no lock, because the
 * functions that it calls take the loader's lock (real.c), which could deadlock. */
static CUresult resolve(void)
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
    gf_store(&seen_devices, seen);
    __atomic_store_n(&resolved, 1, __ATOMIC_RELEASE);
    if (seen && seen < (unsigned)count)
        gf_say(GF_SAY_VISIBLE, "device %u of " VISIBLE "=%.*s is not one of this instance's GPUs (%.*s): the program sees %u device(s)",
               seen, SHOWN, l.visible, SHOWN, l.given, seen);
    return seen ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult gf_visible_resolve(CUresult initialised)
{
    if (initialised == CUDA_SUCCESS)
        initialised = !__atomic_load_n(&resolved, __ATOMIC_ACQUIRE) ? resolve()
                      : gf_load(&seen_devices)                      ? CUDA_SUCCESS
                                                                    : CUDA_ERROR_NO_DEVICE;
    if (initialised == CUDA_ERROR_NO_DEVICE) {
        pthread_mutex_lock(&lock);
        struct lists l = read_last;
        pthread_mutex_unlock(&lock);
        if (*l.given)
            gf_say(GF_SAY_VISIBLE, VISIBLE "=%.*s contains none of this instance's GPUs (%.*s): the program sees no GPU",
                   SHOWN, l.visible, SHOWN, l.given);
    }
    return initialised;
}

bool gf_visible_known(void) { return __atomic_load_n(&resolved, __ATOMIC_ACQUIRE); }

bool gf_visible_hides(CUdevice ordinal) { return (unsigned)ordinal >= gf_load(&seen_devices) && ordinal >= 0; }

unsigned gf_visible_place(unsigned ordinal)
{
    gf_visible_read();
    if (!__atomic_load_n(&resolved, __ATOMIC_ACQUIRE))
        resolve(); /* the program has initialized the driver without calling this library */
    unsigned seen = gf_load(&seen_devices);
    return seen == ALL ? ordinal : ordinal < seen ? gf_load(&places[ordinal]) : GF_DEVICES;
}

/* ---- wrappers ---- */

GF_AFTER(cuDeviceGetCount, (int *count), (count),
         if (*count >= 0 && (unsigned)*count > gf_load(&seen_devices)) *count = (int)gf_load(&seen_devices))

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    return gf_visible_hides(ordinal) ? CUDA_ERROR_INVALID_DEVICE : gf_real.cuDeviceGet(device, ordinal);
}
