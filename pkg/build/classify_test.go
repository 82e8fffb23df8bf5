package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"fence/pkg/base"
	"fence/pkg/check"
	"fence/pkg/dockerfile"
	"fence/pkg/sif"
	"fence/pkg/smoke"
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
		{"apt without an index", failed, "W: Some index files failed to download. They have been ignored, or old ones used instead.\nE: Unable to locate package python3", "network", true},
		{"pip without an index", failed, "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NewConnectionError('x')': /simple/x/\nERROR: No matching distribution found for x", "network", true},
		{"pip that got through in the end", failed, "WARNING: Retrying (Retry(total=4, connect=None, read=None, redirect=None, status=None)) after connection broken by 'x': /simple/x/\nERROR: No matching distribution found for x", "not_found", false},
		{"a certificate that the image does not know", failed, "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate'))': /simple/x/\nERROR: No matching distribution found for x", "network", false},
		{"curl and a certificate", failed, "curl: (60) SSL certificate problem: self-signed certificate in certificate chain", "network", false},
		{"a name server", failed, "Temporary failure resolving 'x'", "network", true},
		{"a reset in npm", failed, "npm ERR! code ECONNRESET", "network", true},
		{"curl", failed, "curl: (28) Operation timed out", "network", true},
		{"only the end of the log counts", failed, "Hash Sum mismatch\n" + lines(100) + "no rule", "step", false},
		{"time", fmt.Errorf("x: %w", ErrTimeout), "", "timeout", true},
		{"stopped", context.Canceled, "", "stopped", true},
		{"required", &RequireError{Missing: []string{"tmux"}}, "", "require", false},
		{"isolation", &step.Failure{Kind: "isolation", Text: "x"}, "", "isolation", false},
		{"a container that has ended", fmt.Errorf("x: %w", &step.Failure{Kind: "engine", Text: "x"}), "", "engine", true},
		{"another architecture", &ArchError{}, "", "architecture", false},
		{"the cache's disk", fmt.Errorf("writing: %w", &os.PathError{Op: "write", Path: "x", Err: unix.ENOSPC}), "", "disk", false},
		{"the image's disk", fmt.Errorf("writing: %w", sif.ErrDiskFull), "", "disk", false},
		{"the cache's quota", unix.EDQUOT, "", "disk", false},
		{"a command that the image lacks", &CheckError{check.Finding{Class: "command"}}, "", "require", false},
		{"an image for others", &CheckError{check.Finding{Class: "arch"}}, "", "architecture", false},
		{"what only a build has", &CheckError{check.Finding{Class: "leftover"}}, "", "check", false},
		{"an image that does not start", &smoke.Failure{What: []string{"x"}}, "toomanyrequests", "smoke", false},
		{"a registry's limit, of a base", fmt.Errorf("x: %w", &base.RateLimited{}), "", "rate_limit", true},
		{"a registry that does not answer", fmt.Errorf("x: %w", &base.Unreachable{Err: errors.New("y")}), "", "network", true},
		{"a server that ADD cannot reach", fmt.Errorf("x: %w", &FetchError{0, errors.New("y")}), "", "network", true},
		{"a server that ADD asks too often", fmt.Errorf("x: %w", &FetchError{429, errors.New("y")}), "", "rate_limit", true},
		{"a server that is ill", fmt.Errorf("x: %w", &FetchError{503, errors.New("y")}), "", "network", true},
		{"a URL that is not there", fmt.Errorf("x: %w", &FetchError{404, errors.New("y")}), "", "not_found", false},
		{"a checksum of ADD", fmt.Errorf("x: %w", &FetchError{200, errors.New("y")}), "", "source", false},
		{"ours", errors.New("x"), "", "setup", false},
	} {
		f := classify(c.err, c.log)
		if f.Class != c.class || f.Retry != c.retry {
			t.Errorf("%s: %s, retry %t; want %s, %t", c.name, f.Class, f.Retry, c.class, c.retry)
		}
	}
}

// What stands on the terminal and in the record is one line, whatever a
// Dockerfile has in it, with what a person can do.
func TestFault_OneLineWithAHint(t *testing.T) {
	wrong := &dockerfile.Error{File: "D", Line: 2, Instruction: "COPY", Err: errors.New("x\x1b[31m\ny"), Hint: "do\nit"}
	for _, c := range []struct {
		fault         *Fault
		message, hint string
	}{
		{planFault(fmt.Errorf("task: %w", wrong)), `task: D:2: COPY: x\x1b[31m y`, `do\nit`},
		{planFault(errors.New("a\nb")), `a\nb`, ""},
		{classify(errors.Join(errors.New("a"), errors.New("b")), ""), "a; b", ""},
		{classify(unix.ENOSPC, ""), "no space left on device", "make room, or name other folders with --cache and --scratch"},
		{classify(&CheckError{check.Finding{Class: "leftover", Text: "t", Hint: "h"}}, "log"), "the image was made and is not as it must be: t", "h"},
		{classify(&smoke.Failure{What: []string{"a\n", "b"}, Said: "said"}, "log"), `the image was made, and started under Apptainer as a trial starts it: a\n; b`, "--no-smoke leaves the start out, if it is this node and not the image"},
	} {
		if c.fault.Message != c.message || c.fault.Hint != c.hint {
			t.Errorf("%q, hint %q; want %q, hint %q", c.fault.Message, c.fault.Hint, c.message, c.hint)
		}
	}
	if f := classify(&smoke.Failure{What: []string{"a"}, Said: "said"}, "log"); f.Detail != "said" {
		t.Errorf("the detail of a start is %q", f.Detail)
	}
}

func lines(n int) (s string) {
	for i := range n {
		s += fmt.Sprintf("line %d\n", i)
	}
	return s
}
