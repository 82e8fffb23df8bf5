package build

import (
	"errors"
	"fmt"
	"runtime"
	"time"
)

// StatusError is a command that failed.
type StatusError struct {
	File   string
	Line   int
	Text   string
	Status int
	Log    string // has what it said
	Said   string // the end of that
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s:%d: %s: exit status %d", e.File, e.Line, e.Text, e.Status)
}

// ArchError is a command for another architecture than the node's.
type ArchError struct {
	File string
	Line int
	Text string
	Base string
}

func (e *ArchError) Error() string {
	return fmt.Sprintf("%s:%d: %s: the stage is for %s and this node is %s: build on a %s node, or begin with an image for %s", e.File, e.Line, e.Text, e.Base, runtime.GOARCH, e.Base, runtime.GOARCH)
}

// ErrTimeout is the cause of a build that took longer than Options.Timeout.
var ErrTimeout = errors.New("the build took longer than --timeout allows")

// IdleError is a command that printed nothing for longer than Options.Idle.
type IdleError struct {
	After time.Duration
	Said  string // the end of what it had printed
}

func (e *IdleError) Error() string {
	return fmt.Sprintf("it printed nothing for %v (--idle-timeout)", e.After)
}
