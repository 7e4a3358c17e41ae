package process_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
)

// buildLibs builds the preload library and the simulated driver.
func buildLibs(t *testing.T) preload.Libs {
	t.Helper()
	hook, simDir := instancetest.BuildLibs(t)
	return preload.Libs{Hook: hook, SimDir: simDir}
}

// probeVariable returns the value of an environment variable of the instance at the address, which runs the
// program of instancetest.BuildProbe. It waits until the instance answers. The value of a variable that is not set
// is "unset".
func probeVariable(t *testing.T, address, name string) string {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		response, err := http.Get("http://" + address + "/env/" + name)
		if err == nil {
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatalf("variable %s of the instance at %s: got the error %v while reading the answer, want its value", name, address, err)
			}
			return string(body)
		}
		if time.Now().After(deadline) {
			t.Fatalf("variable %s of the instance at %s: got the error %v for a minute, want its value", name, address, err)
		}
		<-time.After(10 * time.Millisecond)
	}
}
