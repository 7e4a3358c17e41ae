/* unmanaged.c: started programs that the library cannot be loaded into (unmanaged programs).
 *
 * Each one is reported to the daemon, for its status and its log. The daemon answers whether the
 * program is the first of its kind in the instance; then a line is printed. All of this runs between
 * fork and exec, in a child that may share its parent's memory, so it takes no memory and no lock, makes
 * system calls only, and waits for at most 200 ms. */
#include "unmanaged.h"

#include "handshake.h"
#include "say.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#define ANSWER_MS 200
#define MAX_SCRIPTS 5 /* longest chain of scripts as interpreters, as in the kernel */
#define MAX_SEGMENTS 64

#if defined(__x86_64__)
#define OWN_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define OWN_MACHINE EM_AARCH64
#endif

/* ---- kinds of programs ---- */

static bool read_at(int fd, void *to, size_t size, off_t at)
{
    return syscall(SYS_pread64, fd, to, size, at) == (long)size;
}

static bool begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_glibc_loader(const char *path)
{
    const char *base = base_of(path);
    return begins(base, "ld-linux") || begins(base, "ld-lsb") || begins(base, "ld64.so") || begins(base, "ld.so");
}

/* Returns the kind of a program for which the kernel makes the loader ignore the library (AT_SECURE), or
 * GF_UNMANAGED_NONE. */
static int privileged(int fd, const struct stat *file)
{
    char capability[1];
    if (syscall(SYS_prctl, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
        return GF_UNMANAGED_NONE;
    if ((file->st_mode & S_ISUID && file->st_uid != getuid()) ||
        (file->st_mode & S_ISGID && file->st_mode & S_IXGRP && file->st_gid != getgid()))
        return GF_UNMANAGED_SETUID;
    if (getuid() != 0 && (fgetxattr(fd, "security.capability", capability, sizeof capability) > 0 || errno == ERANGE))
        return GF_UNMANAGED_CAPABLE;
    return GF_UNMANAGED_NONE;
}

static int elf_stray(int fd, const char *name, const Elf64_Ehdr *head)
{
    if (head->e_ident[EI_CLASS] != ELFCLASS64 || head->e_machine != OWN_MACHINE)
        return GF_UNMANAGED_MACHINE;
    for (unsigned i = 0; i < head->e_phnum && i < MAX_SEGMENTS; i++) {
        Elf64_Phdr segment;
        char loader[256] = "";
        if (!read_at(fd, &segment, sizeof segment, (off_t)(head->e_phoff + i * sizeof segment)))
            return GF_UNMANAGED_UNKNOWN;
        if (segment.p_type != PT_INTERP)
            continue;
        size_t size = segment.p_filesz < sizeof loader ? segment.p_filesz : sizeof loader - 1;
        if (!read_at(fd, loader, size, (off_t)segment.p_offset))
            return GF_UNMANAGED_UNKNOWN;
        loader[sizeof loader - 1] = 0;
        return is_glibc_loader(loader) ? GF_UNMANAGED_NONE : GF_UNMANAGED_LIBC;
    }
    return is_glibc_loader(name) ? GF_UNMANAGED_NONE : GF_UNMANAGED_STATIC; /* the program may be the loader itself */
}

/* Extracts the interpreter's name from the first line of a script. Returns false if there is none. */
static bool interpreter_of(char *head, char **name)
{
    head[strcspn(head, "\n")] = 0;
    *name = head + 2 + strspn(head + 2, " \t");
    (*name)[strcspn(*name, " \t")] = 0;
    return **name;
}

int gf_unmanaged_file(int fd, const char *name)
{
    union {
        Elf64_Ehdr elf;
        char text[256];
    } head;
    char *next;
    int kind = GF_UNMANAGED_UNKNOWN, opened = -1;
    for (int scripts = 0; scripts < MAX_SCRIPTS; scripts++) {
        struct stat file;
        memset(&head, 0, sizeof head);
        if (syscall(SYS_fstat, fd, &file) != 0 || !S_ISREG(file.st_mode) || !(file.st_mode & 0111) ||
            syscall(SYS_pread64, fd, head.text, sizeof head.text - 1, 0) < 4)
            break;
        if (begins(head.text, "#!") && interpreter_of(head.text, &next)) {
            int found = (int)syscall(SYS_openat, AT_FDCWD, next, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
            if (opened >= 0)
                syscall(SYS_close, opened);
            fd = opened = found;
            name = next;
            continue;
        }
        if (memcmp(head.elf.e_ident, ELFMAG, SELFMAG) != 0)
            break; /* another format, for the kernel or a shell */
        kind = privileged(fd, &file);
        if (kind == GF_UNMANAGED_NONE)
            kind = elf_stray(fd, name, &head.elf);
        break;
    }
    if (opened >= 0)
        syscall(SYS_close, opened);
    return kind;
}

/* ---- reports ---- */

static struct gf_identity identity; /* when the process began */

void gf_unmanaged_init(void)
{
    if (!gf_identify(&identity))
        *identity.secret = 0;
}

/* Reports the program to the daemon. Returns true if the daemon knew of another one of the kind. */
static bool known_already(uint32_t kind, const char *program)
{
    struct gf_unmanaged report = {.h = gf_header(GF_MSG_UNMANAGED, sizeof report), .kind = kind};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct gf_noted noted;
    if (!*identity.secret || strlen(identity.socket) >= sizeof address.sun_path)
        return false;
    memcpy(report.instance, identity.instance, sizeof report.instance);
    memcpy(report.secret, identity.secret, sizeof report.secret);
    strncpy(report.program, program, sizeof report.program - 1);
    strcpy(address.sun_path, identity.socket);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    bool known = syscall(SYS_connect, fd, &address, sizeof address) == 0 && gf_transmit_grant(fd, &identity) &&
                 gf_transmit(fd, &report, sizeof report) &&
                 syscall(SYS_ppoll, &answer, 1, &(struct timespec){0, ANSWER_MS * 1000000}, NULL, 0) == 1 &&
                 gf_is(&noted, syscall(SYS_recvfrom, fd, &noted, sizeof noted, 0, NULL, NULL), GF_MSG_NOTED, sizeof noted) &&
                 !noted.first;
    syscall(SYS_close, fd);
    return known;
}

void gf_unmanaged_tell(uint32_t kind, const char *program)
{
    static const char *const why[GF_UNMANAGED_KINDS] = {
        [GF_UNMANAGED_RESTORED] = "is started without the preload library or its variables in the environment: they are restored",
        [GF_UNMANAGED_STATIC] = "is statically linked: it and the programs that it starts run without the preload library, so their GPU work is not gated",
        [GF_UNMANAGED_LIBC] = "is linked with another libc than glibc: it and the programs that it starts run without the preload library, so their GPU work is not gated",
        [GF_UNMANAGED_SETUID] = "is setuid or setgid: it and the programs that it starts run without the preload library, so their GPU work is not gated",
        [GF_UNMANAGED_CAPABLE] = "has file capabilities: it and the programs that it starts run without the preload library, so their GPU work is not gated",
        [GF_UNMANAGED_MACHINE] = "is built for another architecture: it and the programs that it starts run without the preload library, so their GPU work is not gated",
    };
    if (!known_already(kind, program) && gf_own_errors())
        gf_say(GF_SAY_STRAY + kind, "%s %s", program, why[kind]);
}
