/* symver.h: binds a function of glibc to the old one of its versions, so that a library stays loadable on an old glibc.
 * glibc 2.34 moved several functions and gave them a new version, but still has the old one. `version` is the old one
 * on x86-64; arm64 has the same for all. */
#pragma once

#if defined(__x86_64__)
#define GF_OLD "GLIBC_2.2.5"
#define GF_OLD_VERSION(f, version) __asm__(".symver " #f "," #f "@GLIBC_" version)
#elif defined(__aarch64__)
#define GF_OLD "GLIBC_2.17"
#define GF_OLD_VERSION(f, version) __asm__(".symver " #f "," #f "@" GF_OLD)
#else
#error "the libraries are built for x86-64 and arm64"
#endif
