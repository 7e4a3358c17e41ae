/* compat.h: keeps libgfaas-model.so loadable on an old glibc (2.17 on x86-64, 2.31 elsewhere). glibc 2.34 moved these
 * functions and gave them a new version, but still has the old one. */
#pragma once

#if defined(__x86_64__)
#define OLD "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define OLD "GLIBC_2.17"
#else
#error "libgfaas-model.so is built for x86-64 and arm64"
#endif

#define OLD_VERSION(f) __asm__(".symver " #f "," #f "@" OLD)
OLD_VERSION(dlopen);
OLD_VERSION(dlsym);
OLD_VERSION(dlerror);
