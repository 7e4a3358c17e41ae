// Package browsertest checks HTML pages in a real browser, Chromium. Tests of pages use it.
package browsertest

import (
	"bytes"
	"context"
	_ "embed" // faults.js
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience bounds the time of all actions in one tab.
const patience = 2 * time.Minute

// Sizes of screens, in pixels.
const (
	wide, high           = 1280, 900
	phoneWide, phoneHigh = 390, 844
)

// Tests runs the tests of a package, which share one browser, because its start needs as much CPU time as many pages.
type Tests struct{ M interface{ Run() int } }

// Run runs the tests, and then ends the browser.
func (t Tests) Run() int {
	browser.shares = true
	defer browser.end()
	return t.M.Run()
}

// shared is a browser that tests share.
type shared struct {
	shares bool // Tests runs
	sync.Mutex
	ctx     context.Context // of its first tab; nil until a test needs it
	cancels []context.CancelFunc
}

var browser shared

// start starts the browser if it does not run.
func (b *shared) start(t *testing.T, path string) context.Context {
	t.Helper()
	b.Lock()
	defer b.Unlock()
	switch {
	case !b.shares:
		t.Fatal("TestMain does not run browsertest.Tests")
	case b.ctx != nil && b.ctx.Err() == nil:
		return b.ctx
	}
	b.cancel() // of a browser that has ended
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.WSURLReadTimeout(patience))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	ctx, endProcess := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, endTab := chromedp.NewContext(ctx)
	b.cancels = []context.CancelFunc{endTab, endProcess}
	if err := chromedp.Run(ctx); err != nil {
		b.cancel()
		t.Fatal("start the browser: ", err)
	}
	b.ctx = ctx
	return ctx
}

// end ends the browser if it runs, and removes its files.
func (b *shared) end() {
	b.Lock()
	defer b.Unlock()
	b.cancel()
}

func (b *shared) cancel() {
	for _, cancel := range b.cancels {
		cancel()
	}
	b.cancels = nil
}

// Open returns the context of a new tab, which shares no data with other tabs. complaints returns the errors
// and warnings that pages in the tab have logged since its last call. Without a browser,
// Open skips the test; under CI=true it fails the test instead. TestMain must run Tests.
func Open(t *testing.T) (ctx context.Context, complaints func() []string) {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") != "" && os.Getenv("GFAAS_BROWSER") != "none" {
			t.Fatal("no browser: apt-get install chromium")
		}
		t.Skip("no browser: apt-get install chromium")
	}
	ctx, cancel := context.WithTimeout(browser.start(t, path), patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	said := make(chan string, 100)
	chromedp.ListenTarget(ctx, func(ev any) {
		text := ""
		switch ev := ev.(type) {
		case *runtime.EventExceptionThrown:
			text = ev.ExceptionDetails.Error()
		case *cdplog.EventEntryAdded:
			if !strings.Contains(ev.Entry.URL, "favicon") {
				text = ev.Entry.Text + " " + ev.Entry.URL
			}
		}
		if text != "" {
			select {
			case said <- text:
			default:
			}
		}
	})
	return ctx, func() (all []string) {
		for {
			select {
			case text := <-said:
				all = append(all, text)
			default:
				return all
			}
		}
	}
}

// Scheme returns the action that sets the preferred color scheme, light or dark.
func Scheme(name string) chromedp.Action {
	return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}})
}

// Show writes a page to a file and opens it on a wide screen.
func Show(t *testing.T, ctx context.Context, page []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, page, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Run(ctx, chromedp.EmulateViewport(wide, high), chromedp.Navigate("file://"+path)); err != nil {
		t.Fatal(err)
	}
}

//go:embed faults.js
var faults string

// Faults returns the visible faults of the open page in its present state: content that
// overflows its container, and text without enough contrast or size to be read.
func Faults(t *testing.T, ctx context.Context) (found []string) {
	t.Helper()
	if err := chromedp.Run(ctx, chromedp.Evaluate(faults, &found)); err != nil {
		t.Fatal(err)
	}
	return found
}

// Check fails the test unless a page meets the rules for all pages: on a wide screen and
// on a phone, light and dark, Faults returns none; it prints on at most sheets sheets of
// A4, with no picture cut by a page break; and the browser logs no complaint. If
// GFAAS_PICTURES names a folder, Check writes screenshots there.
func Check(t *testing.T, page []byte, sheets int) {
	t.Helper()
	ctx, complaints := Open(t)
	Show(t, ctx, page)
	paper := map[string]string{}
	for _, screen := range []struct {
		name         string
		wide, height int64
	}{{"wide", wide, high}, {"phone", phoneWide, phoneHigh}} {
		var options []chromedp.EmulateViewportOption
		if screen.wide == phoneWide {
			options = append(options, chromedp.EmulateMobile)
		}
		for _, scheme := range []string{"light", "dark"} {
			var colour string
			if err := chromedp.Run(ctx, chromedp.EmulateViewport(screen.wide, screen.height, options...), Scheme(scheme),
				chromedp.Evaluate(`getComputedStyle(document.body).backgroundColor`, &colour)); err != nil {
				t.Fatal(err)
			}
			paper[scheme] = colour
			for _, fault := range Faults(t, ctx) {
				t.Errorf("%s and %s: %s", screen.name, scheme, fault)
			}
			shoot(t, ctx, screen.name+"-"+scheme)
		}
	}
	if paper["dark"] == paper["light"] {
		t.Errorf("the page is %q in the dark and in the light", paper["dark"])
	}
	var printed []byte
	var cut []string
	err := chromedp.Run(ctx, chromedp.EmulateViewport(wide, high), Scheme("light"),
		chromedp.ActionFunc(func(ctx context.Context) (err error) {
			printed, _, err = cdppage.PrintToPDF().WithPaperWidth(8.27).WithPaperHeight(11.69).Do(ctx) // A4
			return err
		}),
		emulation.SetEmulatedMedia().WithMedia("print"),
		chromedp.Evaluate(`[...document.querySelectorAll("svg")].filter(s => s.getBoundingClientRect().height > 60 &&
			!s.closest("[style*=break-inside]") && ![...function*(e) { for (; e; e = e.parentElement) yield e }(s)].some(e => getComputedStyle(e).breakInside.startsWith("avoid")))
			.map(s => s.getAttribute("aria-label") ?? "a picture")`, &cut))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(regexp.MustCompile(`/Type\s*/Page\b[^s]`).FindAll(printed, -1)); n == 0 || n > sheets || !bytes.HasPrefix(printed, []byte("%PDF")) {
		t.Errorf("it prints on %d sheets, want at most %d", n, sheets)
	}
	for _, picture := range cut {
		t.Errorf("%s may be cut in two where a sheet ends", picture)
	}
	if all := complaints(); len(all) > 0 {
		t.Errorf("the browser complains: %q", all)
	}
}

// shoot writes a screenshot of the page if GFAAS_PICTURES is set.
func shoot(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	dir := os.Getenv("GFAAS_PICTURES")
	if dir == "" {
		return
	}
	var picture []byte
	if err := chromedp.Run(ctx, chromedp.FullScreenshot(&picture, 100)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-")+"-"+name+".png"), picture, 0o600); err != nil {
		t.Fatal(err)
	}
}
