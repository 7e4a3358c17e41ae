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
