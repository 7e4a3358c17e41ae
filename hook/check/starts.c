/* starts: starts a program with two arguments in the given WAY, in an environment that holds only
 * WHAT=given.
 *
 *   starts WAY PATH ARGUMENT ARGUMENT
 *
 * For system and popen, it replaces its own environment first. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <unistd.h>

static char *given[] = {"WHAT=given", NULL};

static int ended(pid_t pid)
{
    int status;
    ASSERT(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Returns the command as a shell expects it. */
static const char *quoted(char *argv[])
{
    static char text[4096];
    for (; *argv; argv++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "'%s' ", *argv);
    return text;
}

static int piped(FILE *from)
{
    char buffer[4096];
    size_t n;
    ASSERT(from);
    while ((n = fread(buffer, 1, sizeof buffer, from)) > 0)
        fwrite(buffer, 1, n, stdout);
    return WEXITSTATUS(pclose(from));
}

int main(int argc, char *argv[])
{
    ASSERT(argc == 5);
    const char *way = argv[1], *path = argv[2], *name = strrchr(path, '/') + 1;
    char **args = argv + 2;
    char folder[4096];
    pid_t pid;
    snprintf(folder, sizeof folder, "%.*s", (int)(name - path - 1), path);
#define WAY(text) (strcmp(way, text) == 0)
    if (WAY("posix_spawn")) {
        ASSERT(posix_spawn(&pid, path, NULL, NULL, args, given) == 0);
        return ended(pid);
    }
    setenv("PATH", folder, 1); /* in this process; the started program has no PATH */
    if (WAY("posix_spawnp")) {
        ASSERT(posix_spawnp(&pid, name, NULL, NULL, args, given) == 0);
        return ended(pid);
    }
    if (WAY("execvpe"))
        execvpe(name, args, given);
    if (WAY("vfork")) {
        if ((pid = vfork()) == 0) {
            execve(path, args, given);
            _exit(127);
        }
        return ended(pid);
    }
    if (WAY("fork")) {
        if ((pid = fork()) == 0) {
            execve(path, args, given);
            _exit(127);
        }
        return ended(pid);
    }
    if (WAY("execve"))
        execve(path, args, given);
    if (WAY("execle"))
        execle(path, path, args[1], args[2], NULL, given);
    if (WAY("fexecve"))
        fexecve(open(path, O_RDONLY | O_CLOEXEC), args, given);
    if (WAY("execveat")) {
        int (*call)(int, const char *, char *const[], char *const[], int) = dlsym(RTLD_DEFAULT, "execveat");
        ASSERT(call); /* the C library has it since glibc 2.34 */
        call(open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC), name, args, given, 0);
    }
    char *emptied[] = {given[0], NULL};
    environ = emptied;
    if (WAY("execv"))
        execv(path, args);
    if (WAY("execl"))
        execl(path, path, args[1], args[2], NULL);
    setenv("PATH", folder, 1);
    if (WAY("execvp"))
        execvp(name, args);
    if (WAY("execlp"))
        execlp(name, path, args[1], args[2], NULL);
    if (WAY("system"))
        return WEXITSTATUS(system(quoted(args)));
    if (WAY("popen"))
        return piped(popen(quoted(args), "r"));
    fprintf(stderr, "starts: %s: %s\n", way, strerror(errno));
    return 2;
}
