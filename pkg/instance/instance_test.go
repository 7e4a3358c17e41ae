package instance

import (
	"strings"
	"testing"
)

func TestValidID(t *testing.T) {
	for id, want := range map[string]bool{
		"resnet-0": true, "_a.B": true, strings.Repeat("a", 63): true, "token.sockets": true,
		"": false, ".a": false, "a/b": false, "a b": false, "a\n": false, "é": false, strings.Repeat("a", 64): false, "token.sock": false,
	} {
		if got := ValidID(id); got != want {
			t.Errorf("%q: %v, want %v", id, got, want)
		}
	}
}
