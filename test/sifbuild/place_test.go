package sifbuild

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"fence/pkg/build"
	"fence/pkg/sif"
	"fence/test/bed"
)

// full says whether to do what takes long, as make test-all does.
func full() bool { return os.Getenv("TEST_FULL") != "" }

// long skips a test that takes too long for every day.
func long(t *testing.T) {
	t.Helper()
	if !full() {
		t.Skip("takes minutes; with TEST_FULL=1")
	}
}

// A place is a folder of the person's with their tasks, their cache and a
// scratch folder. Its path is in no process but those that the test started.
type place struct {
	t     testing.TB
	dir   string
	bases []string // --base NAME=PATH of every build
	// engine of every build: the native one or, with ENGINE=sandbox, that of Apptainer
	engine string
}

// engines does a test with each engine.
func engines(t *testing.T, test func(t *testing.T, p *place)) {
	for _, engine := range []string{"native", "sandbox"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.engine = engine
			if engine == "sandbox" {
				bed.Require(t, "apptainer", "site")
			}
			test(t, p)
		})
	}
}

func newPlace(t testing.TB) *place {
	t.Helper()
	bed.Require(t, "users", "images")
	if _, err := exec.LookPath("mksquashfs"); err != nil {
		bed.Missing(t, "mksquashfs, which comes with the Debian package squashfs-tools")
	}
	p := &place{t: t, dir: bed.TempDir(t), bases: []string{"busybox=" + bed.Root("busybox")}, engine: cmp.Or(os.Getenv("ENGINE"), "native")}
	for _, name := range []string{"tasks", "cache", "scratch"} {
		p.mkdir(name)
	}
	return p
}

func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

func (p *place) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// mkdir makes a folder of the person's own.
func (p *place) mkdir(name string) {
	p.t.Helper()
	uid, gid, _ := bed.User(p.t)
	p.must(os.MkdirAll(p.path(name), 0o755))
	p.must(os.Chown(p.path(name), uid, gid))
}

// write makes a file of the person's own, and the folders above it.
func (p *place) write(name, text string, mode fs.FileMode) {
	p.t.Helper()
	uid, gid, _ := bed.User(p.t)
	p.must(os.MkdirAll(filepath.Dir(p.path(name)), 0o755))
	p.must(os.WriteFile(p.path(name), []byte(text), 0o644))
	p.must(os.Chmod(p.path(name), mode)) // whatever the umask
	p.must(os.Lchown(p.path(name), uid, gid))
}

// context is where the files of a task's build context are.
func context(task string) string { return filepath.Join("tasks", task, "environment") }

// task makes a task folder in Harbor's layout.
func (p *place) task(name, dockerfile string) {
	p.t.Helper()
	dir := filepath.Join("tasks", name)
	p.write(filepath.Join(dir, "task.toml"), "version = \"1.0\"\n", 0o644)
	p.write(filepath.Join(dir, "instruction.md"), "Do it.\n", 0o644)
	p.write(filepath.Join(dir, "tests/test.sh"), "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n", 0o755)
	p.write(filepath.Join(context(name), "Dockerfile"), dockerfile, 0o644)
}

// program puts a program of this module into a task's build context.
func (p *place) program(task, name string) {
	p.t.Helper()
	from := inside
	if name != "inside" {
		from = func(t testing.TB) string { return bed.Bin(t, name) }
	}
	data, err := os.ReadFile(from(p.t))
	p.must(err)
	p.write(filepath.Join(context(task), name), string(data), 0o755)
}

// inside is the program of ./inside, static.
func inside(t testing.TB) string {
	t.Helper()
	dir, err := insideOnce()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var insideOnce = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sifbuild-test-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", filepath.Join(dir, "inside"), "./inside")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building ./inside: %v\n%s", err, out)
	}
	return filepath.Join(dir, "inside"), nil
})

func TestMain(m *testing.M) {
	// Whoever runs the tests may have signals ignored (nohup, a shell's background),
	// and sifbuild leaves those so: what is started here is to have them as usual.
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	code := m.Run()
	if name, err := insideOnce(); err == nil {
		os.RemoveAll(filepath.Dir(name))
	}
	os.Exit(code)
}

// command is sifbuild build of tasks, by name; none: all.
func (p *place) command(tasks []string, flags ...string) *exec.Cmd {
	p.t.Helper()
	bed.Bin(p.t, "fence") // it is beside sifbuild, where sifbuild looks for it
	args := []string{"build", "--cache", p.path("cache"), "--scratch", p.path("scratch"), "--require", "none", "--engine", p.engine}
	for _, b := range p.bases {
		args = append(args, "--base", b)
	}
	args = append(args, flags...)
	if len(tasks) == 0 {
		args = append(args, p.path("tasks"))
	}
	for _, name := range tasks {
		args = append(args, filepath.Join(p.path("tasks"), name))
	}
	cmd := bed.Command(p.t, bed.Bin(p.t, "sifbuild"), args...)
	for i, kv := range cmd.Env {
		// The steps' own environment is this alone; so they can be told by it.
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			cmd.Env[i] = "PATH=" + path + ":" + p.dir
		}
	}
	return cmd
}

// result is what a run of sifbuild build left behind.
type result struct {
	code    int
	records map[string]build.Report // by task
	stderr  string
}

// run runs a command of sifbuild and reads what it says.
func (p *place) run(cmd *exec.Cmd) result {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	p.must(cmd.Start())
	return p.wait(cmd)
}

// wait is run for a command that was started with buffers.
func (p *place) wait(cmd *exec.Cmd) result {
	p.t.Helper()
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatalf("%v: %v", cmd, err)
	}
	r := result{code: cmd.ProcessState.ExitCode(), records: map[string]build.Report{}, stderr: cmd.Stderr.(*bytes.Buffer).String()}
	for d := json.NewDecoder(cmd.Stdout.(*bytes.Buffer)); ; {
		d.DisallowUnknownFields()
		var one build.Report
		if err := d.Decode(&one); err == io.EOF {
			return r
		} else if err != nil {
			if r.code < 0 { // killed in the middle of a line
				return r
			}
			p.t.Fatalf("a record of sifbuild: %v\n%s", err, r.stderr)
		}
		r.records[one.Name] = one
	}
}

// build builds tasks, which has to work, and leaves nothing behind.
func (p *place) build(tasks []string, flags ...string) map[string]build.Report {
	p.t.Helper()
	return p.built(p.run(p.command(tasks, flags...)))
}

// built says that all of a run worked.
func (p *place) built(r result) map[string]build.Report {
	p.t.Helper()
	if r.code != 0 {
		for _, one := range r.records {
			if one.Fault != nil {
				p.t.Logf("%s: %s", one.Name, one.Fault.Message)
				p.t.Log(tail(one.Log))
			}
		}
		p.t.Fatalf("exit code %d\n%s", r.code, r.stderr)
	}
	p.clean()
	return r.records
}

func tail(name string) string {
	data, _ := os.ReadFile(name)
	return string(data[max(0, len(data)-3000):])
}

// clean says that nothing of a build is left but the cache: no file in the
// scratch folder, no process, no mount.
func (p *place) clean() {
	p.t.Helper()
	entries, err := os.ReadDir(p.path("scratch"))
	p.must(err)
	for _, e := range entries {
		p.t.Errorf("left in the scratch folder: %s", e.Name())
	}
	for _, pid := range p.processes() {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		p.t.Errorf("a process is left: %d %q", pid, cmdline)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	p.must(err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, p.dir) && !strings.Contains(line, " "+ownMount) {
			p.t.Errorf("a mount is left: %s", line)
		}
	}
}

// processes are those that the test's commands started and that still run.
func (p *place) processes() (pids []int) {
	for _, name := range []string{"environ", "cmdline"} {
		files, _ := filepath.Glob("/proc/[0-9]*/" + name)
		for _, file := range files {
			var pid int
			fmt.Sscanf(file, "/proc/%d/", &pid)
			if data, err := os.ReadFile(file); err == nil && bytes.Contains(data, []byte(p.dir)) && pid != os.Getpid() && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// listing is all that an image holds: type, mode, owner, link and content of
// every path.
func (p *place) listing(image string) map[string]string {
	p.t.Helper()
	img, err := sif.Open(image)
	p.must(err)
	defer img.Close()
	all := map[string]string{}
	p.must(img.Walk(func(e sif.Entry) error {
		what := fmt.Sprintf("%v %q", e.Mode, e.Link)
		if e.Mode.IsRegular() {
			r, err := e.Open()
			if err != nil {
				return err
			}
			h := sha256.New()
			if _, err := io.Copy(h, r); err != nil {
				return err
			}
			what += fmt.Sprintf(" %d %x", e.Size, h.Sum(nil))
		}
		all[e.Path] = what
		return nil
	}))
	for _, o := range img.Owners {
		all[o.Path] += fmt.Sprintf(" %d:%d %s", o.UID, o.GID, o.Device)
	}
	all["(configuration)"] = string(img.ConfigJSON)
	return all
}

// same says that an image holds what another did.
func (p *place) same(want, got map[string]string) {
	p.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			p.t.Errorf("%s: is %q, and was %q", name, got[name], want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			p.t.Errorf("%s: is new: %q", name, got[name])
		}
	}
}

// file is the content of a file of an image.
func (p *place) file(image, name string) string {
	p.t.Helper()
	img, err := sif.Open(image)
	p.must(err)
	defer img.Close()
	data, err := fs.ReadFile(img.FS(), strings.TrimPrefix(name, "/"))
	p.must(err)
	return string(data)
}

// A server is on this node's loopback, which RUN lines reach: it counts what is
// asked for, and can hold an answer back.
type server struct {
	*httptest.Server
	mu    sync.Mutex
	count map[string]int
	hook  func(path string) // nil: none; called before the answer
}

func newServer(t testing.TB) *server {
	s := &server{count: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.count[r.URL.Path]++
		hook := s.hook
		s.mu.Unlock()
		if hook != nil {
			hook(r.URL.Path)
		}
		fmt.Fprintln(w, r.URL.Path)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) asked(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[path]
}

func (s *server) on(hook func(path string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}
