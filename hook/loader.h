/* loader.h: the C library's dlsym and dlopen, and the next definition of a name.
 *
 *   loader.c  finds the C library's functions, which this library wraps
 *   next.c    finds the program's own wrappers of the driver's functions
  */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

typedef void *gf_dlsym_function(void *handle, const char *name);
typedef void *gf_dlopen_function(const char *file, int mode);
/* The C library's dlsym and dlopen; NULL before gf_loader_init. */
extern gf_dlsym_function *gf_real_dlsym;
extern gf_dlopen_function *gf_real_dlopen;
/* Finds them. It takes no lock and no memory; later calls cost one load. */
void gf_loader_init(void);

/* Notes the libraries with which the program started. gf_loader_init calls it. */
void gf_next_init(void);
/* Returns the program's own function with that name in the next library after the caller's (NULL: after
 * this one), as RTLD_NEXT finds it. Returns NULL if the next definition is in a library whose SONAME
 * begins with soname, or if there is none. */
void *gf_next(const void *caller, const char *name, const char *soname);
/* Returns the result of dlsym for a wrapped function: `wrapper`, or the program's own wrapper of that
 * name, if the real result would be the driver's function (`real`, if known). Returns NULL if the real
 * dlsym is to answer. */
void *gf_stand_in(void *handle, const char *name, const void *caller, const char *soname, void *real, void *wrapper);

/* Defines the exported name of a gated function, which is called named_NAME here. Its first call finds out
 * where calls go: to the program's own wrapper, if there is one, or to the gated function. While there is
 * neither a wrapper nor the library that `soname` names (`present` is false), calls return `absent`. */
#define GF_NAME(result, name, soname, params, args, present, absent) \
    static result first_##name params; \
    static result(*to_##name) params = first_##name; \
    static result named_##name params { return gf_load(&to_##name) args; } \
    extern result exported_##name params __asm__(#name) __attribute__((alias("named_" #name), visibility("default"))); \
    static result first_##name params \
    { \
        void *own = gf_next(NULL, #name, soname); \
        if (!own && !(present)) \
            return absent; \
        gf_store(&to_##name, own ? (result(*) params)own : name); \
        return named_##name args; \
    }

#pragma GCC visibility pop
