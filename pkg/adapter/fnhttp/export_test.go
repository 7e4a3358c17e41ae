package fnhttp

import "time"

// Keep sets for how long a connection is kept idle.
func (c *Client) Keep(d time.Duration) { c.pool.keep = d }
