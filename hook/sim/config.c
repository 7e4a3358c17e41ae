/* config.c: the simulated host's devices, from the environment, and its clock. The simulated NVML has it too. */
#include "sim.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct config g_config;

/* Parses a size as the tools write it: 16GiB, 512MiB, plain bytes. Returns 0 if it is invalid. */
static uint64_t parse_size(const char *s)
{
    static const struct {
        const char *unit;
        int shift;
    } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    char *end;
    if (*s < '0' || *s > '9')
        return 0;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (errno)
        return 0;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(end, units[i].unit))
            return v > (UINT64_MAX >> units[i].shift) ? 0 : (uint64_t)v << units[i].shift;
    return 0;
}

/* Parses a number from 1 to max. Returns 0 if it is invalid. */
static unsigned parse_count(const char *s, unsigned max)
{
    char *end;
    if (*s < '0' || *s > '9')
        return 0;
    unsigned long v = strtoul(s, &end, 10);
    return *end || v > max ? 0 : (unsigned)v;
}

/* Parses one KEY=VALUE of GFAAS_SIM_GPU. */
static bool parse_field(struct config *c, const char *key, const char *value)
{
    if (!strcmp(key, "sms"))
        return (c->sms = parse_count(value, 4096)) != 0;
    if (!strcmp(key, "count"))
        return (c->count = parse_count(value, SIM_MAX_DEVICES)) != 0;
    if (!strcmp(key, "mem"))
        return (c->mem = parse_size(value)) >= SIM_PAGE && c->mem <= (1ull << 44);
    if (!strcmp(key, "poison")) {
        c->poison = !strcmp(value, "1");
        return c->poison || !strcmp(value, "0");
    }
    if (!strcmp(key, "context")) {
        c->context = parse_size(value);
        return (c->context || !strcmp(value, "0")) && c->context <= (1ull << 44);
    }
    return false;
}

/* Parses GFAAS_SIM_GPU. Sizes are rounded to multiples of a page. */
static bool parse_shape(struct config *c, const char *text)
{
    char buf[256], *rest = buf;
    if (strlen(text) >= sizeof buf)
        return false;
    strcpy(buf, text);
    for (char *f; *buf && (f = strsep(&rest, ","));) {
        char *eq = strchr(f, '=');
        if (!eq)
            return false;
        *eq = 0;
        if (!parse_field(c, f, eq + 1))
            return false;
    }
    c->mem &= ~(uint64_t)(SIM_PAGE - 1);
    c->context &= ~(uint64_t)(SIM_PAGE - 1);
    return true;
}

/* Writes the UUID that cuDeviceGetUuid returns, as text. */
void sim_uuid(char uuid[SIM_UUID_BYTES], unsigned index)
{
    snprintf(uuid, SIM_UUID_BYTES, "GPU-67666161-732d-7369-6d75-6c61746564%02x", index & 0xff);
}

/* Returns the device of an entry of CUDA_VISIBLE_DEVICES, which is an index, a UUID or a prefix of one.
 * Returns -1 if it matches no device, or more than one. There are no MIG instances. */
static int device_named(const struct config *c, const char *word, size_t n)
{
    int found = -1;
    char uuid[SIM_UUID_BYTES], *end;
    for (; n && (*word == ' ' || *word == '\t'); n--)
        word++;
    while (n && (word[n - 1] == ' ' || word[n - 1] == '\t'))
        n--;
    if (n && word[0] >= '0' && word[0] <= '9') {
        unsigned long i = strtoul(word, &end, 10);
        return end == word + n && i < c->count ? (int)i : -1;
    }
    for (unsigned i = 0; n >= 4 && i < c->count; i++) {
        sim_uuid(uuid, i);
        if (strncmp(uuid, word, n))
            continue;
        if (found >= 0)
            return -1;
        found = (int)i;
    }
    return found;
}

/* Parses the list as the driver does: up to the first entry that names no device; no device is visible if
 * one is named twice. CUDA_DEVICE_ORDER has no effect, because all devices are equally fast and numbered
 * by their bus. */
static void parse_visible(struct config *c, const char *text)
{
    c->visible = 0;
    for (unsigned i = 0; !text && i < c->count; i++)
        c->visible_index[c->visible++] = (int)i;
    while (text && *text) {
        size_t n = strcspn(text, ",");
        int i = device_named(c, text, n);
        if (i < 0)
            return;
        for (unsigned k = 0; k < c->visible; k++)
            if (c->visible_index[k] == i) {
                c->visible = 0;
                return;
            }
        c->visible_index[c->visible++] = i;
        text += n + (text[n] == ',');
    }
}

/* Stores the folder's absolute path, because the program may change its directory and environment. */
static bool find_dir(struct config *c)
{
    const char *given = getenv("GFAAS_SIM_DIR");
    c->default_dir = !given || !*given;
    size_t n = 0;
    if (c->default_dir)
        n = (size_t)snprintf(c->dir, sizeof c->dir, "/dev/shm/gfaas-sim-%u", (unsigned)geteuid());
    else if (given[0] == '/')
        n = (size_t)snprintf(c->dir, sizeof c->dir, "%s", given);
    else if (getcwd(c->dir, sizeof c->dir)) {
        n = strlen(c->dir);
        n += (size_t)snprintf(c->dir + n, sizeof c->dir - n, "/%s", given);
    }
    return n && n < sizeof c->dir;
}

/* Parses a percentage into thousandths of a percent. Returns 0 if it is unset or invalid. */
static unsigned parse_share(const char *text)
{
    char *end;
    if (!text)
        return 0;
    double v = strtod(text, &end);
    if (end == text || *end || !(v > 0) || v > 100)
        return 0;
    unsigned milli = (unsigned)(v * 1000 + 0.5);
    return milli ? milli : 1;
}

uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Prints one line on standard error; control characters in the values are replaced. */
void sim_say(const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    fprintf(stderr, "%s (simulated): %s\n", sim_library, line);
}

/* Prints that the GPU is simulated, so that its figures are not taken for a GPU's. Under gfaas, that was
 * printed before: GFAAS_INSTANCE is set in a slice, GFAAS_SIM_NOTED by gfaas's own commands. */
void sim_say_simulated(void)
{
    const char *instance = getenv("GFAAS_INSTANCE"), *noted = getenv("GFAAS_SIM_NOTED");
    if (!(instance && *instance) && !(noted && *noted))
        sim_say("this is gfaas's simulated GPU; its figures are not those of a real GPU");
}

/* Reads the environment. Returns false, after one line on standard error, if GFAAS_SIM_GPU is
 * malformed. */
bool config_load(void)
{
    struct config c = {.sms = 80, .mem = 16ull << 30, .count = 1};
    const char *shape = getenv("GFAAS_SIM_GPU");
    if (shape && !parse_shape(&c, shape)) {
        sim_say("GFAAS_SIM_GPU=%.200s: expected sms=N,mem=SIZE,count=N,context=SIZE,poison=1", shape);
        return false;
    }
    if (!find_dir(&c)) {
        sim_say("GFAAS_SIM_DIR is too long");
        return false;
    }
    parse_visible(&c, getenv("CUDA_VISIBLE_DEVICES"));
    c.pct = parse_share(getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
    c.granted = c.sms;
    if (c.pct) {
        uint64_t scaled = (uint64_t)c.sms * c.pct;
        c.granted = (unsigned)((scaled + 99999) / 100000);
    }
    g_config = c;
    return true;
}
