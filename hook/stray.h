/* stray.h: programs that a process starts and that the library cannot be in. */
#ifndef GFAAS_STRAY_H
#define GFAAS_STRAY_H

#include "hook.h"

#pragma GCC visibility push(hidden)

/* All of this may be called between fork and exec: it takes no memory and no lock. */

enum { GF_STRAY_NONE = -1, GF_STRAY_UNKNOWN = -2 };
/* Returns why the library cannot be in that program (GF_STRAY_STATIC, ...), or GF_STRAY_NONE. */
int gf_stray_file(int fd, const char *name);
/* Tells the daemon of it and, if it is the first of its kind, prints a line. Waits for 200 ms at
 * most. */
void gf_stray_tell(uint32_t kind, const char *program);
/* Notes the process's identity, before it can change its environment. */
void gf_stray_init(void);

#pragma GCC visibility pop
#endif
