package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fence/test/escapes/internal/wire"
)

// drive runs the rows of the spec that it reads and writes one result for each.
func drive(in io.Reader, out io.Writer) error {
	var spec wire.Spec
	if err := json.NewDecoder(in).Decode(&spec); err != nil {
		return err
	}
	enc := json.NewEncoder(out)
	for i, row := range spec.Rows {
		d := driver{spec: spec, row: row, key: 0x5e000000 + os.Getpid()<<8%0x1000000 + i,
			base: filepath.Join(spec.Base, row.Name), args: map[string]string{}}
		result := d.run()
		if err := enc.Encode(result); err != nil {
			return err
		}
	}
	return nil
}

// A driver runs one row against fixtures of its own.
type driver struct {
	spec wire.Spec
	row  wire.Row
	key  int
	base string
	args map[string]string

	victim   *victim
	terminal *terminal
	cleanup  []func()
}

func (d *driver) path(name string) string { return filepath.Join(d.base, name) }

func (d *driver) run() (r wire.Result) {
	r.Row = d.row.Name
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	defer func() {
		for _, f := range slices.Backward(d.cleanup) {
			f()
		}
	}()
	fail := func(what string, err error) wire.Result {
		r.Broken = fmt.Sprintf("%s: %v", what, err)
		return r
	}
	if err := d.fixtures(); err != nil {
		return fail("fixtures", err)
	}
	if err := d.startVictim(ctx); err != nil {
		return fail("victim", err)
	}
	if d.row.Has("namespace") {
		if err := d.startOther(ctx); err != nil {
			return fail("a process with a user namespace of its own", err)
		}
	}
	before, err := d.state()
	if err != nil {
		return fail("state of the victim before", err)
	}
	if err := d.attempt(ctx, &r); err != nil {
		return fail("attempt", err)
	}
	after, err := d.state()
	if err != nil {
		return fail("the victim is gone", err)
	}
	for _, k := range slices.Sorted(maps.Keys(before)) {
		if before[k] != after[k] {
			r.Changed = append(r.Changed, k)
			r.Details = append(r.Details, fmt.Sprintf("%s: %q, was %q", k, after[k], before[k]))
		}
	}
	return r
}

// fixtures are the folder of work, a hidden one and a plain one, which is neither.
func (d *driver) fixtures() error {
	for _, dir := range []string{"work/sub", "hidden/empty", "plain"} {
		if err := os.MkdirAll(d.path(dir), 0o755); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"hidden/secret": "canary: hidden\n", "hidden/own": "canary: own\n", "hidden/rubbish": "", "plain/readable": "canary: plain\n",
		"work/granted": "x", "work/granted2": "x",
	} {
		if err := os.WriteFile(d.path(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	for _, l := range [][2]string{{d.path("hidden/secret"), "work/link-made-outside"}, {"secret", "hidden/pointer"}} {
		if err := os.Symlink(l[0], d.path(l[1])); err != nil {
			return err
		}
	}
	if err := os.Link(d.path("hidden/secret"), d.path("plain/second-name")); err != nil {
		return err
	}
	// Not on every filesystem, and then the attempts say so.
	unix.Setxattr(d.path("hidden/own"), "user.note", []byte("canary"), 0)
	if d.row.Has("program") {
		data, err := os.ReadFile(d.spec.Attempt)
		if err != nil {
			return err
		}
		if err := os.WriteFile(d.path("hidden/program"), data, 0o755); err != nil {
			return err
		}
	}
	if d.row.Has("in-tmp") {
		d.args["in-tmp"] = fmt.Sprintf("/tmp/fence-escapes-%x", d.key)
		if err := os.Mkdir(d.args["in-tmp"], 0o700); err != nil {
			return err
		}
		d.cleanup = append(d.cleanup, func() { os.RemoveAll(d.args["in-tmp"]) })
	}
	maps.Copy(d.args, d.spec.Args)
	d.args["base"], d.args["work"], d.args["hidden"], d.args["plain"] = d.base, d.path("work"), d.path("hidden"), d.path("plain")
	d.args["key"], d.args["name"] = strconv.Itoa(d.key), fmt.Sprintf("fence-escapes-%x", d.key)
	d.args["parent"] = strconv.Itoa(os.Getpid())
	return nil
}

// command is a program of ours with the row's arguments, under the arm's prefix if fenced.
func (d *driver) command(ctx context.Context, fenced bool, name string) *exec.Cmd {
	var argv []string
	if fenced {
		for _, a := range d.spec.Prefix {
			argv = append(argv, strings.NewReplacer("{hidden}", d.path("hidden"), "{work}", d.path("work")).Replace(a))
		}
	}
	argv = append(argv, d.spec.Attempt, name)
	for _, k := range slices.Sorted(maps.Keys(d.args)) {
		argv = append(argv, k+"="+d.args[k])
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = d.base
	cmd.Env = append(os.Environ(), "TOKEN=canary")
	cmd.Stderr = os.Stderr
	return cmd
}

// attempt runs the row and collects what it reports.
func (d *driver) attempt(ctx context.Context, r *wire.Result) error {
	cmd := d.command(ctx, true, d.row.Name)
	stdin, err := d.standardInput(cmd)
	if err != nil {
		return err
	}
	out, err := newPipe(ctx)
	if err != nil {
		return err
	}
	defer out.read.Close()
	errs, err := newPipe(ctx)
	if err != nil {
		return err
	}
	defer errs.read.Close()
	cmd.Stdout, cmd.Stderr = out.write, errs.write
	if d.row.Has("log") {
		log, err := os.OpenFile(d.path("hidden/log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		defer log.Close()
		cmd.Stderr = log
	}
	if d.row.Has("descriptors") {
		files, err := d.descriptors()
		if err != nil {
			return err
		}
		cmd.ExtraFiles = files
	}
	if d.row.Has("in-hidden") {
		cmd.Dir = d.path("hidden")
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	out.write.Close()
	errs.write.Close()
	lines, said := make(chan error, 1), make(chan []byte, 1)
	go func() { lines <- d.collect(out.read, stdin, r) }()
	go func() {
		text, _ := io.ReadAll(errs.read)
		said <- text
	}()
	err = cmd.Wait()
	stdin.Close() // what it left behind reports now, and ends
	if err := <-lines; err != nil {
		return err
	}
	if text := <-said; len(text) > 0 || err != nil {
		r.Said = fmt.Sprintf("%s(%v)", text, err)
	}
	return nil
}

// A pipe's reader gives up when the time is over, whoever still holds the other end.
type pipe struct{ read, write *os.File }

func newPipe(ctx context.Context) (pipe, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return pipe{}, err
	}
	deadline, _ := ctx.Deadline()
	return pipe{read, write}, read.SetReadDeadline(deadline)
}

func (d *driver) collect(from io.Reader, answer io.Writer, r *wire.Result) error {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		var step wire.Step
		if err := json.Unmarshal(lines.Bytes(), &step); err != nil {
			return fmt.Errorf("%q: %w", lines.Text(), err)
		}
		if step.Row != r.Row && !(r.Row == "52" && step.Row == "in-memory") {
			return fmt.Errorf("%q is not of row %s", lines.Text(), r.Row)
		}
		r.Steps = append(r.Steps, step)
		switch step.Step {
		case "ask":
			err := os.WriteFile(d.path("hidden/new-name"), nil, 0o600)
			if err != nil {
				return err
			}
		case "ask-key":
			if _, err := d.terminal.master.Write([]byte("k")); err != nil {
				return err
			}
		}
		if strings.HasPrefix(step.Step, "ask") {
			if _, err := answer.Write([]byte("x")); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

// standardInput is a pipe that stays open while the command runs, or a terminal.
func (d *driver) standardInput(cmd *exec.Cmd) (io.WriteCloser, error) {
	if d.row.Has("terminal") || d.row.Has("other-terminal") || d.row.Has("controlling") {
		t, err := openTerminal()
		if err != nil {
			return nil, err
		}
		d.terminal = t
		d.cleanup = append(d.cleanup, t.close)
	}
	if d.row.Has("terminal") {
		cmd.Stdin = d.terminal.slave
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
		return nopCloser{io.Discard}, nil
	}
	if d.row.Has("other-terminal") {
		cmd.Args = append(cmd.Args, "terminal="+d.terminal.slave.Name())
	}
	if d.row.Has("controlling") {
		// Through a descriptor that is closed before the fence looks at what it got.
		cmd.ExtraFiles = append(cmd.ExtraFiles, d.terminal.slave)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 3}
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdin = read
	d.cleanup = append(d.cleanup, func() { read.Close() })
	return write, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// descriptors are what a careless harness leaves open: 3 to 6 nothing, then a hidden folder, a
// connection of its own and a hidden file.
func (d *driver) descriptors() ([]*os.File, error) {
	null, err := os.Open("/dev/null")
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(d.path("hidden"))
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(d.path("hidden/own"), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	theirs, ours := os.NewFile(uintptr(pair[0]), "theirs"), os.NewFile(uintptr(pair[1]), "ours")
	d.cleanup = append(d.cleanup, func() {
		for _, f := range []*os.File{null, dir, file, theirs, ours} {
			f.Close()
		}
	})
	return []*os.File{null, null, null, null, dir, theirs, file}, nil
}
