package launch

import (
	"iter"
	"sync"

	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Printed is a line and the index of its log.
type Printed struct {
	From int
	Line ports.LogLine
}

// Merged yields the lines of all logs, ordered by time. An error belongs to the log Printed.From and is
// the last item of that log.
func Merged(logs []ports.LogLines) iter.Seq2[Printed, error] {
	type head struct {
		line ports.LogLine
		err  error
		ok   bool
		next func() (ports.LogLine, error, bool)
	}
	return func(yield func(Printed, error) bool) {
		heads := make([]head, len(logs))
		for i, lines := range logs {
			next, stop := iter.Pull2(lines)
			defer stop()
			heads[i].next = next
			heads[i].line, heads[i].err, heads[i].ok = next()
		}
		for {
			first := -1
			for i, h := range heads {
				if h.ok && (first < 0 || h.line.Time.Before(heads[first].line.Time)) {
					first = i
				}
			}
			if first < 0 {
				return
			}
			h := &heads[first]
			if !yield(Printed{first, h.line}, h.err) {
				return
			}
			h.line, h.err, h.ok = h.next()
		}
	}
}

// AsTheyCome yields the lines of all logs in the order in which they arrive. Errors are as in Merged.
func AsTheyCome(logs []ports.LogLines) iter.Seq2[Printed, error] {
	type item struct {
		Printed
		err error
	}
	return func(yield func(Printed, error) bool) {
		items, enough := make(chan item), make(chan struct{})
		var reading sync.WaitGroup
		for i, lines := range logs {
			reading.Go(func() {
				for line, err := range lines {
					select {
					case items <- item{Printed{i, line}, err}:
					case <-enough:
						return
					}
				}
			})
		}
		go func() {
			reading.Wait()
			close(items)
		}()
		defer close(enough)
		for it := range items {
			if !yield(it.Printed, it.err) {
				return
			}
		}
	}
}
