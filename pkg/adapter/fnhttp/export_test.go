package fnhttp

import "time"

// SetIdleTimeout sets how long a connection stays idle before it is closed.
func (c *Client) SetIdleTimeout(d time.Duration) { c.pool.idleTimeout = d }
