/* compat.h: keeps libgfaas-model.so loadable on an old glibc (2.17 on x86-64, 2.31 elsewhere). */
#pragma once

#include "../symver.h"

GF_OLD_VERSION(dlopen, "2.2.5");
GF_OLD_VERSION(dlsym, "2.2.5");
GF_OLD_VERSION(dlerror, "2.2.5");
