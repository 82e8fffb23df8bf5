package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"fence/pkg/sif"
	"fence/pkg/step"
)

func TestClassify(t *testing.T) {
	failed := &StatusError{File: "Dockerfile", Line: 3, Text: "RUN x", Status: 1}
	for _, c := range []struct {
		name  string
		err   error
		log   string
		class string
		retry bool
	}{
		{"a command that fails", failed, "make: *** [all] Error 1", "step", false},
		{"the disk, whatever else is said", failed, "E: Failed to fetch x\nwrite error: No space left on device", "disk", false},
		{"a registry's limit", failed, "toomanyrequests: You have reached your pull rate limit", "rate_limit", true},
		{"a package that is not there", failed, "Failed to fetch a\nE: Unable to locate package nosuch", "not_found", false},
		{"a name server", failed, "Temporary failure resolving 'x'", "network", true},
		{"a reset in npm", failed, "npm ERR! code ECONNRESET", "network", true},
		{"curl", failed, "curl: (28) Operation timed out", "network", true},
		{"only the end of the log counts", failed, "Hash Sum mismatch\n" + lines(100) + "no rule", "step", false},
		{"time", fmt.Errorf("x: %w", ErrTimeout), "", "timeout", true},
		{"stopped", context.Canceled, "", "stopped", true},
		{"required", &RequireError{Missing: []string{"tmux"}}, "", "require", false},
		{"isolation", &step.Failure{Kind: "isolation", Text: "x"}, "", "isolation", false},
		{"another architecture", &ArchError{}, "", "architecture", false},
		{"the cache's disk", fmt.Errorf("writing: %w", &os.PathError{Op: "write", Path: "x", Err: unix.ENOSPC}), "", "disk", false},
		{"the image's disk", fmt.Errorf("writing: %w", sif.ErrDiskFull), "", "disk", false},
		{"the cache's quota", unix.EDQUOT, "", "disk", false},
		{"ours", errors.New("x"), "", "setup", false},
	} {
		f := classify(c.err, c.log)
		if f.Class != c.class || f.Retry != c.retry {
			t.Errorf("%s: %s, retry %t; want %s, %t", c.name, f.Class, f.Retry, c.class, c.retry)
		}
	}
}

func lines(n int) (s string) {
	for i := range n {
		s += fmt.Sprintf("line %d\n", i)
	}
	return s
}
