package wheelhouse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/wheel"
)

// pip is the node's pip.
type pip struct {
	argv  []string // how it is called
	env   []string
	stage string // the folder that it fetches to
	cache string
	quiet time.Duration // how long it may do nothing that shows
	most  uint64        // bytes of one file
}

// errQuiet is a pip that was ended because it stood still: it waits for every
// byte of an index anew.
var errQuiet = errors.New("pip got nothing for long, and was ended")

const (
	// quietMax is longer than a resolver thinks, and any server is slow.
	quietMax = 10 * time.Minute
	// fileMost is larger than any wheel: an index can send one without end.
	fileMost = 16 << 30
	// crawl is how many bytes have to come, or be said, in that time.
	crawl = 64 << 10
)

// ErrNoPip says that there is no pip.
var ErrNoPip = errors.New("there is no pip here")

// findPip looks for a pip: python3's, or the one that uv runs.
func findPip(ctx context.Context) ([]string, error) {
	for _, argv := range [][]string{{"python3", "-m", "pip"}, {"pip3"}, {"uvx", "pip"}} {
		cmd := exec.CommandContext(ctx, argv[0], append(argv[1:], "--version")...)
		if out, err := cmd.Output(); err == nil && strings.HasPrefix(string(out), "pip ") {
			return argv, nil
		}
	}
	return nil, ErrNoPip
}

// ours are settings that decide here, not in the environment.
var ours = []string{
	"PIP_NO_BINARY", "PIP_ONLY_BINARY", "PIP_NO_DEPS", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_DEST", "PIP_PLATFORM", "PIP_ABI",
	"PIP_IMPLEMENTATION", "PIP_PYTHON_VERSION", "PIP_REQUIRE_HASHES", "PIP_REQUIREMENT", "PIP_QUIET", "PIP_VERBOSE", "PIP_LOG", "PIP_REQUIRE_VIRTUALENV",
	"PIP_PRE", "PIP_CACHE_DIR", "PIP_NO_CACHE_DIR", "TMPDIR",
}

func newPip(argv []string, dir, stage string) *pip {
	p := &pip{argv: argv, stage: stage, cache: filepath.Join(dir, cacheName), quiet: quietMax, most: fileMost}
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); !slices.Contains(ours, name) {
			p.env = append(p.env, kv)
		}
	}
	p.env = append(p.env, "PIP_CACHE_DIR="+p.cache, "TMPDIR="+filepath.Join(p.stage, ".tmp"),
		"PIP_DISABLE_PIP_VERSION_CHECK=1", "PYTHONDONTWRITEBYTECODE=1", "LC_ALL=C.UTF-8")
	return p
}

// run calls pip. Its output is what it printed, whatever came of it.
func (p *pip) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, p.argv[0], append(slices.Clone(p.argv[1:]), args...)...)
	cmd.Dir, cmd.Env = p.stage, p.env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// The death of this thread is the death of this process only if nothing else
	// can end the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Start()
	if err == nil {
		limit := unix.Rlimit{Cur: p.most, Max: p.most}
		if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_FSIZE, &limit, nil); err != nil && !errors.Is(err, unix.ESRCH) {
			cancel(os.NewSyscallError("prlimit", err))
		}
		go p.watch(ctx, cancel)
		err = cmd.Wait()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out.String(), err
}

// watch ends a pip that brings nothing.
func (p *pip) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(p.quiet)
	defer tick.Stop()
	for before := p.there(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := p.there()
		if now < before+crawl && now >= before {
			cancel(errQuiet)
			return
		}
		before = now
	}
}

// there is how many bytes pip has: of the stage, what it is unpacking and its
// cache. What it tidies away makes it less.
func (p *pip) there() (n int64) {
	for _, dir := range []string{p.stage, p.cache} {
		_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
			if err == nil {
				if st, err := d.Info(); err == nil {
					n += st.Size()
				}
			}
			return nil
		})
	}
	return n
}

// target are the options that stand for a target: only wheels, so that nothing
// is built and no setup.py runs.
func target(t wheel.Target) []string {
	args := []string{"--only-binary=:all:", "--python-version", t.Python, "--implementation", "cp", "--no-input", "--no-color"}
	for _, p := range t.Platforms() {
		args = append(args, "--platform", p)
	}
	return args
}

// indexes are the options that stand for where a set is fetched from.
func indexes(s wheel.Set) (args []string) {
	if s.Index != "" {
		args = append(args, "--index-url="+s.Index)
	}
	for _, u := range s.ExtraIndexes {
		args = append(args, "--extra-index-url="+u)
	}
	for _, u := range s.FindLinks {
		args = append(args, "--find-links="+u)
	}
	if s.Pre {
		args = append(args, "--pre")
	}
	return args
}

// download fetches requirements with what they require. The files are those
// that a set of them has, also such as were there.
func (p *pip) download(ctx context.Context, s wheel.Set, t wheel.Target) (files []string, out string, err error) {
	list := func(name string, all []wheel.Requirement) error {
		var b strings.Builder
		for _, r := range all {
			b.WriteString(r.String() + "\n")
		}
		return os.WriteFile(filepath.Join(p.stage, ".tmp", name), []byte(b.String()), 0o666)
	}
	if err := errors.Join(list("requirements", s.Requirements), list("constraints", s.Constraints)); err != nil {
		return nil, "", err
	}
	args := slices.Concat([]string{"download", "--dest", p.stage, "--find-links", p.stage, "--progress-bar", "off", "-r", ".tmp/requirements"}, target(t), indexes(s))
	if len(s.Constraints) > 0 {
		args = append(args, "-c", ".tmp/constraints")
	}
	if s.NoDeps {
		args = append(args, "--no-deps")
	}
	out, err = p.run(ctx, args...)
	if err == nil {
		files = saved(out)
	}
	return files, out, err
}

var savedLine = regexp.MustCompile(`(?m)^\s*(?:Saved|File was already downloaded) (.*\.whl)\s*$`)

// saved are the wheels that pip's output names.
func saved(out string) (files []string) {
	for _, m := range savedLine.FindAllStringSubmatch(out, -1) {
		if name := filepath.Base(m[1]); !slices.Contains(files, name) {
			files = append(files, name)
		}
	}
	return files
}

var versionsLine = regexp.MustCompile(`(?m)^Available versions: (.*)$`)

// versions are all that an index has of a project for the Python of the target,
// as wheels of any kind that fits or as source: pip index knows no difference.
func (p *pip) versions(ctx context.Context, s wheel.Set, t wheel.Target, project string) ([]string, error) {
	out, err := p.run(ctx, slices.Concat([]string{"index", "versions", project}, target(t), indexes(s))...)
	if m := versionsLine.FindStringSubmatch(out); err == nil && m != nil {
		return strings.Split(strings.TrimSpace(m[1]), ", "), nil
	}
	if strings.Contains(out, "No matching distribution found") {
		return nil, nil
	}
	return nil, fmt.Errorf("asking which versions of %s there are: %s", project, lastError(out, err))
}

var (
	noMatch     = regexp.MustCompile(`(?m)^ERROR: No matching distribution found for (.+)$`)
	neededBy    = regexp.MustCompile(`(?m)^ERROR: Could not find a version that satisfies the requirement .* \(from ([^()]+?)(?:->[^()]*)?\) \(from versions: `)
	fromThese   = regexp.MustCompile(`(?m)^ERROR: Could not find a version that satisfies the requirement .* \(from versions: (.*)\)$`)
	wrongHash   = regexp.MustCompile(`DO NOT MATCH THE HASHES[\s\S]*? from (\S+?\.whl)`)
	impossible  = regexp.MustCompile(`ResolutionImpossible|conflicting dependencies`)
	errorLine   = regexp.MustCompile(`(?m)^ERROR: (.+)$`)
	warningLine = regexp.MustCompile(`(?m)^WARNING: (Retrying .+)$`)
)

// lastError is what pip says went wrong, in one line.
func lastError(out string, err error) string {
	all := errorLine.FindAllStringSubmatch(out, -1)
	if len(all) == 0 {
		all = warningLine.FindAllStringSubmatch(out, -1)
	}
	if len(all) > 0 {
		return strings.TrimSpace(all[len(all)-1][1])
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
		return last
	}
	return err.Error()
}
