package build

import (
	"context"
	"errors"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"fence/pkg/sif"
	"fence/pkg/step"
)

// Fault says why there is no image.
type Fault struct {
	Class   string `json:"class"`
	Message string `json:"message"` // one line
	Detail  string `json:"detail,omitempty"`
	// Retry: the same again may work.
	Retry bool `json:"retry"`
}

// classes are known failures by what programs say, in the order in which they
// are looked for: what will fail again before what may not.
var classes = []struct {
	class string
	retry bool
	text  *regexp.Regexp
}{
	{"disk", false, regexp.MustCompile(`No space left on device|Disk quota exceeded`)},
	{"rate_limit", true, regexp.MustCompile(`(?i)toomanyrequests|429 Too Many Requests|pull rate limit|HTTP (error|status)?:? ?429`)},
	{"not_found", false, regexp.MustCompile(`Unable to locate package|has no installation candidate|No matching distribution found|npm (ERR!|error) (code )?(ETARGET|E404)|manifest unknown`)},
	{"network", true, regexp.MustCompile(`Temporary failure (in name resolution|resolving)|Hash Sum mismatch|Failed to fetch|ECONNRESET|EAI_AGAIN|ETIMEDOUT|ReadTimeoutError|Connection timed out|curl: \((6|7|28|35|52|56)\)|unexpected EOF|50[234] (Bad Gateway|Service)`)},
	{"memory", false, regexp.MustCompile(`Out of memory|Cannot allocate memory|Killed`)},
	{"architecture", false, regexp.MustCompile(`[Ee]xec format error`)},
}

// classify names a failure by the error, else by the end of the log.
func classify(err error, log string) *Fault {
	f := &Fault{Class: "step", Message: err.Error(), Detail: lastLines(log, 20)}
	var failed *step.Failure
	var required *RequireError
	var status *StatusError
	var arch *ArchError
	switch {
	case errors.As(err, &arch):
		f.Class = "architecture"
	case errors.Is(err, ErrTimeout):
		f.Class, f.Retry = "timeout", true
	case errors.Is(err, context.Canceled):
		f.Class, f.Retry = "stopped", true
	case errors.As(err, &required):
		f.Class = "require"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, sif.ErrDiskFull):
		f.Class = "disk"
	case errors.As(err, &failed):
		f.Class = failed.Kind
	case errors.As(err, &status):
		for _, c := range classes {
			if c.text.MatchString(lastLines(log, 60)) {
				f.Class, f.Retry = c.class, c.retry
				break
			}
		}
	default:
		f.Class = "setup"
	}
	return f
}

// PlanFault is a Dockerfile that cannot be planned.
func PlanFault(err error) *Fault { return &Fault{Class: "dockerfile", Message: err.Error()} }

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
