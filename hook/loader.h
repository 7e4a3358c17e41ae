/* loader.h: the C library's dlsym and dlopen, and the next function of a name.
 *
 *   loader.c  finds the C library's functions, which this library wraps
 *   next.c    finds the program's own wrappers of the driver's functions
  */
#ifndef GFAAS_LOADER_H
#define GFAAS_LOADER_H

#include "hook.h"

#pragma GCC visibility push(hidden)

typedef void *gf_dlsym_function(void *handle, const char *name);
typedef void *gf_dlopen_function(const char *file, int mode);
/* The C library's dlsym and dlopen; NULL before gf_loader_init. */
extern gf_dlsym_function *gf_real_dlsym;
extern gf_dlopen_function *gf_real_dlopen;
/* Finds them. It takes no lock and no memory, and costs a load once that is done. */
void gf_loader_init(void);

/* Notes the libraries that the program started with. gf_loader_init calls it. */
void gf_next_init(void);
/* Returns the program's own function of that name that is next after the caller's library
 * (NULL: after this one), as RTLD_NEXT finds it. Returns NULL if the next one is in a library
 * whose SONAME begins with soname, or if there is none. */
void *gf_next(const void *caller, const char *name, const char *soname);
/* Returns what dlsym is to return for a wrapped function: the wrapper, or the program's own
 * wrapper of the name, where the real answer would be the driver's function (`real`, if that is
 * known). NULL: the real dlsym is to answer. */
void *gf_stand_in(void *handle, const char *name, const void *caller, const char *soname, void *real, void *wrapper);

/* Defines the exported name of a gated function; here it is named_NAME. */
#define GF_NAME(result, name, soname, params, args) \
    static result first_##name params; \
    static result(*to_##name) params = first_##name; \
    static result named_##name params { return gf_load(&to_##name) args; } \
    extern result exported_##name params __asm__(#name) __attribute__((alias("named_" #name), visibility("default"))); \
    static result first_##name params \
    { \
        void *own = gf_next(NULL, #name, soname); \
        gf_store(&to_##name, own ? (result(*) params)own : name); \
        return named_##name args; \
    }

#pragma GCC visibility pop
#endif
