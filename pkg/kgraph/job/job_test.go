package job

import "testing"

// FuzzMessages checks that any bytes from an executor decode to a message or an error.
func FuzzMessages(f *testing.F) {
	f.Add(make([]byte, 44))
	f.Add([]byte{1, 0, 0, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) >= HeaderSize {
			if n, _, err := Header(data); err == nil && (n < 0 || n > MaxMessage) {
				t.Errorf("Header accepted a message of %d bytes, want 0 to %d", n, MaxMessage)
			}
		}
		if o, err := ParseOutcome(data); err == nil && len(o.Text) > len(data) {
			t.Errorf("ParseOutcome of %d bytes: got a text of %d bytes, want at most the input's length", len(data), len(o.Text))
		}
		if h, err := ParseHello(data); err == nil && len(h.Name) > len(data) {
			t.Errorf("ParseHello of %d bytes: got a name of %d bytes, want at most the input's length", len(data), len(h.Name))
		}
	})
}

func TestFootprint(t *testing.T) {
	for size, want := range map[int64]int64{1: 512, 512: 512, 513: 576, 1024: 1024, 1025: 1152, 20_000: 20_480, 1 << 30: 1 << 30} {
		if got := Footprint(size); got != want {
			t.Errorf("%d bytes take %d, want %d", size, got, want)
		}
	}
}
