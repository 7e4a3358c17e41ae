/* find.c: a shared library that a program opens at run time. It looks up the driver's functions
 * from its own place in the search order. */
#define _GNU_SOURCE
#include <dlfcn.h>

void *find_next(const char *name) { return dlsym(RTLD_NEXT, name); }
void *find_driver(const char *name) { return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name); }
void *find_default(const char *name) { return dlsym(RTLD_DEFAULT, name); }
