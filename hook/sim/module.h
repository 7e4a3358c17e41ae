/* module.h: loading modules and libraries. */
#pragma once

#include "sim.h"

/* Cubins and fatbins (binary.c). binary_size returns the bytes of a binary, or 0 if its header is
 * malformed or it has more than `limit` bytes. */
enum { MAX_IMAGE = 1 << 30 };
bool binary_is(const void *image);
size_t binary_size(const void *image, size_t limit);
CUresult binary_parse(struct module *m, const void *image, char *msg, size_t len);
/* Adds a kernel without parameters to a module; NULL if out of memory. */
struct func *module_add_func(struct module *m, const char *name);

/* Parses PTX or a binary into a module without a context or memory; on failure, msg has the reason. */
CUresult module_parse(struct module **out, const char *text, char *msg, size_t len);
void module_drop(struct module *m); /* frees such a module */
CUresult module_load(struct ctx *c, CUmodule *out, const char *text, char *msg, size_t len);
/* Writes a message to the error buffer among the options. */
void module_log(unsigned n, const CUjit_option *options, void **values, const char *msg);
/* Returns the contents of a file, with a zero byte added; NULL with *r set. */
char *module_read(const char *name, size_t *size, CUresult *r);

struct kernel { /* of a library (library.c) */
    struct library *library;
    struct func *f; /* in the library's `parsed`: its name and parameters */
    struct func_settings set[SIM_MAX_DEVICES]; /* on each of the process's devices */
};

struct library { /* see library.c */
    char *text; /* PTX with its zero byte, or a binary */
    struct module *parsed; /* without a context and memory */
    unsigned n;
    struct kernel *kernels;
};
