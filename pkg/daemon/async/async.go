// Package async runs calls whose callers do not wait for the answer: they are
// kept on disk from when they are accepted until they have ended, run a few at a
// time, again when it was not the function that failed, and their answers are
// sent to where their callers want them.
//
// What is promised: an accepted call is run and its answer sent, whatever kills
// the daemon. A call takes one of Concurrency places from when it begins to run
// until what became of that is on disk, and so does an answer that is being sent;
// a kill may repeat what has a place, and nothing else. Half of the places at most
// are for answers that are being sent, so that receivers that take their time
// hold no more up than that. Functions take turns, and so do receivers.
//
// How a call is run is a handler's to know (the gateway's own, so that these calls
// go through the same queues as all others).
package async

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gfaas/gfaas/pkg/daemon/async/journal"
)

// Config is what a Queue goes by.
type Config struct {
	Dir string // of the journal

	// Handler runs a call: POST /function/NAME[/PATH][?QUERY]. Answers that are an
	// instance's have the header Gfaas-Instance.
	Handler http.Handler
	// Known says whether a function is there, so that its name may be a label; nil
	// says so of all.
	Known func(function string) bool
	// Receivers decides where answers may be sent.
	Receivers Receivers
	// Transport sends answers; nil uses one that asks Receivers before it connects. A
	// custom one must do the same.
	Transport http.RoundTripper

	Concurrency     int   // calls that run, and answers that are being sent, at once
	Retries         int   // after a call that failed
	CallbackRetries int   // after an answer that was not taken
	Max             int   // calls that have not ended
	MaxAnswer       int64 // bytes of an answer

	Log *slog.Logger
}

const (
	retention       = time.Hour        // that an ended call is known
	endedPerPending = 10               // ended calls that are, for each that may be pending
	firstPause      = time.Second      // before a second try; it doubles
	callbackTime    = 30 * time.Second // for an answer to be taken
	maxCallback     = 8 << 10          // bytes of a callback's address
)

// ErrFull says that as many calls as may be have not ended.
var ErrFull = errors.New("too many calls have not ended")

// CallbackError says that an answer cannot be sent where its caller wants it.
type CallbackError struct{ Why string }

func (e *CallbackError) Error() string { return "X-Callback-Url: " + e.Why }

// JournalError says that a call cannot be kept.
type JournalError struct{ Err error }

func (e *JournalError) Error() string { return "the call cannot be kept: " + e.Err.Error() }
func (e *JournalError) Unwrap() error { return e.Err }

// Queue is the calls that were accepted. It is safe for concurrent use.
type Queue struct {
	cfg     Config
	log     *slog.Logger
	journal *journal.Journal
	client  *http.Client
	metrics metrics

	ctx    context.Context // of what runs
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu       sync.Mutex
	started  bool
	stopping bool
	pending  int                 // calls that have not ended, or are being accepted
	waiting  map[string][]string // ids of those to run, by function
	turns    []string            // functions that have any, the next first
	out      outbox              // answers that are to be sent
	running  map[string]bool     // ids of calls that run
	runs     int
	posts    int // answers that are being sent
	ran      int // calls that were given places since an answer was
}

// Open reads what an earlier Queue accepted. Where another process has it, the
// error is a *journal.LockedError. Calls can be accepted at once; none runs before
// Start.
func Open(cfg Config) (*Queue, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	j, err := journal.Open(cfg.Dir, journal.Options{Retention: retention, MaxEnded: endedPerPending * cfg.Max, Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	if cfg.Transport == nil {
		own := http.DefaultTransport.(*http.Transport).Clone()
		own.MaxIdleConnsPerHost = cfg.Concurrency
		own.Proxy = nil // a proxy would choose the address that is dialled
		own.DialContext = cfg.Receivers.dial
		cfg.Transport = own
	}
	q := &Queue{
		cfg: cfg, log: cfg.Log, journal: j, waiting: map[string][]string{}, running: map[string]bool{}, out: newOutbox(max(cfg.Concurrency/2, 1)),
		client: &http.Client{Transport: cfg.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	q.metrics = newMetrics(q)
	q.ctx, q.cancel = context.WithCancel(context.Background())
	for _, c := range j.Pending() {
		q.pending++
		if c.State == journal.Callback {
			q.out.add(q.receiver(c.ID), c.ID)
		} else {
			q.enqueue(c.Function, c.ID)
		}
	}
	return q, nil
}

// Collectors are the metrics.
func (q *Queue) Collectors() []prometheus.Collector { return q.metrics.all() }

// Forget drops what was counted of a function that is gone.
func (q *Queue) Forget(function string) {
	q.metrics.ended.DeletePartialMatch(prometheus.Labels{"function": function})
}

// Start has calls run.
func (q *Queue) Start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.started = true
	q.next()
}

// Stop begins nothing more. What runs may end until ctx does, and is then cut: it
// runs again at the next start. What would be accepted after that is a *JournalError.
func (q *Queue) Stop(ctx context.Context) error {
	q.mu.Lock()
	q.stopping = true
	q.mu.Unlock()
	ended := make(chan struct{})
	go func() { q.work.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	q.cancel()
	<-ended
	q.client.CloseIdleConnections()
	return q.journal.Close()
}

// Request is a call that came.
type Request struct {
	ID       string
	Function string
	Path     string // escaped; empty is where the function's contract is invoked
	Query    string
	Header   http.Header // with X-Callback-Url, if the answer is wanted somewhere
	Host     string
	Remote   string // address of the caller
	Body     io.Reader
}

// Accept keeps a call, and returns when it is on disk. One that is known is not
// kept again, which is no error: it has the ID, the function, the path, the query, the
// receiver and the body of an earlier one. The error is a *CallbackError, ErrReused,
// ErrFull, a *JournalError, or that of the body.
func (q *Queue) Accept(r Request) error {
	c := journal.Call{
		ID: r.key(), Function: r.Function, State: journal.Queued, Accepted: time.Now().Round(0),
		Path: r.Path, Query: []byte(r.Query), Host: r.Host, Remote: r.Remote, CallbackURL: r.Header.Get("X-Callback-Url"),
	}
	if err := CheckCallback(c.CallbackURL); err != nil {
		return err
	}
	q.journal.Expire(time.Now())
	if earlier, known := q.known(r); known {
		return r.repeats(earlier)
	}
	if c.CallbackURL != "" {
		if err := q.cfg.Receivers.check(q.ctx, c.CallbackURL); err != nil {
			return &CallbackError{err.Error()}
		}
	}
	c.Header = headerText(r.Header)
	if q.Pending() >= q.cfg.Max {
		return ErrFull
	}
	content := r.content()
	err := q.keep(&c, r.Body, content)
	if errors.Is(err, journal.ErrExists) { // accepted meanwhile
		earlier, _ := q.journal.Get(c.ID)
		return same(earlier, c.Content)
	}
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.enqueue(c.Function, c.ID)
	q.next()
	return nil
}

// take counts one more call, if there may be one.
func (q *Queue) take() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pending >= q.cfg.Max {
		return false
	}
	q.pending++
	return true
}

// keep reads the body of a call into content and writes the call to disk. Only a call whose
// body has come counts: a slow sender holds no place.
func (q *Queue) keep(c *journal.Call, from io.Reader, content hash.Hash) error {
	body := q.journal.NewBody()
	defer body.Discard()
	if from != nil {
		to := &disk{to: body}
		if _, err := io.Copy(to, io.TeeReader(from, content)); to.err != nil {
			return &JournalError{to.err}
		} else if err != nil {
			return err
		}
	}
	c.Content = digest(content)
	if !q.take() {
		return ErrFull
	}
	err := q.journal.Accept(*c, body)
	if err == nil {
		return nil
	}
	q.mu.Lock()
	q.pending--
	q.mu.Unlock()
	if errors.Is(err, journal.ErrExists) {
		return err
	}
	return &JournalError{err}
}

// disk tells errors of writing from those of reading.
type disk struct {
	to  io.Writer
	err error
}

func (d *disk) Write(p []byte) (int, error) {
	n, err := d.to.Write(p)
	d.err = err
	return n, err
}

// CheckCallback says what is wrong with where an answer is wanted, as a *CallbackError;
// empty is nowhere.
func CheckCallback(text string) error {
	if text == "" {
		return nil
	}
	if len(text) > maxCallback || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return &CallbackError{fmt.Sprintf("expected an address of at most %d visible ASCII characters", maxCallback)}
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return &CallbackError{"expected an address like http://host/path" /* not the text: it may have a password */}
	}
	if port := u.Port(); port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return &CallbackError{fmt.Sprintf("expected a port from 0 to %d", 1<<16-1)}
		}
	}
	host := u.Hostname()
	if _, err := netip.ParseAddr(host); err != nil && (endsInNumber(host) || strings.ContainsFunc(host, func(r rune) bool { return r > '~' })) {
		return &CallbackError{"expected a host name in ASCII, or an IP address like 192.0.2.1"}
	}
	return nil
}

// connectionOnly are headers that say something of a connection, or that Accept
// itself takes.
var connectionOnly = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true, "Te": true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Content-Length": true, "Expect": true, "X-Callback-Url": true, "X-Call-Id": true,
}

// headerText is what of a header is kept, as in HTTP/1.1.
func headerText(h http.Header) []byte {
	drop := connectionOnly
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			if name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)); !drop[name] {
				drop = with(drop, name)
			}
		}
	}
	var text bytes.Buffer
	_ = h.WriteSubset(&text, drop)
	return text.Bytes()
}

func with(set map[string]bool, name string) map[string]bool {
	out := map[string]bool{name: true}
	for have := range set {
		out[have] = true
	}
	return out
}

func parseHeader(text []byte) http.Header {
	h, err := textproto.NewReader(bufio.NewReader(io.MultiReader(bytes.NewReader(text), strings.NewReader("\r\n")))).ReadMIMEHeader()
	if err != nil {
		return http.Header{} // what a server took it also reads
	}
	return http.Header(h)
}

// Status is what became of a call so far.
type Status struct {
	ID       string `json:"id"`
	Function string `json:"function"`
	State    string `json:"state"` // queued, running, callback, done or failed
	Attempts int    `json:"attempts"`
	Status   int    `json:"status"` // of its last answer; 0 before there is one
}

// Statuses says what became of the calls with an id, for an hour after each has ended.
// There are several if callers gave calls of different functions or paths the same id:
// function, unless it is empty, and path, unless it is nil, choose among them.
func (q *Queue) Statuses(id, function string, path *string) []Status {
	q.journal.Expire(time.Now())
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []Status
	for _, c := range q.journal.Named(id) {
		if function != "" && c.Function != function || path != nil && isScoped(c.ID) && c.ID != key(id, c.Function, *path) {
			continue
		}
		s := Status{ID: id, Function: c.Function, State: string(c.State), Attempts: c.Attempts, Status: c.Status}
		if q.running[c.ID] && c.State == journal.Queued {
			s.State = "running"
		}
		out = append(out, s)
	}
	return out
}

// Pending is how many calls have not ended.
func (q *Queue) Pending() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pending
}

// enqueue adds a call to those to run. Locked, as are those below that say so.
func (q *Queue) enqueue(function, id string) {
	ids := q.waiting[function]
	if len(ids) == 0 {
		q.turns = append(q.turns, function)
	}
	q.waiting[function] = append(ids, id)
}

// dequeue returns the next call to run: functions take turns. Locked.
func (q *Queue) dequeue() string {
	function := q.turns[0]
	q.turns = q.turns[1:]
	ids := q.waiting[function]
	if len(ids) == 1 {
		delete(q.waiting, function)
	} else {
		q.waiting[function] = ids[1:]
		q.turns = append(q.turns, function)
	}
	return ids[0]
}

// receiver returns where the answer to a call that was kept earlier is sent.
func (q *Queue) receiver(id string) string {
	call, body, _, err := q.journal.Read(id)
	if err != nil {
		return "" // send finds out
	}
	_ = body.Close()
	return receiverOf(call.CallbackURL)
}

// next fills the places that are free. Locked.
func (q *Queue) next() {
	if !q.started || q.stopping {
		return
	}
	q.fill()
	if q.out.timer != nil {
		q.out.timer.Stop()
		q.out.timer = nil
	}
	if after := q.out.giveWay(q.runs == 0 && len(q.turns) > 0); after > 0 {
		q.out.timer = q.later(after, func() {})
	}
}

// fill does what next says, as far as places are free now. Locked.
func (q *Queue) fill() {
	for q.runs+q.posts < q.cfg.Concurrency {
		to := q.out.next()
		runs := q.cfg.Concurrency == 1 && to != nil && len(q.turns) > 0 && q.ran < to.callsBefore()
		switch {
		case to != nil && q.posts < q.out.most && !runs:
			id, ctx := q.out.begin(q.ctx, to)
			q.posts++
			q.ran = 0
			q.work.Go(func() { q.send(ctx, id) })
		case len(q.turns) > 0:
			id := q.dequeue()
			q.runs++
			q.ran++
			q.running[id] = true
			q.work.Go(func() { q.run(id) })
		default:
			return
		}
	}
}

// later does something under the lock after a while, unless the queue is stopped
// by then: the journal has it for the next start.
func (q *Queue) later(after time.Duration, do func()) *time.Timer {
	return time.AfterFunc(after, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if !q.stopping {
			do()
			q.next()
		}
	})
}

// pause is before the next try after so many.
func pause(tries int) time.Duration { return firstPause << min(max(tries-1, 0), 16) }

// insist writes what became of a call, or tries until it can or the queue stops:
// without it the call would be run again.
func (q *Queue) insist(id string, write func() error) bool {
	for told := false; ; told = true {
		err := write()
		if err == nil {
			return true
		}
		if errors.Is(err, journal.ErrUnknown) {
			return false // it has ended before: nothing does that
		}
		if !told {
			q.log.Error("what became of a call cannot be kept, and so its place is not free", "call", journal.NameOf(id), "err", err)
		}
		select {
		case <-q.ctx.Done():
			return false
		case <-time.After(firstPause):
		}
	}
}
