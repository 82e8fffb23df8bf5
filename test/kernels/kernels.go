// Package kernels boots Debian's kernels under qemu with an initramfs made for the purpose and runs commands in them as an
// ordinary user, so that a test can say what a program of ours does on a kernel that this machine does not have.
//
//	for _, k := range kernels.Fetched(t) {
//		r := kernels.Boot(t, kernels.Spec{
//			Kernel:   k,
//			Files:    []kernels.File{{Path: "/usr/bin/fence", From: fence}},
//			Commands: []kernels.Command{{Argv: []string{"/usr/bin/fence", "check", "--json"}, Set: map[string]string{"kernel.yama.ptrace_scope": "2"}}},
//		})
//		r.Facts.LandlockABI, r.Outcomes[0].Exit, r.Outcomes[0].Stdout ...
//	}
//
// What the guest is: the kernel with its own LSMs, a tmpfs as root, /proc /sys /dev and a private devpts, /tmp and /dev/shm,
// the loopback interface, busybox in /bin, two accounts, a disk if asked for. What it is not: there is no network card, no
// systemd, and one CPU. A Boot takes about as long as the kernel does; sysctls, Yama among them, change between commands without another one.
package kernels

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"fence/test/kernels/internal/wire"
)

type (
	// A Command is one program to run in the guest; see the fields.
	Command = wire.Command
	// An Outcome is what became of a Command.
	Outcome = wire.Outcome
	// Facts is what the guest found by trying.
	Facts = wire.Facts
	// A User is who runs a Command; the zero value is an ordinary user.
	User = wire.User
)

// Who may run a Command.
const (
	Alice = wire.Alice
	Bob   = wire.Bob
	Root  = wire.Root
)

// A Kernel is one that test/kernels/fetch has laid down.
type Kernel struct {
	Name    string // the suite it came from
	Release string // package and version
	Arch    string // as in GOARCH
	Sysroot string // headers and libraries to build for it, if it is not this machine's architecture
	dir     string
}

// A File is put into the guest: a copy of From, or Data. Folders that its path needs are made, owned by root, mode 0755.
type File struct {
	Path string
	From string
	Data []byte
	Mode fs.FileMode // 0 is 0755; fs.ModeDir makes a folder
	UID  int         // owner and group
}

// A Spec says what to boot and what to do there. The zero value of each field but Kernel and Commands is the plain choice.
type Spec struct {
	Kernel   Kernel
	Append   string            // more words for the kernel's command line, such as "lsm=yama"
	Set      map[string]string // sysctls, written before the first command
	Disk     int64             // bytes of a new ext4 at /disk, where everybody may write; 0: there is none
	Files    []File
	Commands []Command
	Timeout  time.Duration // for all of it; 0 is fifteen minutes, for the busiest machine
}

// A Result is what came out of a guest that did all it was asked.
type Result struct {
	Facts    Facts
	Outcomes []Outcome // one for each of Spec.Commands
	Console  string    // what the kernel and the guest's init said
	Took     time.Duration
}

// Suites are the Debian releases that the tests want kernels of, oldest first.
var Suites = []string{"bookworm", "trixie", "sid"}

// Fetched returns the kernels of Suites, in that order. One that is missing skips the test, or fails it with TEST_REQUIRED=1.
func Fetched(t testing.TB) []Kernel {
	t.Helper()
	var found []Kernel
	for _, suite := range Suites {
		found = append(found, One(t, suite, "amd64"))
	}
	return found
}

// One returns the kernel of that suite and architecture ("amd64" or "arm64"), or skips or fails as Fetched does.
func One(t testing.TB, suite, arch string) Kernel {
	t.Helper()
	k, err := load(suite, arch)
	if err == nil {
		_, err = exec.LookPath(machines[arch].qemu)
	}
	if err != nil {
		SkipOrFail(t, "no kernel of %s for %s: %v; run as root: test/kernels/fetch %[1]s:%[2]s", suite, arch, err)
	}
	return k
}

// machines are how qemu is asked for one of each kind: the kernel's messages on the first port, reports on the second.
var machines = map[string]struct {
	qemu    string
	options []string
	console string
	port    string
	words   string // for the kernel's command line
}{
	"amd64": {"qemu-system-x86_64", []string{"-M", "q35", "-serial", "chardev:console", "-serial", "chardev:reports"}, "ttyS0", "/dev/ttyS1",
		"no_timer_check"}, // which fails, and panics, where the emulation is kept waiting
	"arm64": {"qemu-system-aarch64", []string{"-M", "virt", "-serial", "chardev:console", "-device", "pci-serial,chardev=reports"}, "ttyAMA0", "/dev/ttyS0", ""},
}

func load(suite, arch string) (Kernel, error) {
	if _, ok := machines[arch]; !ok {
		return Kernel{}, fmt.Errorf("no such architecture: %q", arch)
	}
	bed := os.Getenv("BED_DIR")
	if bed == "" {
		bed = "/var/cache/fence-bed"
	}
	name := suite
	if arch != "amd64" {
		name += "-" + arch
	}
	dir := filepath.Join(bed, "kernels", name)
	for _, need := range []string{"vmlinuz", "busybox"} {
		if _, err := os.Stat(filepath.Join(dir, need)); err != nil {
			return Kernel{}, err
		}
	}
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	sysroot := filepath.Join(dir, "sysroot")
	if _, err := os.Stat(sysroot); err != nil {
		sysroot = ""
	}
	return Kernel{Name: name, Sysroot: sysroot, Arch: arch, Release: strings.TrimSpace(string(release)), dir: dir}, err
}

// SkipOrFail skips loudly, and fails where everything must be there (TEST_REQUIRED=1, as in CI).
func SkipOrFail(t testing.TB, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	if os.Getenv("TEST_REQUIRED") == "1" {
		t.Fatalf("TEST_REQUIRED=1: %s", text)
	}
	fmt.Fprintf(os.Stderr, "SKIPPED %s: %s\n", t.Name(), text)
	t.Skip(text)
}

// Boot runs the guest. Anything that keeps it from doing all of the Spec fails the test, with the end of the console.
func Boot(t testing.TB, s Spec) *Result {
	t.Helper()
	dir := t.TempDir()
	init, err := guestInit(dir, s.Kernel.Arch)
	if err != nil {
		t.Fatal(err)
	}
	r, err := boot(t.Context(), s, init, dir)
	if err != nil {
		t.Fatalf("%s: %v\nend of the console:\n%s", s.Kernel.Name, err, tail(r.Console, 4000))
	}
	for i, c := range s.Commands {
		if o := r.Outcomes[i]; o.Err != "" {
			t.Errorf("%s: command %d %q did not start: %s", s.Kernel.Name, i, c.Argv, o.Err)
		}
	}
	return r
}

// boot returns a Result with the console even when there is an error.
func boot(ctx context.Context, s Spec, init, dir string) (*Result, error) {
	r := &Result{}
	machine := machines[s.Kernel.Arch]
	plan := wire.Plan{Port: machine.port, Set: s.Set, Disk: s.Disk > 0, Commands: s.Commands}
	files := []File{{Path: "/init", From: init}, {Path: "/bin/busybox", From: filepath.Join(s.Kernel.dir, "busybox")}, {Path: "/dev/console", Mode: fs.ModeDevice}}
	modules, err := filepath.Glob(filepath.Join(s.Kernel.dir, "modules", "*.ko"))
	if err != nil {
		return r, err
	}
	sort.Strings(modules)
	for _, m := range modules {
		to := "/lib/modules/" + filepath.Base(m)
		plan.Modules = append(plan.Modules, to)
		files = append(files, File{Path: to, From: m, Mode: 0o644})
	}
	raw, err := json.Marshal(plan)
	if err != nil {
		return r, err
	}
	files = append(files, File{Path: "/plan.json", Data: raw, Mode: 0o600})
	image, console := filepath.Join(dir, "initramfs"), filepath.Join(dir, "console")
	if err := writeInitramfs(image, append(files, s.Files...)); err != nil {
		return r, fmt.Errorf("making the initramfs: %w", err)
	}

	options := machine.options
	if s.Disk > 0 {
		name := filepath.Join(dir, "disk")
		if err := makeDisk(ctx, name, s.Disk); err != nil {
			return r, err
		}
		defer os.Remove(name)
		// Debian's cloud kernels have the drivers of NVMe and ext4 built in.
		options = append(slices.Clone(options), "-drive", "id=disk,if=none,format=raw,cache=unsafe,file="+name, "-device", "nvme,serial=disk,drive=disk")
	}
	limit := s.Timeout
	if limit == 0 {
		limit = 15 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, machine.qemu, append([]string{"-nodefaults", "-no-user-config", "-accel", accelerator(), "-cpu", "max",
		"-m", "768", "-smp", "1", "-display", "none", "-monitor", "none", "-no-reboot", "-net", "none",
		"-chardev", "file,id=console,path=" + console, "-chardev", "stdio,id=reports,signal=off",
		"-kernel", filepath.Join(s.Kernel.dir, "vmlinuz"), "-initrd", image,
		"-append", strings.TrimSpace("console=" + machine.console + " quiet loglevel=5 panic=-1 rdinit=/init " + machine.words + " " + s.Append)},
		options...)...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		return r, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return r, err
	}
	readErr := r.read(bufio.NewReader(out), len(s.Commands))
	err = cmd.Wait()
	r.Took = time.Since(began)
	if text, err := os.ReadFile(console); err == nil {
		r.Console = string(text)
	}
	_ = os.Remove(image)
	switch {
	case ctx.Err() != nil:
		return r, fmt.Errorf("the guest was not done after %v: %w", limit, errors.Join(ctx.Err(), readErr))
	case err != nil:
		return r, fmt.Errorf("qemu: %w\n%s", err, complaints.String())
	}
	return r, readErr
}

// makeDisk makes an image with an empty ext4 in a new file.
func makeDisk(ctx context.Context, name string, bytes int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(bytes), f.Close()); err != nil {
		return err
	}
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		mkfs = "/sbin/mkfs.ext4" // not on everybody's PATH
	}
	if out, err := exec.CommandContext(ctx, mkfs, "-q", "-F", name).CombinedOutput(); err != nil {
		return fmt.Errorf("making the guest's disk: %w\n%s", err, out)
	}
	return nil
}

// read takes the guest's lines until qemu is gone. Nothing but a whole report is a report.
func (r *Result) read(lines *bufio.Reader, commands int) error {
	seen, ended := map[int]bool{}, false
	r.Outcomes = make([]Outcome, commands)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var e wire.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return drain(lines, fmt.Errorf("the guest said %.200q: %w", line, err))
		}
		switch {
		case e.Fault != "":
			return drain(lines, fmt.Errorf("the guest gave up: %s", e.Fault))
		case e.Facts != nil:
			r.Facts = *e.Facts
		case e.Outcome != nil && e.Index >= 0 && e.Index < commands && !seen[e.Index]:
			seen[e.Index] = true
			r.Outcomes[e.Index] = *e.Outcome
		case e.End:
			ended = true
		default:
			return drain(lines, fmt.Errorf("the guest said %.200q, which makes no sense", line))
		}
	}
	if !ended || len(seen) != commands || r.Facts.Release == "" {
		return fmt.Errorf("the guest ended after %d of %d commands", len(seen), commands)
	}
	return nil
}

func drain(lines *bufio.Reader, err error) error {
	_, _ = lines.WriteTo(discard{})
	return err
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func tail(s string, n int) string {
	if len(s) > n {
		s = s[len(s)-n:]
	}
	return s
}

// accelerator is software emulation unless KERNELS_KVM=1: a /dev/kvm that opens says little about whether a guest boots with it,
// and what these tests need is the same result everywhere.
func accelerator() string {
	if os.Getenv("KERNELS_KVM") == "1" {
		return "kvm"
	}
	return "tcg"
}

// guestInit builds the guest's /init into dir.
func guestInit(dir, arch string) (string, error) {
	built := filepath.Join(dir, "init")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", built, "fence/test/kernels/guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the guest's init: %w\n%s", err, out)
	}
	return built, nil
}
