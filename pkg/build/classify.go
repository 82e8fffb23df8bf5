package build

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"

	"fence/pkg/base"
	"fence/pkg/dockerfile"
	"fence/pkg/internal/text"
	"fence/pkg/registry"
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

// class is a kind of failures: whether the same again may work, and what can be
// done where a message does not say it.
type class struct {
	retry bool
	hint  string
}

var classes = map[string]class{
	"network":      {true, "the same command again goes on; a server that is never reached from here: a mirror, or the packages in a base image (--base)"},
	"rate_limit":   {true, "the same command again goes on later; --base NAME=PATH asks no registry"},
	"timeout":      {true, "--timeout TIME gives each build longer"},
	"stalled":      {true, "a mirror that stands still: the same command again goes on; a command that is silent for long: --idle-timeout TIME, 0 for no limit"},
	"cache":        {true, ""},
	"engine":       {true, ""},
	"stopped":      {true, "the same command again goes on"},
	"disk":         {false, "make room, or name other folders with --cache and --scratch"},
	"memory":       {false, "fewer at a time: -j 1; or a job with more memory"},
	"not_found":    {false, "mend the name or the version in the Dockerfile; apt knows packages only after apt-get update in the same RUN"},
	"architecture": {false, "build on a node of that architecture, or take programs and a base for this one"},
	"libc":         {false, "the program was built for a newer C library than the image has: begin with a newer base, or build the program in this one"},
	"certificate":  {false, "install ca-certificates before; where the site signs TLS itself, COPY its certificate and run update-ca-certificates"},
	"users":        {false, "a build has one user, and pretends the others: do without what checks them (docs/sifbuild.md)"},
	"xattr":        {false, "attributes and ACLs of files do not reach an image: do without them"},
	"privilege":    {false, "root of a build owns the image's files, and nothing of the node: no mounts, devices, modules or daemons of it (docs/sifbuild.md)"},
	"prompt":       {false, "nobody answers: apt-get install -y, ENV DEBIAN_FRONTEND=noninteractive"},
	"package":      {false, "the package's own script failed, the lines above say at what"},
	"command":      {false, "install it in an earlier step; a script that is there may have Windows line ends, or begin with an interpreter that is not"},
}

// said are known failures by what programs print, in the order in which they
// are looked for: what caused others before those.
var said = []struct {
	class string
	text  *regexp.Regexp
}{
	{"disk", regexp.MustCompile(`No space left on device|Disk quota exceeded|ENOSPC|don't have enough free space in`)},
	{"rate_limit", regexp.MustCompile(`(?i)toomanyrequests|429 Too Many Requests|pull rate limit|API rate limit exceeded|HTTP (error|status)?:? ?429|HTTP/1\.[01] 429|returned error: 429|npm (ERR!|error) (code )?E429`)},
	{"certificate", regexp.MustCompile(`CERTIFICATE_VERIFY_FAILED|certificate verify failed|SSL certificate problem|curl: \((60|77)\)|UNABLE_TO_GET_ISSUER_CERT|SELF_SIGNED_CERT_IN_CHAIN|[Cc]ertificate verification failed|x509: certificate`)},
	// apt and pip go on without an index that they could not fetch, and then find no package.
	{"network", regexp.MustCompile(`Some index files failed to download|Retrying \(Retry\(total=0`)},
	{"architecture", regexp.MustCompile(`[Ee]xec format error|cannot execute binary file|could not run on the host's|no child with platform`)},
	{"libc", regexp.MustCompile("version [`'](GLIBC|GLIBCXX|CXXABI)_[0-9.]+' not found")},
	{"not_found", regexp.MustCompile(`Unable to locate package|has no installation candidate|Couldn't find any package by|Version '[^']*' for '[^']*' was not found|No matching distribution found|npm (ERR!|error) (code )?(ETARGET|E404)|manifest unknown|\(no such package\)|No match for argument|error: target not found|returned error: 4(03|04|10)|ERROR 4(03|04|10):|HTTP/1\.[01] 4(03|04|10)`)},
	{"network", regexp.MustCompile(`Temporary failure (in name resolution|resolving)|Could not resolve host|Name or service not known|bad address|Hash Sum mismatch|File has unexpected size|Failed to fetch|ECONNRESET|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT|socket hang up|ReadTimeoutError|ConnectTimeoutError|NewConnectionError|IncompleteRead|Connection (timed out|reset by peer|refused|broken)|Network is unreachable|No route to host|curl: \((5|6|7|16|18|28|35|52|55|56|92)\)|unexpected EOF|early EOF|hung up unexpectedly|TLS handshake timeout|i/o timeout|temporary error \(try again later\)|download timed out|error getting response|returned error: 5\d\d|HTTP Error 5\d\d|50[0234] (Bad Gateway|Service|Internal|Gateway)|ERROR 50[0234]:|HTTP/1\.[01] 50[0234]`)},
	{"memory", regexp.MustCompile(`Out of memory|out of memory|Cannot allocate memory|MemoryError|std::bad_alloc|(?m:^|[ :])Killed\b|[Ff]ork: .*Resource temporarily unavailable|pthread_create`)},
	{"users", regexp.MustCompile(`setgroups \d+ failed|Could not switch (group|user)|sete[ug]id \d+ failed|Method gave invalid 400 URI Failure|cpio: chown failed|failure while writing changes to /etc/|new[ug]idmap|insufficient UIDs or GIDs|faked: not found|fakeroot[:,]`)},
	{"xattr", regexp.MustCompile(`l?setxattr.*(ENOTSUP|[Oo]peration not (supported|permitted))|Setting access ACL .*failed|setfacl: .*not supported|llistxattr: `)},
	{"privilege", regexp.MustCompile(`(mount|umount|mknod|unshare|nsenter|losetup|sysctl|iptables|modprobe|insmod|swapon|bwrap|clone|capset|ip)( .*)?: .*([Oo]peration not permitted|[Pp]ermission denied|must be (superuser|root)|[Rr]ead-only file system)|Cannot connect to the Docker daemon|System has not been booted with systemd|while copying pseudo devices`)},
	{"prompt", regexp.MustCompile(`Do you want to continue\? \[Y/n\]\s*Abort|EOFError: EOF when reading a line|Is this ok \[y/N\]: Operation aborted`)},
	{"command", regexp.MustCompile(`bad interpreter`)},
	{"package", regexp.MustCompile(`dpkg: error processing|Sub-process /usr/bin/dpkg returned an error|have unmet dependencies|scriptlet failed`)},
}

// reading names a command's failure by its status and what it printed.
func reading(status int, log string) string {
	end := lastLines(log, 60)
	for _, s := range said {
		if s.text.MatchString(end) {
			return s.class
		}
	}
	switch status {
	case 127: // as a shell says that a command is not there
		return "command"
	case 128 + int(syscall.SIGKILL): // nobody else sends it there but the kernel
		return "memory"
	}
	return "step"
}

// fault names what ended an attempt. Whatever fails while a run is stopped
// counts as stopped.
func (b *Builder) fault(ctx context.Context, err error, log string) *Fault {
	if ctx.Err() != nil {
		err = stopped{err, context.Cause(ctx)}
	}
	return classify(err, tail(log, 0))
}

// stopped is an attempt that was ended with its run.
type stopped struct{ err, why error }

func (s stopped) Error() string {
	if errors.Is(s.err, s.why) {
		return s.err.Error()
	}
	return s.why.Error()
}

// classify names a failure by the error. log is what the attempt has said.
func classify(err error, log string) *Fault {
	f := &Fault{Class: "step", Message: text.Printable(strings.ReplaceAll(err.Error(), "\n", "; ")), Detail: lastLines(log, 20)}
	var failed *step.Failure
	var damaged *CacheError
	var required *RequireError
	var status *StatusError
	var arch *ArchError
	var looked *CheckError
	var started *smoke.Failure
	var end stopped
	var idle *IdleError
	var none *NoRoom
	switch {
	case errors.As(err, &end), errors.Is(err, context.Canceled):
		f.Class = "stopped"
	case errors.As(err, &arch):
		f.Class = "architecture"
	case errors.Is(err, ErrTimeout):
		f.Class = "timeout"
	case errors.As(err, &idle):
		f.Class, f.Detail = "stalled", lastLines(idle.Said, 20)
	case errors.As(err, &none):
		f.Class, f.Detail = none.Class, ""
	case errors.As(err, &required):
		f.Class = "require"
		if required.Status != nil {
			f.Retry = classes[reading(required.Status.Status, required.Status.Said)].retry
			f.Detail = lastLines(required.Status.Said, 20)
		}
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
		f.Class = "cache"
	case errors.As(err, &failed):
		f.Class = failed.Kind
		switch {
		case f.Class == "starved":
			f.Class = "memory"
		case f.Class == "command" && strings.Contains(failed.Text, syscall.ENOEXEC.Error()):
			f.Class = "architecture"
		}
	case errors.As(err, &status):
		f.Class, f.Detail = reading(status.Status, status.Said), lastLines(status.Said, 20)
	default:
		f.Class = "setup"
	}
	if errors.As(err, new(*registry.Refused)) {
		return f // which says what to do
	}
	f.Retry = f.Retry || classes[f.Class].retry
	f.Hint = cmp.Or(f.Hint, classes[f.Class].hint)
	return f
}

// full says that a disk took no more, of the cache or of scratch.
func full(err error) bool {
	return errors.Is(err, sif.ErrDiskFull) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS)
}

// away says that a server did not give what was asked for: for now, or at all.
func away(f *Fault, err error) bool {
	var limited *registry.RateLimited
	var unreachable *registry.Unreachable
	var refused *registry.Refused
	var platform *base.PlatformError
	var fetched *FetchError
	switch {
	case errors.As(err, &platform):
		f.Class = "architecture"
	case errors.As(err, &refused) && refused.Status == 0:
		f.Class = "network"
	case errors.As(err, &refused):
		f.Class = "not_found"
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
		f.Class = "rate_limit"
	case errors.As(err, &unreachable):
		f.Class = "network"
	default:
		return false
	}
	f.Retry = classes[f.Class].retry && refused == nil
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
	if !away(f, err) && full(err) {
		f.Class = "disk"
	}
	if !errors.As(err, new(*registry.Refused)) { // which says what to do
		f.Hint = cmp.Or(f.Hint, classes[f.Class].hint)
	}
	return f
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// end is how long a log is by now.
func end(log *os.File) int64 {
	st, err := log.Stat()
	if err != nil {
		return 0
	}
	return st.Size()
}

// tail is the end of what a log says from a place on.
func tail(name string, from int64) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 16 << 10
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		f.Seek(max(from, size-most), io.SeekStart)
	}
	data, _ := io.ReadAll(io.LimitReader(f, most))
	return string(data)
}
