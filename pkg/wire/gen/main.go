// Command gen writes the C header of the client protocol and the instance page, hook/wire.h, to the
// given file. Run it with go generate in pkg/wire.
package main

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"unicode"

	"github.com/gfaas/gfaas/pkg/wire"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gen FILE")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], []byte(header()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// cStructs lists the Go types to translate, with their C names. They have no hidden padding in
// either language.
var cStructs = []struct {
	name  string
	note  string
	value any
	msg   bool // begins with struct gf_header in C
}{
	{"header", "start of every message", wire.Header{}, false},
	{"hello", "process to daemon: the first message", wire.Hello{}, true},
	{"welcome", "daemon to process: accepted, with the page's descriptor in SCM_RIGHTS", wire.Welcome{}, true},
	{"refused", "daemon to process: not accepted; the connection ends", wire.Refused{}, true},
	{"request", "process to daemon: a thread waits at the closed gate", wire.Request{}, true},
	{"lease_end", "daemon to process: the gate is closed; drain and return the lease", wire.LeaseEnd{}, true},
	{"return", "process to daemon: the lease has no work in flight", wire.Return{}, true},
	{"unmanaged", "process to daemon, instead of a hello: it starts a program that leaves the slice, or would have", wire.UnmanagedProgram{}, true},
	{"noted", "daemon to process: answers unmanaged; the connection ends", wire.Noted{}, true},
	{"ending", "process to daemon: when the lease's work in flight will finish", wire.Ending{}, true},
	{"fault", "process to daemon: it can no longer use CUDA", wire.Fault{}, true},
	{"move", "daemon to process: move the managed memory", wire.Move{}, true},
	{"moved", "process to daemon: the move has ended", wire.Moved{}, true},
	{"slot", "one process's part of the instance page", wire.PageSlot{}, false},
}

var cConstants = []struct {
	name  string
	value any
}{
	{"GF_MAGIC", wire.Magic}, {"GF_VERSION", wire.Version}, {"GF_MAX_MESSAGE", wire.MaxMessage},
	{"GF_MAX_GRANT", wire.MaxGrant},
	{"GF_MSG_HELLO", wire.MsgHello}, {"GF_MSG_WELCOME", wire.MsgWelcome}, {"GF_MSG_REFUSED", wire.MsgRefused},
	{"GF_MSG_REQUEST", wire.MsgRequest}, {"GF_MSG_LEASE_END", wire.MsgLeaseEnd}, {"GF_MSG_RETURN", wire.MsgReturn},
	{"GF_MSG_UNMANAGED", wire.MsgUnmanaged}, {"GF_MSG_NOTED", wire.MsgNoted}, {"GF_MSG_ENDING", wire.MsgEnding},
	{"GF_MSG_FAULT", wire.MsgFault}, {"GF_MSG_MOVE", wire.MsgMove}, {"GF_MSG_MOVED", wire.MsgMoved},
	{"GF_MSG_GRANT", wire.MsgGrant},
	{"GF_UNMANAGED_RESTORED", wire.ProgramRestored}, {"GF_UNMANAGED_STATIC", wire.ProgramStatic}, {"GF_UNMANAGED_LIBC", wire.ProgramOtherLibc},
	{"GF_UNMANAGED_SETUID", wire.ProgramSetuid}, {"GF_UNMANAGED_CAPABLE", wire.ProgramFileCaps}, {"GF_UNMANAGED_MACHINE", wire.ProgramOtherArch},
	{"GF_UNMANAGED_KINDS", wire.ProgramKinds},
	{"GF_RETURN_WANTS_MORE", wire.ReturnWantsMore}, {"GF_NAME_SIZE", len(wire.Name{})}, {"GF_REASON_SIZE", len(wire.Reason{})},
	{"GF_HELLO_MANY_SLOTS", wire.HelloManySlots}, {"GF_HELLO_MOVES", wire.HelloMoves}, {"GF_REFUSED_FULL", wire.RefusedFull},
	{"GF_PAGE_SLOTS", wire.PageSlots}, {"GF_PAGE_SLOTS_MOST", wire.PageSlotsMost},
	{"GF_PAGE_SLOTS_OFFSET", wire.PageSlotsOffset}, {"GF_PAGE_SLOT_SIZE", wire.PageSlotSize},
	{"GF_PAGE_SIZE", wire.PageSize}, {"GF_PAGE_SIZE_MOST", wire.PageSizeMost}, {"GF_PAGE_METERED", wire.PageMetered},
	{"GF_PAGE_ENDINGS", wire.PageEndings}, {"GF_PAGE_FAULTS", wire.PageFaults},
	{"GF_PAGE_PIDS", wire.PagePIDs},
}

// header returns the text of hook/wire.h.
func header() string {
	var b strings.Builder
	b.WriteString("/* Generated from pkg/wire by go generate: do not edit.\n" +
		" * The client protocol of gfaas-tokend and the instance page. Little-endian;\n" +
		" * one message is one SEQPACKET record. */\n" +
		"#ifndef GF_WIRE_H\n#define GF_WIRE_H\n\n#include <stddef.h>\n#include <stdint.h>\n\n")
	for _, c := range cConstants {
		format := "#define %s %d\n"
		if c.name == "GF_MAGIC" {
			format = "#define %s %#xu\n"
		}
		fmt.Fprintf(&b, format, c.name, c.value)
	}
	for _, s := range cStructs {
		writeStruct(&b, s.name, s.note, reflect.TypeOf(s.value), s.msg)
	}
	h := reflect.TypeFor[wire.PageHeader]()
	fmt.Fprintf(&b, "\n/* the instance page */\nstruct gf_page {\n%s\tuint8_t pad[GF_PAGE_SLOTS_OFFSET - %d];\n"+
		"\tstruct gf_slot slots[]; /* GF_PAGE_SLOTS, or GF_PAGE_SLOTS_MOST */\n};\n", cFields(h), h.Size())
	b.WriteString("_Static_assert(offsetof(struct gf_page, slots) == GF_PAGE_SLOTS_OFFSET, \"layout of gf_page\");\n" +
		"_Static_assert(sizeof(struct gf_page) == GF_PAGE_SLOTS_OFFSET, \"size of gf_page\");\n\n#endif\n")
	return b.String()
}

// writeStruct writes a C struct, and static assertions that its layout equals Go's.
func writeStruct(b *strings.Builder, name, note string, t reflect.Type, msg bool) {
	fmt.Fprintf(b, "\n/* %s */\nstruct gf_%s {\n", note, name)
	offset := uintptr(0)
	if msg {
		b.WriteString("\tstruct gf_header h;\n")
		offset = wire.HeaderSize
	}
	fmt.Fprintf(b, "%s};\n_Static_assert(sizeof(struct gf_%s) == %d, \"size of gf_%s\");\n", cFields(t), name, offset+t.Size(), name)
	for i := range t.NumField() {
		f := t.Field(i)
		fmt.Fprintf(b, "_Static_assert(offsetof(struct gf_%s, %s) == %d, \"layout of gf_%s\");\n", name, snake(f.Name), offset+f.Offset, name)
	}
}

func cFields(t reflect.Type) string {
	var b strings.Builder
	for i := range t.NumField() {
		f := t.Field(i)
		switch {
		case f.Type.Kind() == reflect.Array && f.Type.Name() != "":
			fmt.Fprintf(&b, "\tchar %s[%d];\n", snake(f.Name), f.Type.Len())
		case f.Type.Kind() == reflect.Array:
			fmt.Fprintf(&b, "\tuint8_t %s[%d];\n", snake(f.Name), f.Type.Len())
		default:
			fmt.Fprintf(&b, "\tuint%d_t %s;\n", f.Type.Bits(), snake(f.Name))
		}
	}
	return b.String()
}

// snake converts MemUsed to mem_used and UsedNS to used_ns.
func snake(s string) string {
	var b strings.Builder
	runes := []rune(s)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && unicode.IsLower(runes[i-1]) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
