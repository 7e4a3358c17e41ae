/* exec.c: keeps the programs that a process starts in its slice.
 *
 * A program that is started with another environment (by env -i, by env -u
 * LD_PRELOAD, or by a program that passes its own) would bypass the gate. So the
 * functions that start programs are wrapped. They add to the new environment the
 * variables of the slice that it lacks. A variable with another value stays, because a
 * slice that is started inside another one has its own values.
 *
 * The functions may be called between fork and exec, in a child that shares its
 * parent's memory (vfork) or was forked while another thread held a lock, and in a
 * signal handler. So the new environment is built on the stack, and no lookup takes a
 * lock then: the initial environment was copied, and the C library's functions were
 * found, before the program could change anything. */
#include "loader.h"
#include "say.h"
#include "unmanaged.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the initial environment ---- */

static const char *const names[] = {
    "GFAAS_SOCKET", "GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_GRANT", "GFAAS_FUNCTION", "GFAAS_DEVICES", "GFAAS_OVERSUBSCRIBE",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GFAAS_SIM_DIR", "GFAAS_SIM_GPU",
};
enum { IDENTITY = 3, SECRET = 2, NAMES = sizeof names / sizeof *names };

static char *kept[NAMES];              /* NAME=value; NULL: not set */
static const char *library;            /* path by which this library was preloaded; NULL: not preloaded */
static char driver[PATH_MAX];          /* folder of the simulated driver, if the process began with it */

#define LIST_PRELOAD "LD_PRELOAD="
#define LIST_LIBRARIES "LD_LIBRARY_PATH="

/* Returns the value of an entry of an environment if it has that name, else NULL. */
static const char *value_of(const char *entry, const char *name)
{
    size_t length = strlen(name);
    return strncmp(entry, name, length) == 0 && entry[length] == '=' ? entry + length + 1 : NULL;
}

/* Reports whether a list with these separators contains a member. */
static bool has_member(const char *list, const char *separators, const char *member)
{
    size_t length = strlen(member);
    for (list += strspn(list, separators); *list; list += strspn(list, separators)) {
        size_t n = strcspn(list, separators);
        if (n == length && memcmp(list, member, n) == 0)
            return true;
        list += n;
    }
    return false;
}

/* Copies the variables in `names`, because programs overwrite their environment. After that only
 * the copy has the secret: the program and its children find it there, but /proc/PID/environ does
 * not show it. */
static void copy_variables(char *env[])
{
    size_t size = 0;
    char **found[NAMES] = {NULL};
    for (char **e = env; *e; e++)
        for (unsigned i = 0; i < NAMES; i++)
            if (!found[i] && value_of(*e, names[i])) {
                found[i] = e;
                size += strlen(*e) + 1;
            }
    char *at = size ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (at == MAP_FAILED)
        return;
    for (unsigned i = 0; i < NAMES; i++)
        if (found[i]) {
            kept[i] = at;
            at = stpcpy(at, *found[i]) + 1;
        }
    if (found[SECRET]) {
        char *shown = *found[SECRET];
        *found[SECRET] = kept[SECRET];
        memset(shown + strlen(names[SECRET]) + 1, '*', strlen(shown) - strlen(names[SECRET]) - 1);
    }
}

/* Notes the library's path, if it was preloaded by its path, and the folder of the simulated
 * driver next to it, if LD_LIBRARY_PATH has that folder. */
static void note_paths(char *const env[])
{
    Dl_info own;
    if (!dladdr((void *)note_paths, &own) || !own.dli_fname || own.dli_fname[0] != '/')
        return;
    for (char *const *e = env; *e; e++) {
        const char *list = value_of(*e, "LD_PRELOAD");
        if (list && has_member(list, " :", own.dli_fname))
            library = own.dli_fname;
    }
    size_t folder = (size_t)(strrchr(own.dli_fname, '/') - own.dli_fname);
    if (!library || folder + sizeof "/sim" > sizeof driver)
        return;
    memcpy(driver, own.dli_fname, folder);
    strcpy(driver + folder, "/sim");
    for (char *const *e = env; *e; e++) {
        const char *list = value_of(*e, "LD_LIBRARY_PATH");
        if (list && has_member(list, ":;", driver))
            return;
    }
    *driver = 0;
}

/* ---- the C library's functions ---- */

typedef int spawn_function(int *pid, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                           char *const argv[], char *const env[]);
static struct {
    int (*execve)(const char *path, char *const argv[], char *const env[]);
    int (*execvpe)(const char *file, char *const argv[], char *const env[]);
    int (*fexecve)(int fd, char *const argv[], char *const env[]);
    int (*execveat)(int fd, const char *path, char *const argv[], char *const env[], int flags);
    spawn_function *posix_spawn, *posix_spawnp, *pidfd_spawn, *pidfd_spawnp;
    int (*system)(const char *command);
    FILE *(*popen)(const char *command, const char *mode);
} real;

static void *find(const char *name)
{
    void *found = gf_real_dlsym(RTLD_NEXT, name);
    return found ? found : gf_real_dlsym(RTLD_DEFAULT, name); /* for a C library that is preloaded before this library */
}

static void find_all(void)
{
    /* An old C library lacks these three. */
    gf_loader_init();
    gf_store((void **)&real.execveat, gf_real_dlsym(RTLD_NEXT, "execveat"));
    gf_store((void **)&real.pidfd_spawn, gf_real_dlsym(RTLD_NEXT, "pidfd_spawn"));
    gf_store((void **)&real.pidfd_spawnp, gf_real_dlsym(RTLD_NEXT, "pidfd_spawnp"));
#define GF_NEXT(name) gf_store((void **)&real.name, find(#name))
    GF_NEXT(execvpe);
    GF_NEXT(fexecve);
    GF_NEXT(posix_spawn);
    GF_NEXT(posix_spawnp);
    GF_NEXT(system);
    GF_NEXT(popen);
    GF_NEXT(execve);
    dlerror();
}

/* In a container, where glibc loads the library through /etc/ld.so.preload, a program may begin
 * with an environment without the slice's variables. They are then read from this file in the
 * folder of the instance's socket. Outside containers there is no such file. */
#define SLICE_FILE "/opt/gfaas/run/slice"

static void adopt_slice(void)
{
    char text[8192];
    if (getenv("GFAAS_SOCKET") && getenv("GFAAS_INSTANCE") && getenv("GFAAS_SECRET"))
        return;
    int saved = errno;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, SLICE_FILE, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = syscall(SYS_read, fd, text, sizeof text - 1);
        syscall(SYS_close, fd);
        text[n > 0 ? n : 0] = 0;
        for (char *rest, *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
            char *value = strchr(line, '=');
            if (!value)
                continue;
            *value = 0;
            setenv(line, value + 1, 0);
        }
    }
    errno = saved;
}

/* Runs before the program and most of its libraries. A library that starts programs earlier finds
 * the functions in `ready`; there is no other thread yet. */
__attribute__((constructor)) static void begin(int argc, char *argv[], char *env[])
{
    (void)argc, (void)argv;
    adopt_slice();
    copy_variables(environ ? environ : env);
    note_paths(environ ? environ : env);
    gf_say_init();
    gf_unmanaged_init();
    find_all();
}

static void ready(void)
{
    if (gf_unlikely(!gf_load(&real.execve)))
        find_all();
}

/* ---- the new environment ---- */

/* The slice's variables that an environment lacks. */
struct lack {
    bool library, driver;
    bool name[NAMES];
    bool any, identity; /* it lacks something; it lacks something without which work is not gated */
    size_t entries, preload, libraries; /* number of entries; lengths of the two lists */
};

static struct lack missing(char *const env[])
{
    struct lack l = {.library = true, .driver = *driver};
    for (unsigned i = 0; i < NAMES; i++)
        l.name[i] = kept[i];
    for (; env && env[l.entries]; l.entries++) {
        const char *entry = env[l.entries], *list;
        if (*entry != 'L' && *entry != 'G' && *entry != 'C')
            continue;
        if ((list = value_of(entry, "LD_PRELOAD"))) {
            l.library = l.library && !has_member(list, " :", library);
            l.preload = strlen(list);
        } else if ((list = value_of(entry, "LD_LIBRARY_PATH"))) {
            l.driver = l.driver && !has_member(list, ":;", driver);
            l.libraries = strlen(list);
        }
        for (unsigned i = 0; i < NAMES; i++)
            if (l.name[i] && value_of(entry, names[i]))
                l.name[i] = false;
    }
    l.any = l.library || l.driver;
    for (unsigned i = 0; i < NAMES; i++)
        l.any |= l.name[i];
    l.identity = l.library;
    for (unsigned i = 0; i < IDENTITY; i++)
        l.identity |= l.name[i];
    return l;
}

/* Writes NAME=ours, followed by the old list. */
static char *prepend(char *to, const char *name, const char *ours, const char *list)
{
    char *end = stpcpy(stpcpy(to, name), ours);
    if (list && *list)
        stpcpy(stpcpy(end, ":"), list);
    return to;
}

/* Sets `out` to env with the missing variables added. */
static void complete(const struct lack *l, char *const env[], char *out[], char *preload, char *libraries)
{
    size_t n = 0;
    const char *old_preload = NULL, *old_libraries = NULL, *list;
    for (size_t i = 0; i < l->entries; i++) {
        if (l->library && (list = value_of(env[i], "LD_PRELOAD")))
            old_preload = list;
        else if (l->driver && (list = value_of(env[i], "LD_LIBRARY_PATH")))
            old_libraries = list;
        else
            out[n++] = env[i];
    }
    if (l->library)
        out[n++] = prepend(preload, LIST_PRELOAD, library, old_preload);
    if (l->driver)
        out[n++] = prepend(libraries, LIST_LIBRARIES, driver, old_libraries);
    for (unsigned i = 0; i < NAMES; i++)
        if (l->name[i])
            out[n++] = kept[i];
    out[n] = NULL;
}

/* ---- starting a program ---- */

/* The arguments of a call of a wrapped function. */
struct start {
    int (*call)(const struct start *s, char *const env[]);
    spawn_function *spawn;
    int *pid;
    int fd, flags;
    const char *file;
    const posix_spawn_file_actions_t *actions;
    const posix_spawnattr_t *attributes;
    char *const *argv;
};

/* Reports to the daemon a program that leaves the slice, or that lacked the slice's variables.
 * Returns false if the library cannot be loaded into the program. */
static bool admit(int fd, const char *name, bool lacking)
{
    int kind = fd >= 0 ? gf_unmanaged_file(fd, name) : GF_UNMANAGED_UNKNOWN;
    if (kind == GF_UNMANAGED_UNKNOWN)
        return true;
    if (kind != GF_UNMANAGED_NONE)
        gf_unmanaged_tell((uint32_t)kind, name);
    else if (lacking)
        gf_unmanaged_tell(GF_UNMANAGED_RESTORED, name);
    return kind == GF_UNMANAGED_NONE;
}

/* Starts the program with the missing variables added. fd is the program's file, or -1. */
static int start(const struct start *s, int fd, const char *name, char *const env[])
{
    if (!library)
        return s->call(s, env);
    int saved = errno;
    struct lack l = missing(env);
    bool able = admit(fd, name, l.identity);
    errno = saved;
    if (!able || !l.any)
        return s->call(s, env);
    char *merged[l.entries + NAMES + 3];
    char preload[sizeof LIST_PRELOAD + strlen(library) + 1 + l.preload + 1];
    char libraries[sizeof LIST_LIBRARIES + strlen(driver) + 1 + l.libraries + 1];
    complete(&l, env, merged, preload, libraries);
    return s->call(s, merged);
}

/* Opens a program's file to inspect it, or returns -1. Preserves errno. */
static int open_at(int fd, const char *path)
{
    int saved = errno, file = library ? (int)syscall(SYS_openat, fd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0) : -1;
    errno = saved;
    return file;
}

/* Starts the program whose file is open, and closes the file if the start fails or is in a child. */
static int start_file(const struct start *s, int fd, const char *name, char *const env[])
{
    int result = start(s, fd, name, env), saved = errno;
    if (fd >= 0)
        syscall(SYS_close, fd);
    errno = saved;
    return result;
}

/* Opens the file that a name without a slash resolves to in this process's PATH, and stores its
 * path. Returns -1 if there is none. */
static int open_named(const char *file, char path[PATH_MAX])
{
    const char *list = getenv("PATH");
    size_t length = strlen(file);
    if (!library || !length || length >= PATH_MAX - 1)
        return -1;
    if (strchr(file, '/')) {
        strcpy(path, file);
        return open_at(AT_FDCWD, path);
    }
    for (list = list ? list : "/bin:/usr/bin";; list++) {
        size_t n = strcspn(list, ":");
        if (n + 1 + length < PATH_MAX) {
            memcpy(path, list, n);
            strcpy(stpcpy(path + n, n ? "/" : ""), file);
            if (syscall(SYS_faccessat, AT_FDCWD, path, X_OK) == 0)
                return open_at(AT_FDCWD, path);
        }
        if (!*(list += n))
            return -1;
    }
}

static int call_execve(const struct start *s, char *const env[]) { return real.execve(s->file, s->argv, env); }
static int call_execvpe(const struct start *s, char *const env[]) { return real.execvpe(s->file, s->argv, env); }
static int call_fexecve(const struct start *s, char *const env[]) { return real.fexecve(s->fd, s->argv, env); }
static int call_execveat(const struct start *s, char *const env[])
{
    return real.execveat ? real.execveat(s->fd, s->file, s->argv, env, s->flags)
                         : (int)syscall(SYS_execveat, s->fd, s->file, s->argv, env, s->flags);
}
static int call_spawn(const struct start *s, char *const env[])
{
    return s->spawn(s->pid, s->file, s->actions, s->attributes, s->argv, env);
}

/* by_path starts the program at a path; by_name resolves a name first. */
static int by_path(const struct start *s, char *const env[])
{
    return start_file(s, open_at(AT_FDCWD, s->file), s->file, env);
}

static int by_name(const struct start *s, char *const env[])
{
    char path[PATH_MAX];
    int saved = errno, fd = open_named(s->file, path);
    errno = saved;
    return start_file(s, fd, path, env);
}

GF_EXPORT int execve(const char *path, char *const argv[], char *const env[])
{
    ready();
    return by_path(&(struct start){.call = call_execve, .file = path, .argv = argv}, env);
}

GF_EXPORT int execvpe(const char *file, char *const argv[], char *const env[])
{
    ready();
    return by_name(&(struct start){.call = call_execvpe, .file = file, .argv = argv}, env);
}

GF_EXPORT int execv(const char *path, char *const argv[]) { return execve(path, argv, environ); }

GF_EXPORT int execvp(const char *file, char *const argv[]) { return execvpe(file, argv, environ); }

GF_EXPORT int fexecve(int fd, char *const argv[], char *const env[])
{
    ready();
    return start(&(struct start){.call = call_fexecve, .fd = fd, .argv = argv}, fd, "(by descriptor)", env);
}

GF_EXPORT int execveat(int at, const char *path, char *const argv[], char *const env[], int flags)
{
    ready();
    const struct start s = {.call = call_execveat, .fd = at, .file = path, .argv = argv, .flags = flags};
    if (flags & AT_EMPTY_PATH && !*path)
        return start(&s, at, "(by descriptor)", env);
    return start_file(&s, open_at(at, path), path, env);
}

/* Calls `call` with the listed arguments as `argv`; `list` is then behind the final NULL. */
#define GF_LISTED(first, call) \
    ({ \
        va_list list; \
        size_t count = 1; \
        va_start(list, first); \
        for (const char *a = first; a; a = va_arg(list, const char *)) \
            count++; \
        va_end(list); \
        char *argv[count], **at = argv; \
        va_start(list, first); \
        for (const char *a = first; a; a = va_arg(list, const char *)) \
            *at++ = (char *)a; \
        *at = NULL; \
        int result_ = call; \
        va_end(list); \
        result_; \
    })

GF_EXPORT int execl(const char *path, const char *first, ...) { return GF_LISTED(first, execve(path, argv, environ)); }

GF_EXPORT int execlp(const char *file, const char *first, ...) { return GF_LISTED(first, execvpe(file, argv, environ)); }

GF_EXPORT int execle(const char *path, const char *first, ...)
{
    return GF_LISTED(first, execve(path, argv, va_arg(list, char *const *)));
}

#define GF_SPAWN(name, by, handle) \
    GF_EXPORT int name(handle *pid, const char *file, const posix_spawn_file_actions_t *actions, \
                       const posix_spawnattr_t *attributes, char *const argv[], char *const env[]) \
    { \
        ready(); \
        if (!real.name) \
            return ENOSYS; \
        return by(&(struct start){.call = call_spawn, .spawn = real.name, .pid = pid, .file = file, .actions = actions, \
                                  .attributes = attributes, .argv = argv}, env); \
    }
GF_SPAWN(posix_spawn, by_path, pid_t)
GF_SPAWN(posix_spawnp, by_name, pid_t)
GF_SPAWN(pidfd_spawn, by_path, int) /* glibc 2.39 */
GF_SPAWN(pidfd_spawnp, by_name, int)

/* Adds the missing variables to the process's own environment, which the C library's shell
 * inherits. */
static void restore(void)
{
    struct lack l;
    ready();
    if (!library || !(l = missing(environ)).any)
        return;
    char *now[l.entries + NAMES + 3];
    char preload[sizeof LIST_PRELOAD + strlen(library) + 1 + l.preload + 1];
    char libraries[sizeof LIST_LIBRARIES + strlen(driver) + 1 + l.libraries + 1];
    complete(&l, environ, now, preload, libraries);
    if (l.library)
        setenv("LD_PRELOAD", preload + sizeof LIST_PRELOAD - 1, 1);
    if (l.driver)
        setenv("LD_LIBRARY_PATH", libraries + sizeof LIST_LIBRARIES - 1, 1);
    for (unsigned i = 0; i < NAMES; i++)
        if (l.name[i])
            setenv(names[i], value_of(kept[i], names[i]), 1);
    if (l.identity)
        gf_unmanaged_tell(GF_UNMANAGED_RESTORED, "/bin/sh");
}

GF_EXPORT int system(const char *command)
{
    restore();
    return real.system(command);
}

GF_EXPORT FILE *popen(const char *command, const char *mode)
{
    restore();
    return real.popen(command, mode);
}
