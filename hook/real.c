/* real.c: finds the driver and the addresses of its functions. */
#include "real.h"

#include "loader.h"
#include "say.h"

#include <dlfcn.h>
#include <errno.h>

struct gf_driver gf_real;

__thread bool gf_booting GF_TLS;

enum { UNKNOWN, OPEN, NONE };
static uint32_t booted;
static void *driver;

static CUresult missing(void) { return CUDA_ERROR_NOT_SUPPORTED; }

void *gf_real_at(size_t offset)
{
    void *address = gf_load((void **)((char *)&gf_real + offset));
    return address == (void *)missing ? NULL : address;
}

static void *find_or_missing(const char *symbol)
{
    void *handle = gf_load(&driver), *address = handle ? gf_real_dlsym(handle, symbol) : NULL;
    return address ? address : (void *)missing;
}

static void fill(void)
{
#define CU_SYMBOL(symbol, since, hook, params, args) gf_store((void **)&gf_real.symbol, find_or_missing(#symbol));
#include "symbols.def"
}

/* Threads that run this at the same time do the same and store the same values. It takes no lock, which
 * could deadlock: dlopen and dlsym take the loader's lock, which the caller may hold already, in the
 * constructor of a library. A thread that finds no driver does not undo what another thread has found.
 *
 * If the loader cannot find the driver, the program may open it later by its path. So after the first
 * failure, only libraries that are already loaded are searched. */
GF_COLD static uint32_t boot(uint32_t state)
{
    int saved = errno;
    gf_loader_init();
    gf_booting = true;
    void *handle = gf_real_dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | (state == NONE ? RTLD_NOLOAD : 0));
    gf_booting = false;
    if (handle) {
        gf_store(&driver, handle);
        fill();
        __atomic_store_n(&booted, OPEN, __ATOMIC_RELEASE);
    } else if (state == UNKNOWN) {
        fill();
        if (gf_load(&driver))
            fill();
        gf_say(GF_SAY_DRIVER, "cannot load libcuda.so.1: there is no GPU driver");
        __atomic_compare_exchange_n(&booted, &state, NONE, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
    }
    dlerror(); /* clears it: a function that the driver lacks is not the program's error */
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
