package registrytest

import (
	"context"
	"sync"
	"time"
)

// Clock is a time that passes when somebody sleeps.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock is a clock that stands at a time.
func NewClock(now time.Time) *Clock { return &Clock{now: now} }

// Now is time.Now.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Sleep lets the time pass at once.
func (c *Clock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(max(d, 0))
	return ctx.Err()
}
