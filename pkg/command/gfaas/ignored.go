package gfaas

// #include <signal.h>
//
// static unsigned long long ignored;
//
// __attribute__((constructor)) static void note(void)
// {
//     for (int s = 1; s <= 64; s++) {
//         struct sigaction a;
//         if (sigaction(s, NULL, &a) == 0 && a.sa_handler == SIG_IGN)
//             ignored |= 1ull << (s - 1);
//     }
// }
//
// static unsigned long long ignored_at_start(void) { return ignored; }
import "C"

import "syscall"

// ignoredAtStart says whether our starter had us ignore a signal, as shells do
// for what runs in the background of a script, and systemd with SIGPIPE. Go's
// runtime puts its own handlers in the place of most of that, so it is noted
// before the runtime starts.
func ignoredAtStart(s syscall.Signal) bool { return C.ignored_at_start()&(1<<(s-1)) != 0 }
