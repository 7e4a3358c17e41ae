package job

import "testing"

// FuzzMessages: any bytes from an executor decode to a message or an error.
func FuzzMessages(f *testing.F) {
	f.Add(make([]byte, 44))
	f.Add([]byte{1, 0, 0, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) >= HeaderSize {
			if n, _, err := Header(data); err == nil && (n < 0 || n > MaxMessage) {
				t.Errorf("a message of %d bytes", n)
			}
		}
		if o, err := ParseOutcome(data); err == nil && len(o.Text) > len(data) {
			t.Errorf("%+v", o)
		}
		if h, err := ParseHello(data); err == nil && len(h.Name) > len(data) {
			t.Errorf("%+v", h)
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
