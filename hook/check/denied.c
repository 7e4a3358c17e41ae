/* denied: launches kernels, denies itself system calls as a sandbox does, and launches more.
 *
 *   denied WHO CALL...
 *
 * WHO is thread (only the thread that launches), all (all threads of the process) or early (all
 * threads, before the first launch). A denied call fails with EPERM. */
#define _GNU_SOURCE
#include "check.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 8, LAUNCHES = 60 };

static const struct {
    const char *name;
    unsigned number;
} calls[] = {{"sendto", SYS_sendto}, {"sendmsg", SYS_sendmsg}, {"recvmsg", SYS_recvmsg}, {"recvfrom", SYS_recvfrom},
             {"epoll_ctl", SYS_epoll_ctl}, {"socket", SYS_socket}, {"connect", SYS_connect}};

static unsigned number_of(const char *name)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(name, calls[i].name))
            return calls[i].number;
    exit(2);
}

static void forbid(int n, char **names, unsigned long flags)
{
    struct sock_filter code[2 * MOST + 2];
    unsigned short at = 0;
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < n && i < MOST; i++) {
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number_of(names[i]), 0, 1);
        code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1 /* EPERM */);
    }
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {at, code};
    ASSERT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    ASSERT(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program) == 0);
}

static void launches(CUfunction nop, int n)
{
    for (int i = 0; i < n; i++) {
        launch_block(nop, NULL);
        if (i % 4 == 0)
            ASSERT_SUCCESS(cuCtxSynchronize());
        usleep(3000); /* meanwhile the lease is returned, and the next launch requests one */
    }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    if (!strcmp(argv[1], "early"))
        forbid(argc - 2, argv + 2, 0);
    primary_context();
    CUfunction nop = timed_kernel(100);
    launches(nop, 8);
    if (strcmp(argv[1], "early"))
        forbid(argc - 2, argv + 2, strcmp(argv[1], "all") ? 0 : SECCOMP_FILTER_FLAG_TSYNC);
    launches(nop, LAUNCHES);
    return 0;
}
