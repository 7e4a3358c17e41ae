package wire

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"
)

//go:generate go run ./gen ../../hook/wire.h

// cStructs are the Go types that C sees, under these names. They have no
// hidden padding in either language.
var cStructs = []struct {
	name  string
	note  string
	value any
	msg   bool // begins with the header in C
}{
	{"header", "begins every message", Header{}, false},
	{"hello", "process to daemon, first", Hello{}, true},
	{"welcome", "daemon to process, with the page's descriptor in SCM_RIGHTS", Welcome{}, true},
	{"refused", "daemon to process, then the connection ends", Refused{}, true},
	{"request", "process to daemon: it waits at its gate", Request{}, true},
	{"lease_end", "daemon to process: the gate is closed, drain and return", LeaseEnd{}, true},
	{"return", "process to daemon: nothing of that lease is in flight", Return{}, true},
	{"slot", "one process's part of the instance page", PageSlot{}, false},
}

var cConstants = []struct {
	name  string
	value any
}{
	{"GF_MAGIC", Magic}, {"GF_VERSION", Version}, {"GF_MAX_MESSAGE", MaxMessage},
	{"GF_MSG_HELLO", MsgHello}, {"GF_MSG_WELCOME", MsgWelcome}, {"GF_MSG_REFUSED", MsgRefused},
	{"GF_MSG_REQUEST", MsgRequest}, {"GF_MSG_LEASE_END", MsgLeaseEnd}, {"GF_MSG_RETURN", MsgReturn},
	{"GF_RETURN_WANTS_MORE", ReturnWantsMore}, {"GF_NAME_SIZE", len(Name{})}, {"GF_REASON_SIZE", len(Reason{})},
	{"GF_PAGE_SLOTS", PageSlots}, {"GF_PAGE_SLOTS_OFFSET", PageSlotsOffset},
	{"GF_PAGE_SLOT_SIZE", PageSlotSize}, {"GF_PAGE_SIZE", PageSize}, {"GF_PAGE_METERED", PageMetered},
}

// CHeader is the text of hook/wire.h: the client protocol and the instance
// page as C sees them.
func CHeader() string {
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
	h := reflect.TypeFor[PageHeader]()
	fmt.Fprintf(&b, "\n/* the instance page */\nstruct gf_page {\n%s\tuint8_t pad[GF_PAGE_SLOTS_OFFSET - %d];\n"+
		"\tstruct gf_slot slots[GF_PAGE_SLOTS];\n};\n", cFields(h), h.Size())
	b.WriteString("_Static_assert(offsetof(struct gf_page, slots) == GF_PAGE_SLOTS_OFFSET, \"layout of gf_page\");\n" +
		"_Static_assert(sizeof(struct gf_page) == GF_PAGE_SIZE, \"size of gf_page\");\n\n#endif\n")
	return b.String()
}

// writeStruct prints one C struct and what holds its layout to Go's.
func writeStruct(b *strings.Builder, name, note string, t reflect.Type, msg bool) {
	fmt.Fprintf(b, "\n/* %s */\nstruct gf_%s {\n", note, name)
	offset := uintptr(0)
	if msg {
		b.WriteString("\tstruct gf_header h;\n")
		offset = HeaderSize
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

// snake turns MemUsed into mem_used and UsedNS into used_ns.
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
