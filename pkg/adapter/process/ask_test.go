package process_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
)

func buildLibs(t *testing.T) preload.Libs {
	t.Helper()
	hook, simDir := instancetest.BuildLibs(t)
	return preload.Libs{Hook: hook, SimDir: simDir}
}

// probeVariable returns a variable of the probe's environment, as soon as the probe answers.
func probeVariable(t *testing.T, address, name string) string {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		response, err := http.Get("http://" + address + "/env/" + name)
		if err == nil {
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			return string(body)
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		<-time.After(10 * time.Millisecond)
	}
}
