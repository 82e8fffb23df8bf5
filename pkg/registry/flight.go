package registry

import (
	"context"
	"sync"
)

// flights lets the goroutines of a process do something one at a time, by name.
type flights struct {
	mu   sync.Mutex
	busy map[string]chan struct{} // closed when it is free again
}

// lock waits until name is free, and takes it.
func (f *flights) lock(ctx context.Context, name string) (unlock func(), err error) {
	for {
		f.mu.Lock()
		wait, busy := f.busy[name]
		if !busy {
			mine := make(chan struct{})
			f.busy[name] = mine
			f.mu.Unlock()
			return func() {
				f.mu.Lock()
				delete(f.busy, name)
				f.mu.Unlock()
				close(mine)
			}, nil
		}
		f.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
