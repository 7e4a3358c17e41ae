/* nulls: calls each function of the list with nothing but zeros, in a process of
 * its own, and prints what it answers:
 *
 *   early NAME ANSWER   it is the first call of all
 *   late NAME ANSWER    a context is current
 *
 * ANSWER is the driver's code, "signal N" or "absent". */
#define _GNU_SOURCE
#define CUDA_EXACT_NAMES
#include "check.h"
#include "compat.h"
#include "names.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a program is linked to. The C library's dlsym finds it: a preloaded one
 * would open the driver before the first call. */
static void *linked(const char *name)
{
    void *(*find)(void *, const char *) = NULL;
    ENSURE(*(void **)&find = dlvsym(RTLD_DEFAULT, "dlsym", GF_OLD));
    return find(RTLD_DEFAULT, name);
}

/* As many zeros as the longest list of parameters has. */
static CUresult call(void *address)
{
    CUresult (*function)(long, long, long, long, long, long, long, long, long, long, long, long) = NULL;
    *(void **)&function = address;
    return function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

static void child(void *address, int late, int to)
{
    if (late)
        own_context();
    CUresult result = call(address);
    _exit(write(to, &result, sizeof result) != sizeof result);
}

static void answer(const char *when, const char *name, void *address)
{
    int ends[2], status;
    CUresult result;
    printf("%s %s ", when, name);
    if (!address) {
        printf("absent\n");
        return;
    }
    fflush(stdout);
    ENSURE(pipe(ends) == 0);
    pid_t pid = fork();
    if (pid == 0)
        child(address, when[0] == 'l', ends[1]);
    ENSURE(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (WIFSIGNALED(status)) {
        printf("signal %d\n", WTERMSIG(status));
    } else {
        ENSURE(read(ends[0], &result, sizeof result) == sizeof result);
        printf("%d\n", (int)result);
    }
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        void *address = linked(names[i]);
        answer("early", names[i], address);
        answer("late", names[i], address);
    }
    return 0;
}
