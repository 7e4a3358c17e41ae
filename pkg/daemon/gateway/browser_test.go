package gateway

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/gfaas/gfaas/pkg/browsertest"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/api"
	"github.com/gfaas/gfaas/pkg/function"
)

// TestPage opens the page in a real browser and invokes a function from it, in dark and
// light mode, on a wide screen and on a phone.
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
		chromedp.WaitVisible(`//div[@id="how"][starts-with(.,"200 OK")]`), // once the head of the answer has arrived
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
		t.Fatalf("load the page: %v; messages of the browser: %q", err, complaints())
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
		t.Errorf("the page shows the answer %q, %q; want <b>you said</b> hello as text, by a cold start of echo.1", answer, how)
	}
	if boxes != 1 || !strings.Contains(state, ":") {
		t.Errorf("the page shows %d rectangles and the state %q; want 1 and a state with a colon", boxes, state)
	}
	if dark == light || dark == "" {
		t.Errorf("the background is %q in dark mode and %q in light mode, want two colors", dark, light)
	}
	if wide > 390 {
		t.Errorf("on a phone the page is %d pixels wide, want at most 390", wide)
	}
	if all := complaints(); len(all) > 0 {
		t.Errorf("errors in the browser: got %q, want none", all)
	}
	w.close() // the page reports that the gateway has stopped
	var gone string
	if err := chromedp.Run(ctx, chromedp.WaitVisible("#state.bad", chromedp.ByQuery), chromedp.Text("#state", &gone)); err != nil || !strings.Contains(gone, "no connection") {
		t.Errorf("after the gateway's end the page shows %q, %v; want no connection", gone, err)
	}
}

// TestPageAtItsAddress checks that at the address of --ui-listen, the page shows the same
// content, but cannot invoke functions.
func TestPageAtItsAddress(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.UIListen, c.Auth = "127.0.0.1:0", api.NewCredentials("u", "p") })
	w.apply(fn("f"))
	ctx, complaints := browsertest.Open(t)
	var offered bool
	err := chromedp.Run(ctx,
		chromedp.Navigate("http://u:p@"+w.UIAddr().String()+"/"),
		chromedp.WaitVisible(`//td[@class="word"]/span[text()="f"]`),
		chromedp.Evaluate(`document.querySelector("#invoke").checkVisibility()`, &offered),
	)
	if all := complaints(); err != nil || offered || len(all) > 0 {
		t.Errorf("page at --ui-listen: %v; it offers calls: %v, want false; errors in the browser: %q, want none", err, offered, all)
	}
}

// TestPageAfterRestart checks that an open page continues with a restarted gateway,
// although the token has changed.
func TestPageAfterRestart(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	ctx, _ := browsertest.Open(t)
	if err := chromedp.Run(ctx, chromedp.Navigate(w.url("/ui/")), chromedp.WaitVisible(`//td[starts-with(.,"No function")]`)); err != nil {
		t.Fatal(err)
	}
	w.cfg.Listen = w.WebAddr().String()
	w.close()
	w.open()
	w.apply(fn("f"))
	if err := chromedp.Run(ctx, chromedp.WaitVisible(`//td[@class="word"]/span[text()="f"]`)); err != nil {
		t.Error(err)
	}
}

// attack is a page that tries to manage the gateway at the given address with the
// credentials stored in the browser. It lists the result of each attempt in its title.
const attack = `<!DOCTYPE html><title>running</title><body><script>
const deploy = JSON.stringify({service: "theirs", image: "example.com/theirs:1"});
const attempt = async (name, path, options) => {
  try {
    const answer = await fetch("GATEWAY" + path, {credentials: "include", ...options});
    return name + " " + (answer.type === "opaque" ? "sent" : answer.status);
  } catch (err) {
    return name + " failed";
  }
};
(async () => {
  const done = [];
  let token = "";
  try { token = /Gfaas-Token": "(\w+)"/.exec(await (await fetch("GATEWAY/ui/", {credentials: "include"})).text())?.[1] ?? ""; } catch (err) {}
  done.push("token " + (token || "none"));
  const frame = document.createElement("iframe");
  await new Promise(resume => { frame.onload = resume; frame.src = "GATEWAY/ui/"; document.body.append(frame); });
  let framed = "none";
  try { framed = /Gfaas-Token/.test(frame.contentDocument.documentElement.outerHTML) ? "read" : "none"; } catch (err) {}
  done.push("framed " + framed);
  for (const headers of [{}, {"Gfaas-Token": KNOWN}]) {
    done.push(await attempt("deploys", "/system/functions", {method: "POST", body: deploy, headers}));
    done.push(await attempt("removes", "/system/functions", {method: "DELETE", body: '{"functionName":"page"}', headers}));
    done.push(await attempt("scales", "/system/scale-function/page", {method: "POST", body: '{"replicas":1}', headers}));
    done.push(await attempt("logs", "/system/logs?name=page", {headers}));
    done.push(await attempt("lists", "/system/functions", {headers}));
  }
  done.push(await attempt("without cors", "/system/functions", {method: "POST", body: deploy, mode: "no-cors"}));
  done.push(await attempt("metrics", "/metrics", {}));
  document.title = done.join(", ");
})();
</script>`

// TestPagesCannotManage checks that in a browser that holds the operator's credentials, a
// page of another site cannot change or read anything. Neither can a page of a function,
// which shares the gateway's origin. This holds even if the page knows the token.
func TestPagesCannotManage(t *testing.T) {
	var gateway, known string
	page := func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(rw, strings.NewReplacer("GATEWAY", gateway, "KNOWN", known).Replace(attack))
	}
	w := newWorld(t, pathHandlers{"/page": page}, func(c *Config) { c.UIListen, c.Auth = "127.0.0.1:0", api.NewCredentials("u", "p") })
	w.apply(fn("page"))
	known = `"` + w.token() + `"`
	elsewhere := httptest.NewServer(http.HandlerFunc(page))
	defer elsewhere.Close()
	ctx, _ := browsertest.Open(t)
	const refused = "deploys 403, removes 403, scales 403, logs 403, lists 403"
	const failed = "deploys failed, removes failed, scales failed, logs failed, lists failed" // the browser lets a page of another origin read no answer
	for _, c := range []struct{ name, page, gateway, want string }{
		{"a function's", w.url("/function/page/page"), w.url(""), "token none, framed none, " + refused + ", " + refused + ", without cors 403, metrics 403"},
		{"a function's, of the page's address", w.url("/function/page/page"), "http://" + w.UIAddr().String(),
			"token none, framed none, " + failed + ", " + failed + ", without cors sent, metrics failed"},
		{"another site's", elsewhere.URL, w.url(""), "token none, framed none, " + failed + ", " + failed + ", without cors sent, metrics failed"},
		{"another site's, of the page's address", strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1), "http://" + w.UIAddr().String(),
			"token none, framed none, " + failed + ", " + failed + ", without cors sent, metrics failed"},
	} {
		gateway = c.gateway
		var title string
		err := chromedp.Run(ctx,
			chromedp.Navigate(strings.Replace(c.gateway, "//", "//u:p@", 1)+"/ui/"), // now the browser holds the credentials
			chromedp.WaitVisible(`//td[@class="word"]/span[text()="page"]`),
			chromedp.Navigate(c.page),
			chromedp.Poll(`document.title !== "running"`, nil),
			chromedp.Title(&title),
		)
		if err != nil || title != c.want {
			t.Errorf("a page of %s: got %q, %v, want %q", c.name, title, err, c.want)
		}
		l, err := w.catalog.List(t.Context())
		if err != nil || len(l.Functions) != 1 || l.Functions[0].Name != "page" || l.Functions[0].Scale.Min != 0 {
			t.Fatalf("functions after a page of %s: got %+v, %v; want page with scale.min 0", c.name, l.Functions, err)
		}
	}
	// The same requests succeed from the page's own origin.
	var status int
	err := chromedp.Run(ctx,
		chromedp.Navigate("http://u:p@"+w.UIAddr().String()+"/ui/"),
		chromedp.WaitVisible(`//td[@class="word"]/span[text()="page"]`),
		chromedp.Evaluate(`fetch(location.origin + "/system/functions", {method: "DELETE", body: '{"functionName":"page"}'}).then(a => a.status)`, &status,
			func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }),
	)
	if err != nil || status != http.StatusAccepted {
		t.Errorf("the page's own request: got %d, %v, want 202", status, err)
	}
}

// TestFunctionAsksForPassword checks that a function that requests a password in the
// gateway's realm does not receive the password stored in the browser.
func TestFunctionAsksForPassword(t *testing.T) {
	seen := make(chan string, 100)
	w := newWorld(t, pathHandlers{"/page": func(rw http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("Authorization")
		if len(seen) == 1 {
			rw.Header().Set("WWW-Authenticate", `Basic realm="gfaas"`)
			rw.WriteHeader(http.StatusUnauthorized)
		}
		rw.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(rw, "<title>asked</title>")
	}}, func(c *Config) { c.Auth = api.NewCredentials("u", "p") })
	w.apply(fn("f"))
	ctx, _ := browsertest.Open(t)
	var title string
	err := chromedp.Run(ctx,
		chromedp.Navigate("http://u:p@"+w.WebAddr().String()+"/ui/"),
		chromedp.WaitVisible(`//td[@class="word"]/span[text()="f"]`),
		chromedp.Navigate(w.url("/function/f/page")),
		chromedp.Title(&title),
	)
	close(seen)
	requests := 0
	for authorization := range seen {
		if requests++; authorization != "" {
			t.Errorf("request %d: the function sees %q, want nothing", requests, authorization)
		}
	}
	if err != nil || title != "asked" || requests != 2 {
		t.Errorf("got page %q after %d requests, %v, want the browser to try again with the password", title, requests, err)
	}
}

// shoot saves screenshots of the page to the directory in GFAAS_PICTURES, if set.
func shoot(t *testing.T, ctx context.Context) {
	t.Helper()
	dir := os.Getenv("GFAAS_PICTURES")
	if dir == "" {
		return
	}
	for name, size := range map[string][2]int64{"wide.png": {1280, 900}, "phone.png": {390, 844}} {
		var picture []byte
		if err := chromedp.Run(ctx, chromedp.EmulateViewport(size[0], size[1]), chromedp.Sleep(2*time.Second), chromedp.FullScreenshot(&picture, 100)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), picture, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
