package wire

import "encoding/binary"

// This file has hand-written decoders for the frequent messages of a lease, because reflection would
// cost more than the scheduler's decision. They accept the same bytes as Parse.

// Kind returns the type of a message, or 0 if its header or size is invalid.
func Kind(frame []byte) MsgType {
	if len(frame) < HeaderSize || len(frame) > MaxMessage {
		return 0
	}
	le := binary.LittleEndian
	t, size := le.Uint16(frame[4:]), le.Uint32(frame[8:])
	if le.Uint32(frame) != Magic || le.Uint16(frame[6:]) != Version || int(size) != len(frame) ||
		t == 0 || int(t) >= len(codecs) || len(frame) != HeaderSize+codecs[t].size {
		return 0
	}
	return MsgType(t)
}

// ReadReturn decodes a message whose Kind is MsgReturn.
func ReadReturn(frame []byte) Return {
	le, body := binary.LittleEndian, frame[HeaderSize:]
	return Return{Lease: le.Uint32(body), Flags: le.Uint32(body[4:]), UsedNS: le.Uint64(body[8:])}
}

// ReadEnding decodes a message whose Kind is MsgEnding.
func ReadEnding(frame []byte) Ending {
	le, body := binary.LittleEndian, frame[HeaderSize:]
	return Ending{Lease: le.Uint32(body), Reserved: le.Uint32(body[4:]), LeftNS: le.Uint64(body[8:])}
}
