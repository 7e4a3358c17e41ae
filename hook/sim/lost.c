/* lost.c: memory of the device that another process removes.
 *
 * The processes that share a device's files need not trust each other: one may truncate them, and the
 * host may have no page left for them. An access then causes a SIGBUS, which the program does not expect.
 * If the address is in the device's memory, an empty page is mapped there, and from then on every call
 * returns that the device is gone, as a driver does. Any other SIGBUS is the program's, and goes to the
 * previous handler. */
#include "shared.h"

#include <signal.h>
#include <sys/mman.h>

enum { GUARDS = 1024 };

/* Mappings of the device's files. */
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
        signal(sig, SIG_DFL); /* the access is repeated, and ends the process */
        if (info->si_code <= 0)
            raise(sig); /* a signal that was sent is not repeated */
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
        sim_say("memory of the simulated device is lost: another process truncated its files, or the host is out of memory");
    said = true;
    ctx_fault(CUDA_ERROR_DEVICE_UNAVAILABLE);
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
}
