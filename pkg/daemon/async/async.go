// Package async runs asynchronous calls: the daemon accepts a call at once, runs it later
// and, if the caller gave a callback URL, sends the answer there. gfaas serve
// (pkg/command/gfaas) opens the Queue with the gateway's own handler, so that these calls
// use the same queues as all others; pkg/daemon/gateway/api accepts calls into it.
//
// Invariants:
//
//   - An accepted call is on disk (package journal) until it has ended. It is run, and its
//     answer is sent, even if the daemon is killed in between.
//   - A call occupies one of Config.Concurrency places from its start until its result is
//     on disk. Sending an answer occupies one in the same way. Only work that occupies a
//     place can be repeated after a kill.
//   - At most half of the places (but at least one) send answers, so that slow receivers
//     cannot stop calls.
//   - Functions take turns, and so do receivers (see outbox).
//   - A call answered with 429 or 502 to 504 is repeated, up to Config.Retries times. An
//     answer is sent again up to Config.CallbackRetries times.
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
	"maps"
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

// Config configures a Queue.
type Config struct {
	Dir string // folder of the journal

	// Handler runs a call: POST /function/NAME[/PATH][?QUERY]. It sets the header
	// Gfaas-Instance in answers of an instance.
	Handler http.Handler
	// Known reports whether a function exists, so that metrics may use its name as a label;
	// nil allows every name.
	Known func(function string) bool
	// Receivers decides which URLs answers may be sent to.
	Receivers Receivers
	// Transport sends answers; nil selects a transport that consults Receivers before each
	// connection. A custom transport must do the same.
	Transport http.RoundTripper

	Concurrency     int   // limit on running calls and answers being sent, together
	Retries         int   // repetitions of a failed call
	CallbackRetries int   // repetitions of a failed callback
	Max             int   // limit on calls that have not ended
	MaxAnswer       int64 // size limit of an answer, in bytes

	Log *slog.Logger
}

const (
	retention       = time.Hour        // how long the status of an ended call is available
	endedPerPending = 10               // limit on ended calls with a status, as a multiple of Max
	firstPause      = time.Second      // before the first repetition; doubled before each further one
	callbackTime    = 30 * time.Second // time limit of a callback
	maxCallback     = 8 << 10          // length limit of a callback URL, in bytes
)

// ErrFull reports that Config.Max calls have not ended.
var ErrFull = errors.New("too many calls have not ended")

// CallbackError reports that an answer cannot be sent to the requested URL.
type CallbackError struct{ Reason string }

func (e *CallbackError) Error() string { return "X-Callback-Url: " + e.Reason }

// JournalError reports that a call cannot be written to disk.
type JournalError struct{ Err error }

func (e *JournalError) Error() string { return "cannot store the call: " + e.Err.Error() }
func (e *JournalError) Unwrap() error { return e.Err }

// Queue runs the accepted calls. It is safe for concurrent use.
type Queue struct {
	cfg     Config
	log     *slog.Logger
	journal *journal.Journal
	client  *http.Client
	metrics metrics

	ctx    context.Context // of running calls and of answers being sent
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu            sync.Mutex
	started       bool
	stopping      bool
	pending       int                 // calls that have not ended or are being accepted
	waiting       map[string][]string // IDs of calls to run, by function
	turns         []string            // functions in waiting, in the order of their turns
	outbox        outbox              // answers to send
	running       map[string]bool     // IDs of running calls
	runs          int
	sends         int // answers being sent
	runsSinceSend int // calls started since the last start of sending an answer
}

// Open loads the calls that an earlier Queue accepted. It returns a *journal.LockedError if
// another process uses the journal. The Queue accepts calls immediately, but runs them only
// after Start.
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
		own.Proxy = nil // a proxy would choose the address to dial, without Receivers
		own.DialContext = cfg.Receivers.dial
		cfg.Transport = own
	}
	q := &Queue{
		cfg: cfg, log: cfg.Log, journal: j, waiting: map[string][]string{}, running: map[string]bool{}, outbox: newOutbox(max(cfg.Concurrency/2, 1)),
		client: &http.Client{Transport: cfg.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	q.metrics = newMetrics(q)
	q.ctx, q.cancel = context.WithCancel(context.Background())
	for _, c := range j.Pending() {
		q.pending++
		if c.State == journal.Callback {
			q.outbox.add(receiverOf(c.CallbackURL), c.ID)
		} else {
			q.enqueue(c.Function, c.ID)
		}
	}
	return q, nil
}

// Collectors returns the metrics.
func (q *Queue) Collectors() []prometheus.Collector {
	return []prometheus.Collector{q.metrics.pending, q.metrics.endedCalls, q.metrics.callbacks}
}

// Forget deletes the metrics of a function that was removed.
func (q *Queue) Forget(function string) {
	q.metrics.endedCalls.DeletePartialMatch(prometheus.Labels{"function": function})
}

// Start begins to run calls and send answers.
func (q *Queue) Start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.started = true
	q.dispatch()
}

// Stop starts no more work. It waits until ctx ends for calls and callbacks in progress and
// then cancels them; they are repeated after the next Open. After Stop, Accept returns a
// *JournalError.
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

// Request is an incoming call.
type Request struct {
	ID       string
	Function string
	Path     string // escaped; empty means the path that the function's contract invokes
	Query    string
	Header   http.Header // X-Callback-Url holds the callback URL, if any
	Host     string
	Remote   string // the caller's address
	Body     io.Reader
}

// Accept writes a call to disk and returns when that is done. It returns nil without
// storing the call again if an earlier call has the same ID, function, path, query,
// callback URL and body. Accept fails with a *CallbackError, ErrReused, ErrFull, a
// *JournalError or the error of reading the body.
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
	err := q.storeCall(&c, r.Body, content)
	if errors.Is(err, journal.ErrExists) { // by a concurrent Accept
		earlier, _ := q.journal.Get(c.ID)
		return same(earlier, c.Content)
	}
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.enqueue(c.Function, c.ID)
	q.dispatch()
	return nil
}

// reservePending increments the number of pending calls. It returns false at the limit.
func (q *Queue) reservePending() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.pending >= q.cfg.Max {
		return false
	}
	q.pending++
	return true
}

// storeCall copies the body of a call to disk, adds it to the digest content and writes the call
// to the journal. The call counts as pending only after its body was read completely, so a
// slow sender occupies nothing.
func (q *Queue) storeCall(c *journal.Call, from io.Reader, content hash.Hash) error {
	body := q.journal.NewBody()
	defer body.Discard()
	if from != nil {
		if _, err := io.Copy(body, io.TeeReader(from, content)); body.Err() != nil {
			return &JournalError{body.Err()}
		} else if err != nil {
			return err
		}
	}
	c.Content = digest(content)
	if !q.reservePending() {
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

// CheckCallback returns a *CallbackError if text is not a valid callback URL. An empty text
// means no callback.
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

// connectionOnly lists headers that concern only the connection to the caller, or that
// Accept itself consumes.
var connectionOnly = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true, "Proxy-Connection": true, "Te": true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "Content-Length": true, "Expect": true, "X-Callback-Url": true, "X-Call-Id": true,
}

// headerText returns the headers to store, in the format of HTTP/1.1.
func headerText(h http.Header) []byte {
	drop := maps.Clone(connectionOnly)
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			drop[textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	var text bytes.Buffer
	_ = h.WriteSubset(&text, drop)
	return text.Bytes()
}

func parseHeader(text []byte) http.Header {
	h, err := textproto.NewReader(bufio.NewReader(io.MultiReader(bytes.NewReader(text), strings.NewReader("\r\n")))).ReadMIMEHeader()
	if err != nil {
		return http.Header{} // cannot occur: headerText wrote it
	}
	return http.Header(h)
}

// Status is the progress of a call.
type Status struct {
	ID       string `json:"id"`
	Function string `json:"function"`
	State    string `json:"state"` // queued, running, callback, done or failed
	Attempts int    `json:"attempts"`
	Status   int    `json:"status"` // HTTP status of the last answer; 0 before the first
}

// Statuses returns the progress of the calls with an ID, up to an hour after they ended.
// Calls of different functions or paths can have the same ID; function, unless empty, and
// path, unless nil, restrict the result.
func (q *Queue) Statuses(id, function string, path *string) []Status {
	q.journal.Expire(time.Now())
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []Status
	for _, c := range q.journal.Named(id) {
		scoped := strings.Contains(c.ID, journal.Separator) // its key has a digest of function and path
		if function != "" && c.Function != function || path != nil && scoped && c.ID != key(id, c.Function, *path) {
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

// Pending returns the number of calls that have not ended.
func (q *Queue) Pending() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pending
}

// enqueue adds a call to its function's queue. The caller holds q.mu.
func (q *Queue) enqueue(function, id string) {
	ids := q.waiting[function]
	if len(ids) == 0 {
		q.turns = append(q.turns, function)
	}
	q.waiting[function] = append(ids, id)
}

// dequeue removes and returns the next call to run. Functions take turns. The caller holds
// q.mu.
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

// dispatch starts work in all free places. If answers wait for a place, it cancels a callback
// that has had its time (see outbox.makeRoom) or sets a timer for that. The caller holds
// q.mu.
func (q *Queue) dispatch() {
	if !q.started || q.stopping {
		return
	}
	q.fill()
	if q.outbox.timer != nil {
		q.outbox.timer.Stop()
		q.outbox.timer = nil
	}
	if after := q.outbox.makeRoom(q.runs == 0 && len(q.turns) > 0); after > 0 {
		q.outbox.timer = q.schedule(after, func() {})
	}
}

// fill starts calls and callbacks until no place is free or no work is ready. With one
// place, several calls run before each callback (see callsBefore). The caller holds q.mu.
func (q *Queue) fill() {
	for q.runs+q.sends < q.cfg.Concurrency {
		to := q.outbox.next()
		runs := q.cfg.Concurrency == 1 && to != nil && len(q.turns) > 0 && q.runsSinceSend < to.callsBefore()
		switch {
		case to != nil && q.sends < q.outbox.limit && !runs:
			id, ctx := q.outbox.start(q.ctx, to)
			q.sends++
			q.runsSinceSend = 0
			q.work.Go(func() {
				accepted, then := q.send(ctx, id)
				q.free(func() {
					q.sends--
					q.outbox.end(id, accepted)
				}, then)
			})
		case len(q.turns) > 0:
			id := q.dequeue()
			q.runs++
			q.runsSinceSend++
			q.running[id] = true
			q.work.Go(func() {
				then := q.run(id)
				q.free(func() {
					q.runs--
					delete(q.running, id)
				}, then)
			})
		default:
			return
		}
	}
}

// free calls place, which frees the place of work that has ended, and then `then`, unless that is nil. It holds q.mu
// meanwhile, and starts more work.
func (q *Queue) free(place, then func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	place()
	if then != nil {
		then()
	}
	q.dispatch()
}

// schedule calls do with q.mu held after a pause, unless the queue has been stopped: the next
// Open then reads the call from the journal.
func (q *Queue) schedule(after time.Duration, do func()) *time.Timer {
	return time.AfterFunc(after, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if !q.stopping {
			do()
			q.dispatch()
		}
	})
}

// pause returns how long to wait after a number of failed attempts: 1 s, 2 s, 4 s and so
// on, up to 2^16 s.
func pause(tries int) time.Duration { return firstPause << min(max(tries-1, 0), 16) }

// retryWrite calls write until it succeeds or the queue stops, since a call whose result is not
// on disk would be run again. It reports whether write succeeded.
func (q *Queue) retryWrite(id string, write func() error) bool {
	for logged := false; ; logged = true {
		err := write()
		if err == nil {
			return true
		}
		if errors.Is(err, journal.ErrUnknown) {
			return false // the call has ended already, which no code path does twice
		}
		if !logged {
			q.log.Error("cannot store the result of a call, which still counts as unfinished", "call", journal.NameOf(id), "err", err)
		}
		select {
		case <-q.ctx.Done():
			return false
		case <-time.After(firstPause):
		}
	}
}
