package residency

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRecede plays scripts of moves ahead of need. Functions a to c use 60 bytes each of a GPU with
// 100 bytes, unless a case sets another size. "a+" places an invocation of a, "a-" ends it, "a!"
// moves the memory of a's idle instances to the host ahead of need, "a^" prefetches it, "a." and "ax"
// report that the move to the host has succeeded or failed, "a*" that the move to the GPU has
// succeeded, "clear" removes idle instances, and "a/" ends a's instance. The result lists what the pool reports and, for "a+", the kind of start; "..." marks
// an invocation that waits for room.
func TestRecede(t *testing.T) {
	for _, c := range []struct {
		name, does, want string
		mem              int64 // of the GPU
	}{
		{"room is free only after the move", "a+ a- a! b+ a.", "a:cold a~ b:cold... b>", 100},
		{"what moves can be used at once", "a+ a- a! a+ a. a-", "a:cold a~ a:host-warm", 100},
		{"a late report changes nothing", "a+ a- a! a+ a. b+ a-", "a:cold a~ a:host-warm b:none", 100},
		{"room that was promised is not available", "a+ a- a! b+ a+ a. b-", "a:cold a~ b:cold... a:none b>", 100},
		{"another move makes the promised room", "a+ c+ a- c- a! b+ a+ a. c.", "a:cold c:cold a~ b:cold... a:host-warm c~ b>", 130},
		{"a move that failed is not repeated", "a+ a- a! ax a! b+", "a:cold a~ b:cold... a-", 100},
		{"until the next invocation", "a+ a- a! ax a+ a- a!", "a:cold a~ a:gpu-warm a~", 100},
		{"a prefetch ends the move", "a+ a- a! a^ a. a* a+", "a:cold a~ a^ a:gpu-warm", 100},
		{"there is no prefetch without room", "a+ a- a! a. b+ a^", "a:cold a~ b:cold", 100},
		{"its memory counts until it has ended", "a+ a- a! clear b+ a/", "a:cold a~ a- b:cold... b>", 100},
		{"the oldest instance goes first", "a+ a+ a- a- a! ", "a:cold a:cold a~ a~", 200},
		{"without a limit, memory stays", "a+ a- a!", "a:cold", 0},
		{"what runs stays", "a+ a!", "a:cold", 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := shape{Config: Config{Pool: Unlimited, UsesClear: true}, GPUs: 1, Slots: 3, Mem: c.mem}
			for range 3 {
				s.Function = append(s.Function, Function{Duration: [3]time.Duration{3, 2, 1}, Mem: 60})
			}
			p := s.pool()
			var got []string
			last := map[int32]int32{}      // by function: its latest instance
			running := map[int32][]int32{} // by function: its instances in use
			for _, word := range strings.Fields(c.does) {
				f := int32(word[0] - 'a')
				switch {
				case word == "clear":
					p.Clear(0)
				case word[1] == '+':
					at, ok := p.Best(f, Any, Any)
					if !ok {
						got = append(got, word[:1]+":none")
						break
					}
					index, started := p.Begin(f, at)
					running[f] = append(running[f], index)
					last[f] = index
					wait := ""
					if !started {
						wait = "..."
					}
					got = append(got, fmt.Sprintf("%c:%v%s", word[0], at.Start, wait))
				case word[1] == '-':
					p.End(running[f][0], 0)
					running[f] = slices.Delete(running[f], 0, 1)
				case word[1] == '!':
					p.Recede(f)
				case word[1] == '^':
					if index, ok := p.Prefetch(f, time.Second); ok {
						got = append(got, word)
						last[f] = index
					}
				case word[1] == '.', word[1] == 'x':
					p.Moved(last[f], HostWarm, word[1] == '.')
				case word[1] == '*':
					p.Moved(last[f], GPUWarm, true)
				case word[1] == '/':
					p.Lost(last[f])
				}
				for _, change := range slices.Clone(p.Changes()) {
					mark := map[Verb]string{ToRemove: "-", ToOffload: "~", ToBegin: ">"}[change.Verb]
					got = append(got, fmt.Sprintf("%c%s", 'a'+change.Function, mark))
				}
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("%s: got %s, want %s", c.does, text, c.want)
			}
		})
	}
}
