/* together: two threads initialise the driver at the same time. A thread calls cuInit; this program's
 * getenv stops it where the preload library reads GFAAS_DEVICES, the list of the instance's GPUs. The
 * main thread meanwhile uses the driver's first GPU; the stopped thread resumes when the main thread has
 * launched a kernel, or after half a second. TestDevicesTogether checks which GPU the main thread works
 * on. Whether the main thread waits for the other does not matter. */
#include "check.h"

#include <unistd.h>

extern char **environ;

static int reading;  /* a thread has come to the library's getenv("GFAAS_DEVICES") */
static int launched; /* the main thread has launched a kernel */

/* Replaces the C library's getenv, for the program and its libraries. */
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
