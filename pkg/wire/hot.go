package wire

import "encoding/binary"

// The messages of a lease's life are read and printed by hand: through
// reflection they would cost more than the scheduler's decision. What is
// printed and read is exactly what Append and Parse print and read.

// sizes of the messages, header included, by type.
var sizes = [...]uint32{
	MsgHello:    HeaderSize + uint32(binary.Size(Hello{})),
	MsgWelcome:  HeaderSize + uint32(binary.Size(Welcome{})),
	MsgRefused:  HeaderSize + uint32(binary.Size(Refused{})),
	MsgRequest:  HeaderSize,
	MsgLeaseEnd: HeaderSize + 8,
	MsgReturn:   HeaderSize + 16,
	MsgStray:    HeaderSize + uint32(binary.Size(Stray{})),
	MsgNoted:    HeaderSize + uint32(binary.Size(Noted{})),
	MsgEnding:   HeaderSize + 16,
	MsgFault:    HeaderSize + uint32(binary.Size(Fault{})),
}

// header prints a message's header.
func header(buf []byte, t MsgType) []byte {
	buf = binary.LittleEndian.AppendUint32(buf, Magic)
	buf = binary.LittleEndian.AppendUint16(buf, uint16(t))
	buf = binary.LittleEndian.AppendUint16(buf, Version)
	buf = binary.LittleEndian.AppendUint32(buf, sizes[t])
	return binary.LittleEndian.AppendUint32(buf, 0)
}

// Append prints the message, header first.
func (Request) Append(buf []byte) []byte { return header(buf, MsgRequest) }

// Append prints the message, header first.
func (m LeaseEnd) Append(buf []byte) []byte {
	buf = header(buf, MsgLeaseEnd)
	buf = binary.LittleEndian.AppendUint32(buf, m.Lease)
	return binary.LittleEndian.AppendUint32(buf, m.Reserved)
}

// Append prints the message, header first.
func (m Return) Append(buf []byte) []byte {
	buf = header(buf, MsgReturn)
	buf = binary.LittleEndian.AppendUint32(buf, m.Lease)
	buf = binary.LittleEndian.AppendUint32(buf, m.Flags)
	return binary.LittleEndian.AppendUint64(buf, m.UsedNS)
}

// Kind says which message a record is; 0 is none that Parse would take.
func Kind(frame []byte) MsgType {
	if len(frame) < HeaderSize || len(frame) > MaxMessage {
		return 0
	}
	le := binary.LittleEndian
	t, size := le.Uint16(frame[4:]), le.Uint32(frame[8:])
	if le.Uint32(frame) != Magic || le.Uint16(frame[6:]) != Version || int(size) != len(frame) ||
		t == 0 || int(t) >= len(sizes) || size != sizes[t] {
		return 0
	}
	return MsgType(t)
}

// ReadReturn reads a record whose Kind is MsgReturn.
func ReadReturn(frame []byte) Return {
	le, body := binary.LittleEndian, frame[HeaderSize:]
	return Return{Lease: le.Uint32(body), Flags: le.Uint32(body[4:]), UsedNS: le.Uint64(body[8:])}
}

// ReadEnding reads a record whose Kind is MsgEnding.
func ReadEnding(frame []byte) Ending {
	le, body := binary.LittleEndian, frame[HeaderSize:]
	return Ending{Lease: le.Uint32(body), Reserved: le.Uint32(body[4:]), LeftNS: le.Uint64(body[8:])}
}
