/* lost.c: memory of the device that another process takes away.
 *
 * The files of a device are shared by processes that need not trust each other: one
 * may cut them short, and the host may have no page left for them. A process that
 * then looks there gets a SIGBUS, of which it knows nothing. Where it is for memory
 * of the device's, an empty page comes in its place, and from then on every call
 * answers that the device is gone, as a driver does. Another SIGBUS is the program's,
 * and goes to whoever waited for one before. */
#include "shared.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GUARDS = 1024 };

/* Mappings of files of the device's. */
static struct {
    _Atomic(char *) base; /* NULL: free */
    _Atomic size_t size;
} guards[GUARDS];
static pthread_mutex_t guards_lock = PTHREAD_MUTEX_INITIALIZER;

static struct sigaction before;
static bool watching;
_Atomic bool g_lost;

static bool guarded(const char *at)
{
    for (unsigned i = 0; i < GUARDS; i++) {
        const char *base = atomic_load(&guards[i].base);
        if (base && (size_t)(at - base) < atomic_load(&guards[i].size))
            return true;
    }
    return false;
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    char *at = info->si_addr;
    if (info->si_code == BUS_ADRERR && guarded(at)) {
        char *page = at - (uintptr_t)at % SIM_PAGE;
        if (mmap(page, SIM_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page) {
            atomic_store(&g_lost, true);
            return;
        }
    }
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(sig, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(sig);
    } else {
        signal(sig, SIG_DFL); /* it comes again, and ends the process */
        if (info->si_code <= 0)
            raise(sig); /* sent, it comes once */
    }
}

void lost_watch(void *base, size_t size)
{
    pthread_mutex_lock(&guards_lock);
    if (!watching) {
        struct sigaction ours = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigemptyset(&ours.sa_mask);
        watching = sigaction(SIGBUS, &ours, &before) == 0;
    }
    for (unsigned i = 0; i < GUARDS; i++)
        if (!atomic_load(&guards[i].base)) {
            atomic_store(&guards[i].size, size);
            atomic_store(&guards[i].base, (char *)base);
            break;
        }
    pthread_mutex_unlock(&guards_lock);
}

void lost_forget(void *base)
{
    pthread_mutex_lock(&guards_lock);
    for (unsigned i = 0; i < GUARDS; i++)
        if (atomic_load(&guards[i].base) == base)
            atomic_store(&guards[i].base, NULL);
    pthread_mutex_unlock(&guards_lock);
}

CUresult lost_notice(void)
{
    static bool said;
    if (!said)
        sim_say("memory of the simulated device is gone: another process has cut its files short, or the host has none left");
    said = true;
    ctx_fault(CUDA_ERROR_DEVICE_UNAVAILABLE);
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
}
