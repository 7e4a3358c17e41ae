/* unmanaged.h: started programs that the library cannot be loaded into (unmanaged programs). */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* These functions may be called between fork and exec: they take no memory and no lock. */

enum { GF_UNMANAGED_NONE = -1, GF_UNMANAGED_UNKNOWN = -2 };
/* Returns why the library cannot be loaded into the program (GF_UNMANAGED_STATIC, ...), or GF_UNMANAGED_NONE. */
int gf_unmanaged_file(int fd, const char *name);
/* Reports the program to the daemon and, if it is the first of its kind in the instance, prints a line.
 * Waits for at most 200 ms. */
void gf_unmanaged_tell(uint32_t kind, const char *program);
/* Notes the process's identity, before it can change its environment. */
void gf_unmanaged_init(void);

#pragma GCC visibility pop
