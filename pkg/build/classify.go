package build

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"syscall"

	"fence/pkg/base"
	"fence/pkg/dockerfile"
	"fence/pkg/internal/text"
	"fence/pkg/sif"
	"fence/pkg/smoke"
	"fence/pkg/step"
	"fence/pkg/task"
)

// Fault says why there is no image.
type Fault struct {
	Class   string `json:"class"`
	Message string `json:"message"`          // one line
	Hint    string `json:"hint,omitempty"`   // what to do, one line
	Detail  string `json:"detail,omitempty"` // what was said before it, the end of it
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
	{"network", false, regexp.MustCompile(`CERTIFICATE_VERIFY_FAILED|[Cc]ertificate verification failed|SSL certificate problem|SELF_SIGNED_CERT_IN_CHAIN`)},
	// apt and pip go on without an index that they could not fetch, and then find no package.
	{"network", true, regexp.MustCompile(`Some index files failed to download|Retrying \(Retry\(total=0,`)},
	{"not_found", false, regexp.MustCompile(`Unable to locate package|has no installation candidate|No matching distribution found|npm (ERR!|error) (code )?(ETARGET|E404)|manifest unknown`)},
	{"network", true, regexp.MustCompile(`Temporary failure (in name resolution|resolving)|Hash Sum mismatch|Failed to fetch|ECONNRESET|EAI_AGAIN|ETIMEDOUT|ReadTimeoutError|Connection timed out|curl: \((6|7|28|35|52|56)\)|unexpected EOF|50[234] (Bad Gateway|Service)`)},
	{"memory", false, regexp.MustCompile(`Out of memory|Cannot allocate memory|Killed`)},
	{"architecture", false, regexp.MustCompile(`[Ee]xec format error`)},
}

// classify names a failure by the error, else by the end of the log.
func classify(err error, log string) *Fault {
	f := &Fault{Class: "step", Message: text.Printable(strings.ReplaceAll(err.Error(), "\n", "; ")), Detail: lastLines(log, 20)}
	var failed *step.Failure
	var damaged *CacheError
	var required *RequireError
	var status *StatusError
	var arch *ArchError
	var looked *CheckError
	var started *smoke.Failure
	switch {
	case errors.As(err, &arch):
		f.Class = "architecture"
	case errors.Is(err, ErrTimeout):
		f.Class, f.Retry = "timeout", true
	case errors.Is(err, context.Canceled):
		f.Class, f.Retry = "stopped", true
	case errors.As(err, &required):
		f.Class = "require"
	case errors.As(err, &looked):
		f.Class, f.Hint, f.Detail = "check", looked.Finding.Hint, ""
		switch looked.Finding.Class {
		case "arch":
			f.Class = "architecture"
		case "command":
			f.Class = "require"
		}
	case errors.As(err, &started):
		f.Class, f.Detail = "smoke", lastLines(started.Said, 20)
		f.Message = "the image was made, and started under Apptainer as a trial starts it: " + text.Printable(started.Error())
		f.Hint = "--no-smoke leaves the start out, if it is this node and not the image"
	case away(f, err):
	case full(err):
		f.Class = "disk"
	case errors.As(err, &damaged):
		f.Class, f.Retry = "cache", true
	case errors.As(err, &failed):
		f.Class, f.Retry = failed.Kind, failed.Kind == "engine"
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
	f.Hint = cmp.Or(f.Hint, hints[f.Class])
	return f
}

// hints are what can be done about a class of failures whose messages do not
// say it.
var hints = map[string]string{
	"disk":       "make room, or name other folders with --cache and --scratch",
	"memory":     "fewer at a time: -j 1; or a job with more memory",
	"timeout":    "--timeout TIME gives each build longer",
	"rate_limit": "the same command again goes on later; --base NAME=PATH asks no registry",
	"stopped":    "the same command again goes on",
}

// full says that a disk took no more, of the cache or of scratch.
func full(err error) bool {
	return errors.Is(err, sif.ErrDiskFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS)
}

// away says that a server did not give what was asked for.
func away(f *Fault, err error) bool {
	var limited *base.RateLimited
	var unreachable *base.Unreachable
	var fetched *FetchError
	switch {
	case errors.As(err, &fetched):
		switch s := fetched.Status; {
		case s == http.StatusTooManyRequests:
			f.Class, f.Retry = "rate_limit", true
		case s == 0, s >= 500, s == http.StatusRequestTimeout:
			f.Class, f.Retry = "network", true
		case s == http.StatusNotFound, s == http.StatusGone:
			f.Class = "not_found"
		default:
			f.Class = "source"
		}
	case errors.As(err, &limited):
		f.Class, f.Retry = "rate_limit", true
	case errors.As(err, &unreachable):
		f.Class, f.Retry = "network", true
	default:
		return false
	}
	return true
}

// planFault is a Dockerfile that cannot be planned.
func planFault(err error) *Fault {
	f := &Fault{Class: "dockerfile", Message: text.Printable(err.Error())}
	if errors.As(err, new(*task.Invalid)) {
		f.Class = "task"
	}
	var e *dockerfile.Error
	if errors.As(err, &e) {
		f.Hint = text.Printable(e.Hint)
	}
	away(f, err)
	return f
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
