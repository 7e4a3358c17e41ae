package tokend

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"time"
)

// mostLooks is how many looks in a row find no daemon before it is started again:
// whoever ended it to start another has time for that.
const mostLooks = 10

// Keep looks after the daemon that Ensure found or started until the context
// ends: when 10 looks in a row find none it is started again. It takes over the
// registrations, and programs that wait for it go on. Tell is told how it went,
// unless somebody else was faster. Where the run directory was taken away, with
// the registration of that instance, a daemon would be of no use.
func (c *Client) Keep(ctx context.Context, instance string, every time.Duration, tell func(error)) {
	runDir := filepath.Dir(c.socket)
	record := filepath.Join(runDir, "instances", instance+".json")
	tick := time.NewTicker(every)
	defer tick.Stop()
	for missed := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if conn, err := net.Dial("unix", c.socket); err == nil {
			_ = conn.Close()
			missed = 0
			continue
		}
		if missed++; missed < mostLooks {
			continue
		}
		missed = 0
		if _, err := os.Stat(record); err != nil {
			return
		}
		started, err := c.ensure(ctx, runDir)
		if ctx.Err() == nil && (started || err != nil) {
			tell(err)
		}
	}
}
