/* loader.c: the C library's dlsym and dlopen, which lookup.c wraps. */
#include "loader.h"

#include <dlfcn.h>

gf_dlsym_function *gf_real_dlsym;
gf_dlopen_function *gf_real_dlopen;

GF_EARLY static void *libc_function(const char *name)
{
    void *found = dlvsym(RTLD_NEXT, name, GF_OLD);
    if (!found)
        found = dlvsym(RTLD_NEXT, name, "GLIBC_2.34");
    return found ? found : dlvsym(RTLD_DEFAULT, name, GF_OLD); /* for a C library that is preloaded before this library */
}

/* Takes no lock and no memory, because it may be called by an allocator that is looking up the next
 * malloc. */
GF_EARLY void gf_loader_init(void)
{
    if (__atomic_load_n(&gf_real_dlsym, __ATOMIC_ACQUIRE))
        return;
    gf_next_init();
    gf_store(&gf_real_dlopen, (gf_dlopen_function *)libc_function("dlopen"));
    __atomic_store_n(&gf_real_dlsym, (gf_dlsym_function *)libc_function("dlsym"), __ATOMIC_RELEASE);
}
