/* find.c: a shared library that a program opens while it runs, and that looks
 * for the driver's functions from where it stands. */
#define _GNU_SOURCE
#include <dlfcn.h>

void *find_next(const char *name) { return dlsym(RTLD_NEXT, name); }
void *find_driver(const char *name) { return dlsym(dlopen("libcuda.so.1", RTLD_NOW), name); }
void *find_default(const char *name) { return dlsym(RTLD_DEFAULT, name); }
