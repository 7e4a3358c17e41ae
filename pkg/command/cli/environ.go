package cli

import (
	"os"
	"strings"
)

// Environ is this process's environment with the given variables set.
func Environ(set map[string]string) []string {
	var out []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if _, ours := set[name]; !ours {
			out = append(out, entry)
		}
	}
	for name, value := range set {
		out = append(out, name+"="+value)
	}
	return out
}
