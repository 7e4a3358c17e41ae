/* compat.h: keeps libgfaas.so loadable on an old glibc (2.17 on x86-64, 2.31 elsewhere). */
#pragma once

#include "symver.h"

GF_OLD_VERSION(dlvsym, "2.2.5");
GF_OLD_VERSION(dladdr, "2.2.5");
GF_OLD_VERSION(dlerror, "2.2.5");
GF_OLD_VERSION(dladdr1, "2.3.3");
GF_OLD_VERSION(pthread_create, "2.2.5");
GF_OLD_VERSION(pthread_detach, "2.2.5");
GF_OLD_VERSION(pthread_once, "2.2.5");
GF_OLD_VERSION(pthread_key_create, "2.2.5");
GF_OLD_VERSION(pthread_setspecific, "2.2.5");

/* A preload library is loaded before the first thread starts, so the initial-exec model of thread-local
 * storage is safe. */
#define GF_TLS __attribute__((tls_model("initial-exec")))
