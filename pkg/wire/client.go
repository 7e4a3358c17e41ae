package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

//go:generate go run ./gen ../../hook/wire.h

// Limits and constants of the client protocol: one message is one SEQPACKET
// record, little-endian, with no padding.
const (
	Magic      uint32 = 0x31544647 // "GFT1"
	Version    uint16 = 2
	MaxMessage        = 512 // bytes; a longer record ends the connection
	HeaderSize        = 16
)

// MsgType tells the client messages apart.
type MsgType uint16

// The client messages, in the direction they travel.
const (
	MsgHello    MsgType = 1 // process to daemon, first
	MsgWelcome  MsgType = 2 // daemon to process, with the instance page's descriptor
	MsgRefused  MsgType = 3 // daemon to process, then the connection ends
	MsgRequest  MsgType = 4 // process to daemon: it waits at its gate
	MsgLeaseEnd MsgType = 5 // daemon to process: its gate has been closed, drain and return
	MsgReturn   MsgType = 6 // process to daemon: nothing of that lease is in flight any more
	MsgStray    MsgType = 7 // process to daemon, in place of a hello: it starts a program that leaves the slice, or would have
	MsgNoted    MsgType = 8 // daemon to process, then the connection ends
	MsgEnding   MsgType = 9 // process to daemon, where the page asks for it: what that lease has in flight is over soon

	MsgFault MsgType = 10 // process to daemon, where the page asks for it: it cannot use CUDA any more
)

// What Stray.Kind says of a program that a process of an instance starts.
const (
	StrayRestored uint32 = iota // its environment lacked the preload library, which was put back
	StrayStatic                 // the library cannot be loaded into it: it is statically linked,
	StrayLibc                   // linked with another libc,
	StraySetuid                 // setuid or setgid,
	StrayCapable                // has file capabilities,
	StrayMachine                // or is built for another machine
	StrayKinds
)

// ReturnWantsMore in Return.Flags says that the process still waits to launch.
const ReturnWantsMore uint32 = 1 << 0

// Header begins every message.
type Header struct {
	Magic   uint32
	Type    uint16
	Version uint16
	Size    uint32 // of the whole message, header included
	Flags   uint32 // HelloManySlots, RefusedFull; else sent as 0 and ignored when read
}

// HelloManySlots in the header's Flags of a Hello says that the process's library knows
// all PageSlotsMost slots of an instance page. An older one knows PageSlots.
const HelloManySlots uint32 = 1 << 0

// RefusedFull in the header's Flags of a Refused says that the instance has as many
// processes as it can: work that waits for a place fails after a while.
const RefusedFull uint32 = 1 << 0

const flagsAt = 12 // in a message

// Flags returns the flags in the header of a message that Parse accepts.
func Flags(frame []byte) uint32 { return binary.LittleEndian.Uint32(frame[flagsAt:]) }

// SetFlags sets the flags in the header of a message, and returns it.
func SetFlags(frame []byte, flags uint32) []byte {
	binary.LittleEndian.PutUint32(frame[flagsAt:], flags)
	return frame
}

// Name is a NUL-padded instance id or secret.
type Name [64]byte

// Reason is a NUL-padded message to a person.
type Reason [128]byte

// Message is a client message: Hello, Welcome, Refused, Request, LeaseEnd, Return,
// Stray, Noted, Ending or Fault.
type Message interface{ Type() MsgType }

// Hello says who connects. A process that had connected before tells how much
// GPU memory it has already.
type Hello struct {
	PID      uint32 // as the process sees itself; the daemon trusts SO_PEERCRED instead
	Device   uint32 // which of the instance's GPUs: its place among the registration's allocations
	MemUsed  uint64 // bytes already allocated
	Instance Name
	Secret   Name
}

// Welcome lets a process in and carries the instance page's descriptor in
// SCM_RIGHTS.
type Welcome struct {
	Slot     uint32 // the process's own slot in the page
	NSlots   uint32
	MemLimit uint64 // bytes for the whole instance; 0 is no limit
	WindowNS uint64
}

// Refused says why a hello was not accepted. It is the same in every version of
// the protocol, and sent in the version of the hello.
type Refused struct{ Reason Reason }

// Request asks for a lease.
type Request struct{}

// LeaseEnd asks for a lease back; the gate is closed already.
type LeaseEnd struct {
	Lease    uint32
	Reserved uint32
}

// Return gives a lease back with the GPU time it took.
type Return struct {
	Lease  uint32
	Flags  uint32 // ReturnWantsMore
	UsedNS uint64 // measured from grant to the end of the last launch
}

// Ending says of a lease that was asked back when what it has in flight is over, as far
// as the process can tell, so that the next one's work is on its way by then.
type Ending struct {
	Lease    uint32
	Reserved uint32
	LeftNS   uint64 // from now
}

// Fault reports the first CUDA error of a process after which every call fails until the
// process ends. It is sent once on each connection of one of the process's devices.
type Fault struct {
	Code     uint32 // as in CUresult
	Reserved uint32
	Call     Name // the function of the driver API that returned it
}

// Stray tells of a program that a process of an instance starts.
type Stray struct {
	Kind     uint32
	Reserved uint32
	Instance Name
	Secret   Name
	Program  Reason // its path, as far as it fits
}

// Noted answers a Stray.
type Noted struct {
	First    uint32 // 1: it is the instance's first of its kind, and the process is to say so
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
func (Stray) Type() MsgType { return MsgStray }

// Type implements Message.
func (Noted) Type() MsgType { return MsgNoted }

// Type implements Message.
func (Ending) Type() MsgType { return MsgEnding }

// Type implements Message.
func (Fault) Type() MsgType { return MsgFault }

// MakeName pads an instance id or a secret; it must leave room for one NUL.
func MakeName(s string) (n Name, err error) {
	if len(s) >= len(n) || bytes.IndexByte([]byte(s), 0) >= 0 {
		return n, fmt.Errorf("%q does not fit: expected at most %d bytes and no NUL", s, len(n)-1)
	}
	copy(n[:], s)
	return n, nil
}

// MakeReason pads a reason and cuts it to what fits.
func MakeReason(s string) (r Reason) {
	copy(r[:len(r)-1], s)
	return r
}

// String is the text before the first NUL.
func (n Name) String() string { return text(n[:]) }

// String is the text before the first NUL.
func (r Reason) String() string { return text(r[:]) }

func text(b []byte) string {
	before, _, _ := bytes.Cut(b, []byte{0})
	return string(before)
}

// Append prints a message, header first.
func Append(buf []byte, m Message) []byte {
	h := Header{Magic: Magic, Type: uint16(m.Type()), Version: Version, Size: uint32(HeaderSize + binary.Size(m))}
	buf = must(binary.Append(buf, binary.LittleEndian, h))
	return must(binary.Append(buf, binary.LittleEndian, m))
}

// must unwraps what cannot fail: all messages have a fixed size.
func must(buf []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return buf
}

// For is the record for a peer that speaks that version of the protocol.
func (r Refused) For(version uint16) []byte {
	frame := Append(nil, r)
	binary.LittleEndian.PutUint16(frame[6:], version)
	return frame
}

// A VersionError is a message in another version of the protocol. It wraps
// errFrame.
type VersionError struct{ Version uint16 }

// Error says both versions.
func (e VersionError) Error() string {
	return fmt.Sprintf("%v: version %d, expected %d", errFrame, e.Version, Version)
}

// Unwrap is errFrame.
func (VersionError) Unwrap() error { return errFrame }

// errFrame is what every error of Parse wraps: the peer does not speak this
// protocol and the connection must end.
var errFrame = errors.New("not a client message")

// Parse reads exactly one message.
func Parse(frame []byte) (Message, error) {
	if len(frame) > MaxMessage {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", errFrame, len(frame), MaxMessage)
	}
	var h Header
	if _, err := binary.Decode(frame, binary.LittleEndian, &h); err != nil {
		return nil, fmt.Errorf("%w: %d bytes are less than a header", errFrame, len(frame))
	}
	switch {
	case h.Magic != Magic:
		return nil, fmt.Errorf("%w: magic %#x, expected %#x", errFrame, h.Magic, Magic)
	case h.Version != Version:
		return nil, VersionError{h.Version}
	case int(h.Size) != len(frame):
		return nil, fmt.Errorf("%w: the header says %d bytes, the record has %d", errFrame, h.Size, len(frame))
	}
	body := frame[HeaderSize:]
	switch MsgType(h.Type) {
	case MsgHello:
		return parseBody[Hello](body)
	case MsgWelcome:
		return parseBody[Welcome](body)
	case MsgRefused:
		return parseBody[Refused](body)
	case MsgRequest:
		return parseBody[Request](body)
	case MsgLeaseEnd:
		return parseBody[LeaseEnd](body)
	case MsgReturn:
		return parseBody[Return](body)
	case MsgStray:
		return parseBody[Stray](body)
	case MsgNoted:
		return parseBody[Noted](body)
	case MsgEnding:
		return parseBody[Ending](body)
	case MsgFault:
		return parseBody[Fault](body)
	}
	return nil, fmt.Errorf("%w: type %d is unknown", errFrame, h.Type)
}

func parseBody[M Message](body []byte) (Message, error) {
	var m M
	if want := binary.Size(m); len(body) != want {
		return nil, fmt.Errorf("%w: type %d has a body of %d bytes, expected %d", errFrame, m.Type(), len(body), want)
	}
	if _, err := binary.Decode(body, binary.LittleEndian, &m); err != nil {
		return nil, fmt.Errorf("%w: %w", errFrame, err)
	}
	return m, nil
}
