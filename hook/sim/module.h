/* module.h: loading modules. */
#ifndef GFAAS_SIM_MODULE_H
#define GFAAS_SIM_MODULE_H

#include "sim.h"

/* PTX text as a module of no context, which has no memory; msg says what is wrong. */
CUresult module_parse(struct module **out, const char *text, char *msg, size_t len);
void module_drop(struct module *m); /* such a one */
CUresult module_load(struct ctx *c, CUmodule *out, const char *text, char *msg, size_t len);
/* Hands a message to the buffer for errors among the options. */
void module_log(unsigned n, const CUjit_option *options, void **values, const char *msg);
/* All of a file, with a zero byte behind it; NULL with *r set. */
char *module_read(const char *name, size_t *size, CUresult *r);

#endif
