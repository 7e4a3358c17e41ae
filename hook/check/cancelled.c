/* cancelled: cancels a thread while it opens a library in a way about which the preload library
 * prints a message. The thread must not be cancelled while it prints, because it may hold locks. */
#define _GNU_SOURCE
#include "check.h"

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
    void *end;
    pthread_t thread = start_thread(opens, NULL);
    pthread_join(thread, &end);
    ASSERT(opened && end == PTHREAD_CANCELED);
    return 0;
}
