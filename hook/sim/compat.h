/* compat.h: keeps the library loadable with glibc 2.28 and later. glibc 2.34 moved these functions and gave them new
 * versions, but still has the old ones. */
#pragma once

#if defined(__x86_64__)
#define OLD_VERSION(f, version) __asm__(".symver " #f "," #f "@GLIBC_" version)
#elif defined(__aarch64__)
#define OLD_VERSION(f, version) __asm__(".symver " #f "," #f "@GLIBC_2.17")
#else
#error "the simulated driver is built for x86-64 and arm64"
#endif

OLD_VERSION(pthread_condattr_setclock, "2.3.3");
OLD_VERSION(pthread_create, "2.2.5");
OLD_VERSION(pthread_detach, "2.2.5");
OLD_VERSION(pthread_key_create, "2.2.5");
OLD_VERSION(pthread_mutexattr_destroy, "2.2.5");
OLD_VERSION(pthread_mutexattr_init, "2.2.5");
OLD_VERSION(pthread_mutexattr_setpshared, "2.2.5");
OLD_VERSION(pthread_mutexattr_setrobust, "2.12");
OLD_VERSION(pthread_mutex_consistent, "2.12");
OLD_VERSION(pthread_mutex_timedlock, "2.2.5");
OLD_VERSION(pthread_once, "2.2.5");
OLD_VERSION(pthread_setspecific, "2.2.5");
OLD_VERSION(pthread_sigmask, "2.2.5");
