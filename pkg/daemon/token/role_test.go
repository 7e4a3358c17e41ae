package token

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/wire"
)

// The test binary also plays the roles of other processes, selected by roleEnv. Each uses the
// socket in pathEnv, prints a word when it is ready, and exits at the end of its standard input.
const (
	roleEnv = "TOKENTEST_ROLE"
	pathEnv = "TOKENTEST_PATH"

	roleHolder = "holder" // takes a lease and keeps it
	roleLooper = "looper" // launches while it holds a lease
	roleIdler  = "idler"  // only connects
	roleDaemon = "daemon"
	roleEcho   = "echo" // returns all messages
)

var roles map[string]func(path string) error

func init() {
	roles = map[string]func(string) error{roleHolder: playHolder, roleLooper: playLooper, roleDaemon: playDaemon, roleEcho: playEcho, roleIdler: playIdler, roleInsider: playInsider}
}

// role starts a process in a role and waits until it prints the word. It does not wait if the word is
// empty.
func role(t testing.TB, name, path, word string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+name, pathEnv+"="+path)
	return start(t, cmd, word)
}

// start starts a process and waits until it prints the word.
func start(t testing.TB, cmd *exec.Cmd, word string) *exec.Cmd {
	t.Helper()
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if word == "" {
		return cmd // without waiting
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != word+"\n" {
		t.Fatalf("first line of %v: got %q, %v; want %q", cmd, line, err, word)
	}
	return cmd
}

// untilStdinEnds waits until the parent process closes standard input.
func untilStdinEnds() { _, _ = io.Copy(io.Discard, os.Stdin) }

func playIdler(path string) error {
	c, err := tokentest.Dial(path, "a", "secret of a", 0)
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Println("idles")
	untilStdinEnds()
	return nil
}

func playHolder(path string) error {
	c, err := tokentest.Dial(path, "a", "secret of a", 7)
	if err != nil {
		return err
	}
	if err := c.Request(); err != nil {
		return err
	}
	for c.Gate() == 0 {
		<-time.After(time.Millisecond)
	}
	fmt.Println("holds")
	untilStdinEnds()
	return nil
}

func playLooper(path string) error {
	c, err := tokentest.Dial(path, "a", "secret of a", 7)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		untilStdinEnds()
		stop()
	}()
	go func() {
		for atomic.LoadUint64(&c.Slot().Launches) == 0 {
			time.Sleep(time.Millisecond)
		}
		fmt.Println("holds")
	}()
	_, err = c.Saturate(ctx, 1, time.Millisecond)
	return err
}

func playDaemon(path string) error {
	d, err := Open(Config{Socket: path})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		untilStdinEnds()
		stop()
	}()
	fmt.Println("serves")
	return d.Serve(ctx)
}

func playEcho(path string) error {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return err
	}
	fmt.Println("serves")
	go untilStdinEnds()
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			buf := make([]byte, wire.MaxMessage)
			for {
				n, err := conn.Read(buf)
				if err != nil {
					return
				}
				if _, err := conn.Write(buf[:n]); err != nil {
					return
				}
			}
		}()
	}
}
