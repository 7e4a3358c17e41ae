/* module.h: loading modules. */
#ifndef GFAAS_SIM_MODULE_H
#define GFAAS_SIM_MODULE_H

#include "sim.h"

/* Parses PTX into a module without a context or memory; on failure, msg has the reason. */
CUresult module_parse(struct module **out, const char *text, char *msg, size_t len);
void module_drop(struct module *m); /* frees such a module */
CUresult module_load(struct ctx *c, CUmodule *out, const char *text, char *msg, size_t len);
/* Writes a message to the error buffer among the options. */
void module_log(unsigned n, const CUjit_option *options, void **values, const char *msg);
/* Returns the contents of a file, with a zero byte added; NULL with *r set. */
char *module_read(const char *name, size_t *size, CUresult *r);

#endif
