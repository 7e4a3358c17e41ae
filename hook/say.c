/* say.c: messages on standard error. */
#include "say.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct stat errors; /* standard error when the process began; st_ino 0: none */
static bool errors_noted;

void gf_say_init(void)
{
    if (syscall(SYS_fstat, STDERR_FILENO, &errors) != 0)
        errors.st_ino = 0;
    errors_noted = true;
}

bool gf_own_errors(void)
{
    struct stat now;
    return !errors_noted || (errors.st_ino && syscall(SYS_fstat, STDERR_FILENO, &now) == 0 && now.st_ino == errors.st_ino &&
                             now.st_dev == errors.st_dev);
}

static bool is_log(void)
{
    long flags = syscall(SYS_fcntl, STDERR_FILENO, F_GETFL);
    return flags >= 0 && flags & O_APPEND;
}

void gf_say(unsigned kind, const char *format, ...)
{
    static uint32_t said;
    if (!gf_own_errors() && !is_log())
        return;
    if (__atomic_fetch_or(&said, 1u << kind, __ATOMIC_RELAXED) & 1u << kind)
        return;
    char line[512] = "libgfaas: ";
    const size_t start = sizeof "libgfaas: " - 1;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line + start, sizeof line - start - 1, format, args);
    va_end(args);
    if (n < 0)
        return;
    size_t end = start + (size_t)n;
    if (end > sizeof line - 2)
        end = sizeof line - 2;
    for (char *c = line + start; c < line + end; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?'; /* the value comes from outside; a message is one line */
    line[end] = '\n';
    if (syscall(SYS_write, STDERR_FILENO, line, end + 1) < 0) /* write() would be a cancellation point */
        return; /* standard error is closed or full; there is nowhere else to report that */
}
