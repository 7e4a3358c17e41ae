package gateway

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/gfaas/gfaas/pkg/browsertest"
	"github.com/gfaas/gfaas/pkg/function"
)

// TestPage has a real browser show the page and invoke a function from it, dark and
// light, on a wide screen and on a phone.
func TestPage(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, "<b>you said</b> "+string(body))
	}), nil)
	ctx, complaints := browsertest.Open(t)
	for _, name := range []string{"echo", "other"} {
		if err := w.catalog.Apply(t.Context(), function.Function{Name: name, Command: []string{name}}); err != nil {
			t.Fatal(err)
		}
	}
	var answer, how, state, dark, light string
	var boxes, wide int
	err := chromedp.Run(ctx,
		chromedp.Navigate("http://"+w.WebAddr().String()+"/"),
		chromedp.WaitVisible(`//span[text()="other"]`),
		chromedp.SetValue("#name", "echo"),
		chromedp.SetValue("#body", "hello"),
		chromedp.Click("#send"),
		chromedp.WaitVisible(`//div[@id="how"][starts-with(.,"200 OK")]`), // when the head has come
		chromedp.WaitEnabled("#send"),
		chromedp.Text("#how", &how),
		chromedp.Text("#text", &answer),
		chromedp.WaitVisible(`//td[text()="echo.1"]`),
		chromedp.WaitReady(`.gpu rect`),
		chromedp.Evaluate(`document.querySelectorAll(".gpu rect").length`, &boxes),
		chromedp.Text("#state", &state),
		browsertest.Scheme("dark"),
		chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, &dark),
		browsertest.Scheme("light"),
		chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, &light),
		chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile),
		chromedp.Evaluate(`document.documentElement.scrollWidth`, &wide),
	)
	if err != nil {
		t.Fatalf("%v; the page says %q", err, complaints())
	}
	for _, size := range [][2]int64{{390, 844}, {1280, 900}} {
		for _, scheme := range []string{"dark", "light"} {
			if err := chromedp.Run(ctx, chromedp.EmulateViewport(size[0], size[1]), browsertest.Scheme(scheme)); err != nil {
				t.Fatal(err)
			}
			for _, fault := range browsertest.Faults(t, ctx) {
				t.Errorf("%d wide and %s: %s", size[0], scheme, fault)
			}
		}
	}
	shoot(t, ctx)
	if !strings.Contains(how, "by echo.1 (cold") || answer != "<b>you said</b> hello" {
		t.Errorf("%q answered %q", how, answer)
	}
	if boxes != 1 || !strings.Contains(state, ":") {
		t.Errorf("%d rectangles, state %q", boxes, state)
	}
	if dark == light || dark == "" {
		t.Errorf("the page is %q in the dark and %q in the light", dark, light)
	}
	if wide > 390 {
		t.Errorf("on a phone the page is %d wide", wide)
	}
	if all := complaints(); len(all) > 0 {
		t.Errorf("the browser complains: %q", all)
	}
	w.close() // the page says that it is gone
	var gone string
	if err := chromedp.Run(ctx, chromedp.WaitVisible("#state.bad", chromedp.ByQuery), chromedp.Text("#state", &gone)); err != nil || !strings.Contains(gone, "no connection") {
		t.Errorf("after the gateway's end the page says %q, %v", gone, err)
	}
}

// shoot keeps pictures of the page for people, where GFAAS_PICTURES says.
func shoot(t *testing.T, ctx context.Context) {
	t.Helper()
	dir := os.Getenv("GFAAS_PICTURES")
	if dir == "" {
		return
	}
	for name, size := range map[string][2]int64{"wide.png": {1280, 900}, "phone.png": {390, 844}} {
		var picture []byte
		if err := chromedp.Run(ctx, chromedp.EmulateViewport(size[0], size[1]), chromedp.Sleep(2*eventEvery), chromedp.FullScreenshot(&picture, 100)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), picture, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
