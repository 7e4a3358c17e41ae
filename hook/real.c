/* real.c: finds the driver and the addresses of its functions. */
#include "hook.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct gf_driver gf_real;

__thread bool gf_booting GF_TLS;

enum { UNKNOWN, OPEN, NONE };
static uint32_t booted;
static void *driver;

static CUresult missing(void) { return CUDA_ERROR_NOT_SUPPORTED; }

void *gf_real_find(const char *symbol)
{
    void *handle = gf_load(&driver);
    return handle ? gf_real_dlsym(handle, symbol) : NULL;
}

static void *find_or_missing(const char *symbol)
{
    void *address = gf_real_find(symbol);
    return address ? address : (void *)missing;
}

static void fill(void)
{
#define GF_FIND(name) gf_store((void **)&gf_real.name, find_or_missing(#name));
#define GF_FIND_NONE(name)
#define GF_FIND_PTSZ(name) GF_FIND(name##_ptsz)
#define GF_FIND_PTDS(name) GF_FIND(name##_ptds)
#define CU(name, since, variant, hook, sim, stream, params, args) GF_FIND(name) GF_FIND_##variant(name)
#include "symbols.def"
}

/* Threads that are here at once all do the same and store the same. A lock
 * would deadlock: dlopen and dlsym take the loader's, which a thread in a
 * library's constructor holds already when it comes here. One that finds nothing
 * while another one finds the driver takes nothing back.
 *
 * A driver that is not where the loader looks may be opened by the program later, by
 * its path: so once it was not there, it is looked for among what is loaded. */
GF_COLD static uint32_t boot(uint32_t state)
{
    int saved = errno;
    gf_lookup_init();
    gf_booting = true;
    void *handle = gf_real_dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | (state == NONE ? RTLD_NOLOAD : 0));
    gf_booting = false;
    if (handle) {
        gf_store(&driver, handle);
        fill();
        gf_gate_init();
        __atomic_store_n(&booted, OPEN, __ATOMIC_RELEASE);
    } else if (state == UNKNOWN) {
        fill();
        if (gf_load(&driver))
            fill();
        gf_say(GF_SAY_DRIVER, "libcuda.so.1 is not here: there is no GPU driver to use");
        __atomic_compare_exchange_n(&booted, &state, NONE, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    }
    dlerror(); /* what the driver lacks is not the program's error */
    errno = saved;
    return handle ? OPEN : NONE;
}

bool gf_boot(void)
{
    uint32_t state = __atomic_load_n(&booted, __ATOMIC_ACQUIRE);
    if (gf_unlikely(state != OPEN))
        state = boot(state);
    return state == OPEN;
}

static struct stat errors; /* standard error as the process began; no inode: there was none */
static bool errors_noted;

void gf_say_init(void)
{
    if (syscall(SYS_fstat, STDERR_FILENO, &errors) != 0)
        errors.st_ino = 0;
    errors_noted = true;
}

bool gf_own_errors(void)
{
    struct stat now;
    return !errors_noted || (errors.st_ino && syscall(SYS_fstat, STDERR_FILENO, &now) == 0 && now.st_ino == errors.st_ino &&
                             now.st_dev == errors.st_dev);
}

static bool is_log(void)
{
    long flags = syscall(SYS_fcntl, STDERR_FILENO, F_GETFL);
    return flags >= 0 && flags & O_APPEND;
}

void gf_say(unsigned kind, const char *format, ...)
{
    static uint32_t said;
    if (!gf_own_errors() && !is_log())
        return;
    if (__atomic_fetch_or(&said, 1u << kind, __ATOMIC_RELAXED) & 1u << kind)
        return;
    char line[512] = "libgfaas: ";
    const size_t start = sizeof "libgfaas: " - 1;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line + start, sizeof line - start - 1, format, args);
    va_end(args);
    if (n < 0)
        return;
    size_t end = start + (size_t)n;
    if (end > sizeof line - 2)
        end = sizeof line - 2;
    for (char *c = line + start; c < line + end; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?'; /* of a value that came from outside: one message is one line */
    line[end] = '\n';
    if (syscall(SYS_write, STDERR_FILENO, line, end + 1) < 0) /* the C library's is a place to be cancelled at */
        return; /* nobody reads it: nothing to be done */
}
