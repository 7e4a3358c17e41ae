package preload

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func isUnavailable(err error) bool {
	var u interface{ Unavailable() bool }
	return errors.As(err, &u) && u.Unavailable()
}

// compile builds a small program with flags.
func compile(t *testing.T, name string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	source, out := filepath.Join(dir, "main.c"), filepath.Join(dir, name)
	if err := os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.Command("gcc", append([]string{"-o", out, source}, flags...)...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %v: %v\n%s", flags, err, text)
	}
	return out
}

func script(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheckProgram(t *testing.T) {
	dynamic, static := compile(t, "dynamic"), compile(t, "static", "-static")
	musl := compile(t, "musl", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")
	setuid := compile(t, "setuid")
	if err := os.Chmod(setuid, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	setgid := compile(t, "setgid")
	if err := os.Chmod(setgid, 0o755|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	unmoded := script(t, "unmoded", "#!/bin/sh\n")
	if err := os.Chmod(unmoded, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, command, want string }{
		{"dynamic", dynamic, ""},
		{"position dependent", compile(t, "fixed", "-no-pie"), ""},
		{"on PATH", "sh", ""},
		{"script", script(t, "s", "#!"+dynamic+" -x\n"), ""},
		{"script of a blank", script(t, "s", "#! /bin/sh\n"), ""},
		{"script with env", script(t, "s", "#!/usr/bin/env -S A=1 sh -e\n"), ""},
		{"script of a script", script(t, "s", "#!"+script(t, "inner", "#!/bin/sh\n")+"\n"), ""},
		{"static", static, "static is statically linked"},
		{"static, position independent", compile(t, "pie", "-static-pie"), "pie is statically linked"},
		{"script of static", script(t, "s", "#!"+static+"\n"), "static is statically linked"},
		{"musl", musl, "is linked with musl"},
		{"other loader", compile(t, "odd", "-Wl,--dynamic-linker=/lib/ld-uClibc.so.0"), "another libc than glibc"},
		{"setuid", setuid, "is setuid"},
		{"setgid", setgid, "is setgid"},
		{"env -i", script(t, "s", "#!/usr/bin/env -S -i sh\n"), "clears its environment"},
		{"missing", "/no/such/program", "/no/such/program: command not found"},
		{"missing on PATH", "no-such-program-anywhere", "no-such-program-anywhere: command not found"},
		{"missing interpreter", script(t, "s", "#!/no/such/sh\n"), "/no/such/sh: command not found (interpreter of "},
		{"no interpreter", script(t, "s", "#!\n"), "names no interpreter"},
		{"not executable", unmoded, "permission denied"},
		{"a folder", t.TempDir(), "is a folder, expected a program"},
		{"script with carriage returns", script(t, "s", "#!/bin/sh\r\ntrue\r\n"), "has a carriage return after the interpreter"},
		{"env with carriage returns", script(t, "s", "#!/usr/bin/env sh\r\n"), "has a carriage return after the interpreter"},
		{"carriage return behind a flag", script(t, "s", "#!/bin/sh -e\r\n"), ""},
		{"text", script(t, "s", "hello\n"), "neither an ELF program nor a script"},
		{"empty", script(t, "s", ""), "neither an ELF program nor a script"},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, CheckProgram(host{}, c.command), c.want) })
	}
}

func expect(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("error = %v, want one with %q", err, want)
	case want != "" && !isUnavailable(err):
		t.Errorf("error: got %q, want one that is Unavailable", err)
	}
}

func TestScriptsWithoutEnd(t *testing.T) {
	path := script(t, "loop", "")
	if err := os.WriteFile(path, []byte("#!"+path+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	expect(t, CheckProgram(host{}, path), "whose interpreters are all scripts")
}

func TestForeignArchitecture(t *testing.T) {
	program, err := os.ReadFile(compile(t, "foreign"))
	if err != nil {
		t.Fatal(err)
	}
	const machineOffset = 18
	binary.LittleEndian.PutUint16(program[machineOffset:], uint16(elf.EM_S390))
	expect(t, CheckProgram(host{}, script(t, "foreign", string(program))), "built for another architecture (ELFCLASS64, EM_S390)")
}

func TestNotFound(t *testing.T) {
	var missing *notFoundError
	if err := CheckProgram(host{}, "no-such-program-anywhere"); !errors.As(err, &missing) || missing.Hint() == "" {
		t.Errorf("error: got %v, want a notFoundError with a hint", err)
	}
}

func FuzzCheckELF(f *testing.F) {
	program, err := os.ReadFile("/bin/true")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(program)
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := checkELF("x", bytes.NewReader(text)); err != nil && !isUnavailable(err) {
			t.Errorf("error: got %q, want one that is Unavailable", err)
		}
	})
}

func FuzzInterpreter(f *testing.F) {
	f.Add("#!/usr/bin/env -S A=1 python3 -u\n")
	f.Add("#!")
	f.Fuzz(func(t *testing.T, text string) {
		if !strings.HasPrefix(text, "#!") {
			return
		}
		name, err := interpreter("x", []byte(text))
		if (name == "") != (err != nil) {
			t.Errorf("interpreter(%q): got %q, %v; want either a name or an error", text, name, err)
		}
	})
}
