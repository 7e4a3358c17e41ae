/* cancelled: a thread that is to be cancelled opens a library in a way of which
 * the preload library has something to say. It is not cancelled in that: it may
 * hold locks when it speaks. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>

static void *opened;

static void *opens(void *unused)
{
    pthread_cancel(pthread_self());
    opened = dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND);
    pthread_testcancel();
    return unused;
}

int main(void)
{
    pthread_t thread;
    void *end;
    ENSURE(pthread_create(&thread, NULL, opens, NULL) == 0);
    pthread_join(thread, &end);
    ENSURE(opened && end == PTHREAD_CANCELED);
    return 0;
}
