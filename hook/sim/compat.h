/* compat.h: keeps the library loadable with glibc 2.28 and later. */
#pragma once

#include "../symver.h"

GF_OLD_VERSION(pthread_condattr_setclock, "2.3.3");
GF_OLD_VERSION(pthread_create, "2.2.5");
GF_OLD_VERSION(pthread_detach, "2.2.5");
GF_OLD_VERSION(pthread_key_create, "2.2.5");
GF_OLD_VERSION(pthread_mutexattr_destroy, "2.2.5");
GF_OLD_VERSION(pthread_mutexattr_init, "2.2.5");
GF_OLD_VERSION(pthread_mutexattr_setpshared, "2.2.5");
GF_OLD_VERSION(pthread_mutexattr_setrobust, "2.12");
GF_OLD_VERSION(pthread_mutex_consistent, "2.12");
GF_OLD_VERSION(pthread_mutex_timedlock, "2.2.5");
GF_OLD_VERSION(pthread_once, "2.2.5");
GF_OLD_VERSION(pthread_setspecific, "2.2.5");
GF_OLD_VERSION(pthread_sigmask, "2.2.5");
