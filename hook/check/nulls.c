/* nulls: calls each function of the list with only zeros as arguments, and prints the result:
 *
 *   early NAME ANSWER   the call is the first in the process
 *   late NAME ANSWER    a context is current, and earlier calls in the process had no effect
 *
 * ANSWER is the driver's result code, "signal N" or "absent". */
#define _GNU_SOURCE
#define CUDA_EXACT_NAMES
#include "check.h"
#include "compat.h"
#include "names.h"

#include <stdbool.h>
#include <unistd.h>

/* Returns the function that a program is linked to. It uses the C library's dlsym, because a
 * preloaded one would open the driver before the first call. */
static void *linked(const char *name)
{
    void *(*find)(void *, const char *) = NULL;
    ASSERT(*(void **)&find = dlvsym(RTLD_DEFAULT, "dlsym", GF_OLD));
    return find(RTLD_DEFAULT, name);
}

/* Calls a function with zeros for the longest parameter list. */
static CUresult call(void *address)
{
    CUresult (*function)(long, long, long, long, long, long, long, long, long, long, long, long) = NULL;
    *(void **)&function = address;
    return function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

enum { COUNT = sizeof names / sizeof *names };

/* Calls functions from number i on and writes their results. A process makes one early call, or late
 * calls until one succeeds: that may change the results of later calls. */
static void make_calls(bool late, void *const *address, unsigned i, int to)
{
    CUcontext context = late ? own_context() : NULL;
    CUresult result = CUDA_ERROR_UNKNOWN;
    do {
        if (late)
            ASSERT_SUCCESS(cuCtxSetCurrent(context));
        result = call(address[i]);
        ASSERT(write(to, &result, sizeof result) == sizeof result);
    } while (late && result != CUDA_SUCCESS && ++i < COUNT && address[i]);
    _exit(0);
}

/* Makes calls in a new process and prints the answers. Returns the number of the next function. */
static unsigned answers(const char *when, void *const *address, unsigned i)
{
    int ends[2], status;
    CUresult result;
    fflush(stdout);
    ASSERT(pipe(ends) == 0);
    pid_t pid = fork();
    if (pid == 0)
        make_calls(when[0] == 'l', address, i, ends[1]);
    close(ends[1]);
    for (; read(ends[0], &result, sizeof result) == sizeof result; i++)
        printf("%s %s %d\n", when, names[i], (int)result);
    close(ends[0]);
    ASSERT(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (WIFSIGNALED(status))
        printf("%s %s signal %d\n", when, names[i++], WTERMSIG(status));
    else
        ASSERT(status == 0);
    return i;
}

int main(void)
{
    static const char *const whens[] = {"early", "late"};
    void *address[COUNT];
    for (unsigned i = 0; i < COUNT; i++)
        address[i] = linked(names[i]);
    for (unsigned w = 0; w < 2; w++)
        for (unsigned i = 0; i < COUNT;)
            if (address[i])
                i = answers(whens[w], address, i);
            else
                printf("%s %s absent\n", whens[w], names[i++]);
    return 0;
}
