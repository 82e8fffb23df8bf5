package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/base"
	"fence/pkg/check"
	"fence/pkg/dockerfile"
	"fence/pkg/registry"
	"fence/pkg/sif"
	"fence/pkg/smoke"
	"fence/pkg/step"
)

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		class string
		retry bool
	}{
		{"a command that fails", &StatusError{Status: 1, Said: "make: *** [all] Error 1"}, "step", false},
		{"a command that knows why", fmt.Errorf("x: %w", &StatusError{Status: 1, Said: "npm ERR! code ECONNRESET"}), "network", true},
		{"time", fmt.Errorf("x: %w", ErrTimeout), "timeout", true},
		{"silence", fmt.Errorf("x: %w", &IdleError{After: time.Minute, Said: "toomanyrequests"}), "stalled", true},
		{"stopped", context.Canceled, "stopped", true},
		{"stopped, whatever failed then", stopped{&smoke.Failure{What: []string{"x"}}, errors.New("the job ends")}, "stopped", true},
		{"required", &RequireError{Missing: []string{"tmux"}}, "require", false},
		{"required, and a mirror that is away", &RequireError{Missing: []string{"tmux"}, Status: &StatusError{Status: 100, Said: "E: Failed to fetch x  Connection timed out"}}, "require", true},
		{"required, and no such package", &RequireError{Missing: []string{"tmux"}, Status: &StatusError{Status: 100, Said: "E: Unable to locate package tmux"}}, "require", false},
		{"isolation", &step.Failure{Kind: "isolation", Text: "x"}, "isolation", false},
		{"mksquashfs that had not enough, twice", &step.Failure{Kind: "starved", Text: "x"}, "memory", false},
		{"a container that has ended", fmt.Errorf("x: %w", &step.Failure{Kind: "engine", Text: "x"}), "engine", true},
		{"another architecture", &ArchError{}, "architecture", false},
		{"no room", &NoRoom{"memory", "x"}, "memory", false},
		{"a damaged step", &CacheError{errors.New("x")}, "cache", true},
		{"the cache's disk", fmt.Errorf("writing: %w", &os.PathError{Op: "write", Path: "x", Err: unix.ENOSPC}), "disk", false},
		{"the image's disk", fmt.Errorf("writing: %w", sif.ErrDiskFull), "disk", false},
		{"the cache's quota", unix.EDQUOT, "disk", false},
		{"a command that the image lacks", &CheckError{check.Finding{Class: "command"}}, "require", false},
		{"an image for others", &CheckError{check.Finding{Class: "arch"}}, "architecture", false},
		{"what only a build has", &CheckError{check.Finding{Class: "leftover"}}, "check", false},
		{"an image that does not start", &smoke.Failure{What: []string{"x"}}, "smoke", false},
		{"a registry's limit, of a base", fmt.Errorf("x: %w", &registry.RateLimited{}), "rate_limit", true},
		{"a registry that does not answer", fmt.Errorf("x: %w", &registry.Unreachable{Err: errors.New("y")}), "network", true},
		{"an image that is not there", fmt.Errorf("x: %w", &registry.Refused{Status: 404}), "not_found", false},
		{"an image that is not for us", fmt.Errorf("x: %w", &registry.Refused{Status: 403}), "not_found", false},
		{"a registry's certificate", fmt.Errorf("x: %w", &registry.Refused{}), "network", false},
		{"an image for another node", fmt.Errorf("x: %w", &base.PlatformError{}), "architecture", false},
		{"ADD, 404", &FetchError{404, errors.New("x")}, "not_found", false},
		{"ADD, another checksum", &FetchError{200, errors.New("x")}, "source", false},
		{"ADD, 429", &FetchError{429, errors.New("x")}, "rate_limit", true},
		{"ADD, 503", &FetchError{503, errors.New("x")}, "network", true},
		{"ADD, no connection", &FetchError{0, errors.New("x")}, "network", true},
		{"ours", errors.New("x"), "setup", false},
	} {
		f := classify(c.err, "toomanyrequests") // what another step said counts for nothing
		if f.Class != c.class || f.Retry != c.retry {
			t.Errorf("%s: %s, retry %t; want %s, %t", c.name, f.Class, f.Retry, c.class, c.retry)
		}
	}
}

// What programs print when they fail, as seen.
func TestReading(t *testing.T) {
	for want, texts := range map[string][]string{
		"disk": {
			"E: Failed to fetch x\nwrite error: No space left on device", "cp: error writing '/x': Disk quota exceeded", "npm ERR! code ENOSPC",
			"E: You don't have enough free space in /var/cache/apt/archives/.",
		},
		"rate_limit": {
			"toomanyrequests: You have reached your pull rate limit", "curl: (22) The requested URL returned error: 429", "npm ERR! code E429",
			"ERROR: HTTP error 429 while getting http://x", "{\"message\":\"API rate limit exceeded for 1.2.3.4.\"}",
		},
		"network": {
			"Temporary failure resolving 'x'", "npm ERR! code ECONNRESET", "npm error code EAI_AGAIN", "curl: (28) Operation timed out", "curl: (56) Recv failure: Connection reset by peer",
			"E: Failed to fetch http://x/p.deb  Hash Sum mismatch", "E: Failed to fetch http://x/p.deb  404  Not Found [IP: 1.2.3.4 80]", "E: Failed to fetch http://x/p.deb  File has unexpected size (3 != 4). Mirror sync in progress?",
			"W: Failed to fetch http://x/InRelease  Connection timed out\nW: Some index files failed to download. They have been ignored, or old ones used instead.\nE: Unable to locate package tmux",
			"WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError'\nERROR: No matching distribution found for x",
			"pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool: Read timed out.", "fatal: early EOF", "error: RPC failed; curl 92 HTTP/2 stream 0 was not closed cleanly\nfatal: the remote end hung up unexpectedly",
			"wget: bad address 'x'", "wget: download timed out", "curl: (22) The requested URL returned error: 503", "unexpected EOF", "WARNING: opening http://x: temporary error (try again later)",
		},
		"not_found": {
			"E: Unable to locate package nosuch", "E: Package 'nosuch' has no installation candidate", "E: Version '9' for 'x' was not found",
			"ERROR: No matching distribution found for nosuch==9", "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken by 'x'\nERROR: No matching distribution found for x", "npm ERR! code ETARGET", "npm error code E404", "manifest unknown", "  nosuch (no such package):", "No match for argument: nosuch",
			"curl: (22) The requested URL returned error: 404", "2026-01-01 ERROR 404: Not Found.", "wget: server returned error: HTTP/1.1 404 Not Found",
		},
		"architecture": {"/bin/sh: 1: ./x: Exec format error", "exec ./x: exec format error", "bash: ./x: cannot execute binary file: Exec format error"},
		"libc": {
			"/x: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by /x)", "/.singularity.d/libs/faked: /lib/libc.so.6: version `GLIBC_2.33' not found",
			"libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by x)",
		},
		"certificate": {"WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate'))': /simple/x/\nERROR: No matching distribution found for x", "curl: (60) SSL certificate problem: unable to get local issuer certificate", "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED]", "npm ERR! code UNABLE_TO_GET_ISSUER_CERT_LOCALLY"},
		"memory":      {"Killed", "c++: fatal error: Killed signal terminated program cc1plus", "OSError: [Errno 12] Cannot allocate memory", "FATAL ERROR: JavaScript heap out of memory", "sh: fork: retry: Resource temporarily unavailable"},
		"users": {
			"E: setgroups 65534 failed - setgroups (1: Operation not permitted)", "E: seteuid 100 failed - seteuid (22: Invalid argument)", "E: Method gave invalid 400 URI Failure message: Could not switch group",
			"cpio: chown failed - Invalid argument", "groupadd: failure while writing changes to /etc/group", "newuidmap: write to uid_map failed", "potentially insufficient UIDs or GIDs available in user namespace", "/bin/sh: faked: not found",
		},
		"xattr":     {"setxattr /x: ENOTSUP user.rootlesscontainers", "Setting access ACL \"u::rw\" on /x failed: Invalid argument", "setfacl: /x: Operation not supported"},
		"privilege": {"mknod: /x: Operation not permitted", "mount: /mnt: permission denied.", "mount: can't setup loop device: Operation not permitted", "unshare: unshare failed: Operation not permitted", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."},
		"prompt":    {"Do you want to continue? [Y/n] Abort.", "Do you want to continue? [Y/n]\nAbort.", "EOFError: EOF when reading a line"},
		"command":   {"/bin/sh: ./x: /bin/sh^M: bad interpreter: No such file or directory"},
		"package":   {"dpkg: error processing package x (--configure):\nE: Sub-process /usr/bin/dpkg returned an error code (1)"},
		"step":      {"", "make: *** [all] Error 1", "Hash Sum mismatch\n" + lines(100) + "no rule", "the user asked to be Killedly precise", "3 skills were not found"},
	} {
		for _, text := range texts {
			if got := reading(1, "Reading package lists...\n"+text+"\n"); got != want {
				t.Errorf("%q: %s, want %s", text, got, want)
			}
		}
	}
	for status, want := range map[int]string{1: "step", 127: "command", 137: "memory", 143: "step"} {
		if got := reading(status, "no clue"); got != want {
			t.Errorf("status %d: %s, want %s", status, got, want)
		}
	}
	for _, s := range said {
		if _, ok := classes[s.class]; !ok {
			t.Errorf("the class %s is none", s.class)
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
