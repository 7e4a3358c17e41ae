package child

// #include <errno.h>
// #include <signal.h>
// #include <unistd.h>
//
// static volatile int noted_to;
//
// static void note_signal(int number)
// {
//     int before = errno;
//     unsigned char byte = (unsigned char)number;
//     ssize_t written = write(noted_to, &byte, 1); // drops the signal if the pipe is full
//     (void)written;
//     errno = before;
// }
//
// // Handles each signal of a set by writing its number as one byte to a descriptor.
// static void note_signals(unsigned long long set, int to)
// {
//     struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_ONSTACK | SA_RESTART};
//     sigfillset(&action.sa_mask);
//     noted_to = to;
//     for (int s = 1; s <= 64; s++)
//         if (set & 1ull << (s - 1))
//             sigaction(s, &action, NULL);
// }
import "C"

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// realTime returns the real-time signals that programs may use. The C library reserves the first
// ones.
func realTime() (out []syscall.Signal) {
	const first, last = 35, 64
	for s := syscall.Signal(first); s <= last; s++ {
		out = append(out, s)
	}
	return out
}

// catchRealTime catches the signals of realTime, except those that this process ignored from its
// start, and returns the channel that receives them. Later calls return the same channel.
//
// A handler in C writes the signals to a pipe. With signal.Notify, the runtime would switch
// between threads for each of the 30 signals, which takes a tenth of the time of a short gfaas
// run. But only the runtime unblocks signals in all threads, so signal.Notify catches those that
// the starter of this process had blocked.
var catchRealTime = sync.OnceValues(func() (<-chan os.Signal, error) {
	var pipe [2]int // stays open, because the handler stays installed
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, err
	}
	caught := make(chan os.Signal, 64)
	noted := os.NewFile(uintptr(pipe[0]), "signals")
	go func() {
		var numbers [64]byte
		for {
			n, err := noted.Read(numbers[:])
			if err != nil {
				return
			}
			for _, number := range numbers[:n] {
				caught <- syscall.Signal(number)
			}
		}
	}()
	var set C.ulonglong
	var blocked []syscall.Signal
	for _, s := range realTime() {
		switch {
		case ignoredAtStart(s):
		case blockedAtStart(s):
			blocked = append(blocked, s)
		default:
			set |= 1 << (s - 1)
		}
	}
	C.note_signals(set, C.int(pipe[1]))
	catch(blocked, caught)
	return caught, nil
})
