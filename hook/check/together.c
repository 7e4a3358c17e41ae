/* together: uses the driver's first GPU while another thread still initialises the preload library.
 *
 * The other thread calls cuInit. During cuInit, the library reads GFAAS_DEVICES, the list of the instance's
 * GPUs, with getenv. This program replaces getenv, so that the thread is held there until the main thread
 * has launched a kernel, or for half a second. The limit is necessary because the library may let the main
 * thread wait for the other thread; that is correct as well. TestDevicesTogether checks that the main
 * thread uses the right GPU. */
#include "check.h"

#include <unistd.h>

extern char **environ;

static int reading;  /* 1: a thread has called getenv("GFAAS_DEVICES") */
static int launched; /* 1: the main thread has launched a kernel */

/* Replaces the C library's getenv in the program and its libraries. The first thread that asks for
 * GFAAS_DEVICES is held. */
char *getenv(const char *name)
{
    size_t length = strlen(name);
    if (!strcmp(name, "GFAAS_DEVICES") && !__atomic_exchange_n(&reading, 1, __ATOMIC_SEQ_CST))
        for (int i = 0; i < 500 && !__atomic_load_n(&launched, __ATOMIC_SEQ_CST); i++)
            usleep(1000);
    for (char **at = environ; at && *at; at++)
        if (!strncmp(*at, name, length) && (*at)[length] == '=')
            return *at + length + 1;
    return NULL;
}

static void *initialise(void *unused)
{
    ASSERT_SUCCESS(cuInit(0));
    return unused;
}

int main(void)
{
    pthread_t thread = start_thread(initialise, NULL);
    while (!__atomic_load_n(&reading, __ATOMIC_SEQ_CST))
        usleep(1000);
    own_context();
    CUfunction nop = kernel(check_ptx, "nop");
    launch_block(nop, NULL);
    __atomic_store_n(&launched, 1, __ATOMIC_SEQ_CST);
    ASSERT_SUCCESS(cuCtxSynchronize());
    pthread_join(thread, NULL);
    return 0;
}
