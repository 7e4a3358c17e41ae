/* compat.h: keeps libgfaas.so loadable on an old glibc (2.17 on x86-64, 2.31 elsewhere). glibc 2.34 moved
 * these functions and gave them a new version, but still has the old one. */
#pragma once

#if defined(__x86_64__)
#define GF_OLD "GLIBC_2.2.5"
#define GF_OLD_LATER "GLIBC_2.3.3"
#elif defined(__aarch64__)
#define GF_OLD "GLIBC_2.17"
#define GF_OLD_LATER GF_OLD
#else
#error "libgfaas.so is built for x86-64 and arm64"
#endif

#define GF_OLD_VERSION(f) __asm__(".symver " #f "," #f "@" GF_OLD)
GF_OLD_VERSION(dlvsym);
GF_OLD_VERSION(dladdr);
GF_OLD_VERSION(dlerror);
__asm__(".symver dladdr1,dladdr1@" GF_OLD_LATER);
GF_OLD_VERSION(pthread_create);
GF_OLD_VERSION(pthread_detach);
GF_OLD_VERSION(pthread_once);
GF_OLD_VERSION(pthread_key_create);
GF_OLD_VERSION(pthread_setspecific);

/* A preload library is loaded before the first thread starts, so the initial-exec model of thread-local
 * storage is safe. */
#define GF_TLS __attribute__((tls_model("initial-exec")))
