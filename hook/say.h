/* say.h: messages on standard error. */
#pragma once

#include "hook.h"

#pragma GCC visibility push(hidden)

/* The kinds of messages. Each is printed at most once per process. */
enum { GF_SAY_DRIVER, GF_SAY_SETUP, GF_SAY_REFUSED, GF_SAY_LOST, GF_SAY_THREAD, GF_SAY_DEEP, GF_SAY_NAMESPACE, GF_SAY_TERMINATE, GF_SAY_NEW, GF_SAY_VISIBLE, GF_SAY_DENIED, GF_SAY_MPS,
       GF_SAY_STRAY /* the first of GF_UNMANAGED_KINDS kinds */ };

/* Notes the file behind standard error. Called once, when the process begins. */
void gf_say_init(void);
/* Reports whether standard error is still the same file. If not, the program may have put a file or a
 * pipe of its own there, and would read a message as its own output. */
bool gf_own_errors(void);
/* Prints one line, at most once for each kind (GF_SAY_...). Prints nothing if the program has replaced
 * standard error, except by a log file that is opened for appending. */
void gf_say(unsigned kind, const char *format, ...) __attribute__((format(printf, 2, 3)));

#pragma GCC visibility pop
