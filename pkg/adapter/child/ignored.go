package child

// #include <signal.h>
//
// static unsigned long long ignored, blocked;
//
// __attribute__((constructor)) static void note(void)
// {
//     sigset_t mask;
//     if (sigprocmask(SIG_BLOCK, NULL, &mask) != 0)
//         sigemptyset(&mask);
//     for (int s = 1; s <= 64; s++) {
//         struct sigaction a;
//         if (sigaction(s, NULL, &a) == 0 && a.sa_handler == SIG_IGN)
//             ignored |= 1ull << (s - 1);
//         if (sigismember(&mask, s) == 1)
//             blocked |= 1ull << (s - 1);
//     }
// }
//
// static unsigned long long ignored_at_start(void) { return ignored; }
// static unsigned long long blocked_at_start(void) { return blocked; }
import "C"

import "syscall"

// ignoredAtStart reports whether this process ignored a signal from its start, as after
// nohup, in the background of a shell script, or under systemd for SIGPIPE. Go's runtime
// replaces most of these dispositions, so a C constructor reads them before the runtime
// starts.
func ignoredAtStart(s syscall.Signal) bool { return C.ignored_at_start()&(1<<(s-1)) != 0 }

// blockedAtStart reports whether this process's starter had blocked a signal.
func blockedAtStart(s syscall.Signal) bool { return C.blocked_at_start()&(1<<(s-1)) != 0 }
