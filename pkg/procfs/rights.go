package procfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// MaxRights is the largest number of descriptors in a record of a unix socket (the kernel's SCM_MAX_FD).
const MaxRights = 253

// Rights returns the control message that passes files over a unix socket; nil if there are none.
func Rights(files ...*os.File) []byte {
	if len(files) == 0 {
		return nil
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	return unix.UnixRights(fds...)
}

// ReceivedFiles returns the files in the control messages of a record. Errors call them by the given name.
func ReceivedFiles(oob []byte, name string) (files []*os.File) {
	messages, _ := unix.ParseSocketControlMessage(oob) // the kernel has written them
	for _, m := range messages {
		fds, _ := unix.ParseUnixRights(&m)
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), name))
		}
	}
	return files
}

// Discard closes received files in the background, because closing the last descriptor of a TCP connection can take
// as long as the sender's SO_LINGER demands.
func Discard(files ...*os.File) {
	if len(files) == 0 {
		return
	}
	go func() {
		for _, f := range files {
			_ = unix.SetsockoptLinger(int(f.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			_ = f.Close()
		}
	}()
}
