package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

//go:generate go run ./gen ../../hook/wire.h

// Constants of the client protocol. A message is one SEQPACKET record, little-endian and without
// padding.
const (
	Magic      uint32 = 0x31544647 // "GFT1"
	Version    uint16 = 2
	MaxMessage        = 512  // bytes; a longer record is an error, except a grant
	MaxGrant          = 4096 // bytes of the text of a grant
	HeaderSize        = 16
)

// MsgType is the type of a client message.
type MsgType uint16

// The client messages. "Process" is the library in a process of an instance, "daemon" is
// gfaas-tokend.
const (
	MsgHello     MsgType = 1 // process to daemon: the first message
	MsgWelcome   MsgType = 2 // daemon to process: accepted; carries the instance page's descriptor
	MsgRefused   MsgType = 3 // daemon to process: not accepted; the connection ends
	MsgRequest   MsgType = 4 // process to daemon: a thread waits at the closed gate
	MsgLeaseEnd  MsgType = 5 // daemon to process: the gate is closed; drain and return the lease
	MsgReturn    MsgType = 6 // process to daemon: the lease has no work in flight
	MsgUnmanaged MsgType = 7 // process to daemon, instead of a hello: it starts a program that leaves the slice, or would have
	MsgNoted     MsgType = 8 // daemon to process: answers an unmanaged program; the connection ends
	MsgEnding    MsgType = 9 // process to daemon, if the page has PageEndings: the lease's work in flight will soon finish

	MsgFault MsgType = 10 // process to daemon, if the page has PageFaults: it can no longer use CUDA

	MsgMove  MsgType = 11 // daemon to process: move managed memory (GFAAS_OVERSUBSCRIBE); older libraries ignore it
	MsgMoved MsgType = 12 // process to daemon: answers a Move

	MsgGrant MsgType = 13 // process to daemon, before a hello or MsgUnmanaged: the instance's grant (AppendGrant)
)

// Values of UnmanagedProgram.Kind: why a program that a process starts would run without the preload
// library.
const (
	ProgramRestored  uint32 = iota // the environment lacked the library; the library has put itself back
	ProgramStatic                  // the program is statically linked
	ProgramOtherLibc               // the program uses another libc
	ProgramSetuid                  // the program is setuid or setgid
	ProgramFileCaps                // the program has file capabilities
	ProgramOtherArch               // the program is built for another architecture
	ProgramKinds
)

// ReturnWantsMore in Return.Flags: the process has further work to launch.
const ReturnWantsMore uint32 = 1 << 0

// Header is at the start of every message.
type Header struct {
	Magic   uint32
	Type    uint16
	Version uint16
	Size    uint32 // of the whole message in bytes, header included
	Flags   uint32 // HelloManySlots, HelloMoves or RefusedFull; 0 and ignored in other messages
}

// HelloManySlots in Header.Flags of a Hello: the library supports PageSlotsMost slots in an
// instance page. Older libraries support PageSlots.
const HelloManySlots uint32 = 1 << 0

// HelloMoves in Header.Flags of a Hello: the library answers Move. Older libraries ignore it.
const HelloMoves uint32 = 1 << 1

// RefusedFull in Header.Flags of a Refused: the instance has the maximum number of processes. The
// process may try again; work that waits for a slot fails after a while.
const RefusedFull uint32 = 1 << 0

const flagsAt = 12 // offset in a message

// Flags returns the header's flags of a message that Parse accepts.
func Flags(frame []byte) uint32 { return binary.LittleEndian.Uint32(frame[flagsAt:]) }

// SetFlags sets the header's flags of a message and returns the message.
func SetFlags(frame []byte, flags uint32) []byte {
	binary.LittleEndian.PutUint32(frame[flagsAt:], flags)
	return frame
}

// Name is a NUL-padded instance ID or secret.
type Name [64]byte

// Reason is a NUL-padded text for people.
type Reason [128]byte

// Message is a client message: Hello, Welcome, Refused, Request, LeaseEnd, Return,
// UnmanagedProgram, Noted, Ending, Fault, Move or Moved.
type Message interface{ Type() MsgType }

// Hello identifies a process. A process that connects again reports the GPU memory that it has
// allocated.
type Hello struct {
	PID      uint32 // in the process's PID namespace; the daemon uses SO_PEERCRED instead
	Device   uint32 // index of the GPU in Registration.Allocations
	MemUsed  uint64 // bytes allocated
	Instance Name
	Secret   Name
}

// Welcome accepts a process. The record carries the instance page's descriptor in SCM_RIGHTS.
type Welcome struct {
	Slot     uint32 // index of the process's slot in the page
	NSlots   uint32
	MemLimit uint64 // bytes for the whole instance; 0: no limit
	WindowNS uint64
}

// Refused rejects a hello, with the reason. Its layout is the same in all versions of the
// protocol; its header has the version of the hello.
type Refused struct{ Reason Reason }

// Request asks for a lease.
type Request struct{}

// LeaseEnd asks the process to return a lease, whose gate is already closed.
type LeaseEnd struct {
	Lease    uint32
	Reserved uint32
}

// Return returns a lease and reports the GPU time used.
type Return struct {
	Lease  uint32
	Flags  uint32 // ReturnWantsMore
	UsedNS uint64 // from the grant to the end of the last launch
}

// Ending predicts when the work in flight of a revoked lease will finish. The daemon can then
// grant the next lease early, so that the next work is queued when this one ends.
type Ending struct {
	Lease    uint32
	Reserved uint32
	LeftNS   uint64 // time until then
}

// Fault reports the first CUDA error after which every call of the process fails. A process sends
// it once on each connection, for the device of that connection.
type Fault struct {
	Code     uint32 // as in CUresult
	Reserved uint32
	Call     Name // driver API function that returned the error
}

// Move orders a process to move its managed memory.
type Move struct {
	Number uint32 // identifies the order
	ToHost uint32 // 1: to the host; 0: to the GPU
}

// Moved answers a Move when the move has ended.
type Moved struct {
	Number   uint32 // of the Move
	Complete uint32 // 1: all managed memory has moved; 0: the process had work, or the driver refused
}

// UnmanagedProgram reports a program that a process of an instance starts and that leaves the slice,
// or would have left it (ProgramRestored).
type UnmanagedProgram struct {
	Kind     uint32
	Reserved uint32
	Instance Name
	Secret   Name
	Program  Reason // path of the program, possibly truncated
}

// Noted answers an UnmanagedProgram.
type Noted struct {
	First    uint32 // 1: the first such program of its kind in the instance; the process prints a note
	Reserved uint32
}

// Type implements Message.
func (Hello) Type() MsgType { return MsgHello }

// Type implements Message.
func (Welcome) Type() MsgType { return MsgWelcome }

// Type implements Message.
func (Refused) Type() MsgType { return MsgRefused }

// Type implements Message.
func (Request) Type() MsgType { return MsgRequest }

// Type implements Message.
func (LeaseEnd) Type() MsgType { return MsgLeaseEnd }

// Type implements Message.
func (Return) Type() MsgType { return MsgReturn }

// Type implements Message.
func (UnmanagedProgram) Type() MsgType { return MsgUnmanaged }

// Type implements Message.
func (Noted) Type() MsgType { return MsgNoted }

// Type implements Message.
func (Ending) Type() MsgType { return MsgEnding }

// Type implements Message.
func (Fault) Type() MsgType { return MsgFault }

// Type implements Message.
func (Move) Type() MsgType { return MsgMove }

// Type implements Message.
func (Moved) Type() MsgType { return MsgMoved }

// MakeName pads an instance ID or secret. It fails if the text contains NUL or leaves no room for
// one.
func MakeName(s string) (n Name, err error) {
	if len(s) >= len(n) || bytes.IndexByte([]byte(s), 0) >= 0 {
		return n, fmt.Errorf("%q does not fit: expected at most %d bytes and no NUL", s, len(n)-1)
	}
	copy(n[:], s)
	return n, nil
}

// MakeReason pads a text, and truncates it if necessary.
func MakeReason(s string) (r Reason) {
	copy(r[:len(r)-1], s)
	return r
}

// String returns the text before the first NUL.
func (n Name) String() string { return text(n[:]) }

// String returns the text before the first NUL.
func (r Reason) String() string { return text(r[:]) }

func text(b []byte) string {
	before, _, _ := bytes.Cut(b, []byte{0})
	return string(before)
}

// Append appends the encoding of a message, header included.
func Append(buf []byte, m Message) []byte {
	h := Header{Magic: Magic, Type: uint16(m.Type()), Version: Version, Size: uint32(HeaderSize + binary.Size(m))}
	buf = must(binary.Append(buf, binary.LittleEndian, h))
	return must(binary.Append(buf, binary.LittleEndian, m))
}

// must panics on an error, which cannot occur because all messages have a fixed size.
func must(buf []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return buf
}

// AppendGrant appends the encoding of a MsgGrant: a header and the text of a grant, at most MaxGrant bytes. It is the
// only message of variable size, and Parse refuses it. A process sends it before its first message, and does not
// wait for an answer: the answer to that message follows both.
func AppendGrant(buf []byte, grant string) []byte {
	h := Header{Magic: Magic, Type: uint16(MsgGrant), Version: Version, Size: uint32(HeaderSize + len(grant))}
	return append(must(binary.Append(buf, binary.LittleEndian, h)), grant...)
}

// ReadGrant returns the text of a frame that is a MsgGrant. It returns false if the frame is another message.
func ReadGrant(frame []byte) (grant string, ok bool) {
	var h Header
	_, err := binary.Decode(frame, binary.LittleEndian, &h)
	if err != nil || h.Magic != Magic || h.Version != Version || MsgType(h.Type) != MsgGrant || int(h.Size) != len(frame) {
		return "", false
	}
	return string(frame[HeaderSize:]), true
}

// For encodes the message for a peer that uses the given version of the protocol.
func (r Refused) For(version uint16) []byte {
	frame := Append(nil, r)
	binary.LittleEndian.PutUint16(frame[6:], version)
	return frame
}

// VersionError reports a message in another version of the protocol. It wraps errFrame.
type VersionError struct{ Version uint16 }

// Error names both versions.
func (e VersionError) Error() string {
	return fmt.Sprintf("%v: version %d, expected %d", errFrame, e.Version, Version)
}

// Unwrap returns errFrame.
func (VersionError) Unwrap() error { return errFrame }

// errFrame is wrapped by every error of Parse: the peer does not speak this protocol, so the
// connection must end.
var errFrame = errors.New("not a client message")

// Parse decodes one message, which must fill the frame. All its errors wrap errFrame.
func Parse(frame []byte) (Message, error) {
	if len(frame) > MaxMessage {
		return nil, fmt.Errorf("%w: %d bytes, expected at most %d", errFrame, len(frame), MaxMessage)
	}
	var h Header
	if _, err := binary.Decode(frame, binary.LittleEndian, &h); err != nil {
		return nil, fmt.Errorf("%w: %d bytes, which is less than a header", errFrame, len(frame))
	}
	switch {
	case h.Magic != Magic:
		return nil, fmt.Errorf("%w: magic %#x, expected %#x", errFrame, h.Magic, Magic)
	case h.Version != Version:
		return nil, VersionError{h.Version}
	case int(h.Size) != len(frame):
		return nil, fmt.Errorf("%w: %d bytes according to the header, but the record has %d", errFrame, h.Size, len(frame))
	}
	if h.Type == 0 || int(h.Type) >= len(codecs) {
		return nil, fmt.Errorf("%w: unknown type %d", errFrame, h.Type)
	}
	body, c := frame[HeaderSize:], codecs[h.Type]
	if len(body) != c.size {
		return nil, fmt.Errorf("%w: type %d has a body of %d bytes, expected %d", errFrame, h.Type, len(body), c.size)
	}
	return c.decode(body), nil
}

// codecs holds the codec of each type of message.
var codecs = [...]codec{
	MsgHello: codecOf[Hello](), MsgWelcome: codecOf[Welcome](), MsgRefused: codecOf[Refused](),
	MsgRequest: codecOf[Request](), MsgLeaseEnd: codecOf[LeaseEnd](), MsgReturn: codecOf[Return](),
	MsgUnmanaged: codecOf[UnmanagedProgram](), MsgNoted: codecOf[Noted](), MsgEnding: codecOf[Ending](),
	MsgFault: codecOf[Fault](), MsgMove: codecOf[Move](), MsgMoved: codecOf[Moved](),
}

// codec decodes the body of a message, which follows the header.
type codec struct {
	size   int // of the body in bytes
	decode func(body []byte) Message
}

func codecOf[M Message]() codec {
	var m M
	return codec{binary.Size(m), func(body []byte) Message {
		var m M
		if _, err := binary.Decode(body, binary.LittleEndian, &m); err != nil {
			panic(err) // cannot occur: the caller has checked the size
		}
		return m
	}}
}
