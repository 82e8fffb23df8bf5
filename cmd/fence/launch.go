package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	urfave "github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"fence/pkg/cli"
	"fence/pkg/host"
	"fence/pkg/policy"
	"fence/pkg/relay"
	"fence/pkg/sandbox"
	"fence/pkg/seccomp"
	"fence/pkg/status"
	"fence/pkg/supervise"
	"fence/policies"
)

// options are the flags of a launch, and of explain.
type options struct {
	policy   string
	flags    policy.Flags
	keep     []int
	statusFD int
	workdir  string
	form     string
	user     string // UID or UID:GID, "" for the caller's
	below    []sandbox.Below
	hold     []string
}

func policyFlags() []urfave.Flag {
	list := func(name, usage string) urfave.Flag { return &urfave.StringSliceFlag{Name: name, Usage: usage} }
	return []urfave.Flag{
		&urfave.StringFlag{Name: "policy", Usage: "built-in `NAME` (see 'fence policies') or FILE; outside a container, FENCE_POLICY says it too", DefaultText: policies.Default},
		list("read", "also let it read and run `PATH` (needs --why)"),
		list("write", "also let it change `PATH` (needs --why)"),
		list("hide", "make `PATH` unreachable"),
		&urfave.StringFlag{Name: "net", Usage: "network `MODE`: none, loopback (its own servers), proxy[=SOCKET] or host (both need --why)"},
		list("env", "also keep `NAME`, or set NAME=VALUE (needs --why)"),
		&urfave.IntSliceFlag{Name: "keep-fd", Usage: "let it inherit descriptor `N` (needs --why)"},
		list("syscall", "also allow the system call `NAME` (needs --why)"),
		list("limit", "resource limit `NAME=VALUE`, as in ulimit: nofile=1024"),
		list("accept", "take the weakness `NAME` that a refusal named (needs --why)"),
		list("why", "the `REASON` for what is opened; it stands in every report"),
		&urfave.StringFlag{Name: "workdir", Usage: "start in `DIR`"},
		&urfave.StringFlag{Name: "form", Value: "auto", Usage: "`FORM`: namespace, bare, or auto: namespace where the node allows it"},
		&urfave.StringFlag{Name: "user", Usage: "in the namespace form it is the user `UID[:GID]`, and so is what belongs to you"},
		&urfave.StringSliceFlag{Name: "below", Hidden: true}, // of a session: sandbox.Below as JSON
		&urfave.StringSliceFlag{Name: "hold", Hidden: true},  // and sandbox.Node.Hold
		&urfave.IntFlag{Name: "status-fd", Value: -1, Usage: "write one JSON line to descriptor `N` when the fence is up"},
	}
}

func optionsFrom(c *urfave.Context) (options, error) {
	o := options{
		policy: c.String("policy"), statusFD: c.Int("status-fd"), workdir: c.String("workdir"), form: c.String("form"), user: c.String("user"),
		keep: c.IntSlice("keep-fd"), hold: c.StringSlice("hold"),
		flags: policy.Flags{
			Read: c.StringSlice("read"), Write: c.StringSlice("write"), Hide: c.StringSlice("hide"),
			Env: c.StringSlice("env"), Syscall: c.StringSlice("syscall"), Limit: c.StringSlice("limit"),
			Accept: c.StringSlice("accept"), Net: c.String("net"), Why: c.StringSlice("why"),
		},
	}
	for _, name := range c.FlagNames() {
		if c.String(name) == "" || slices.Contains(c.StringSlice(name), "") {
			return o, cli.Usagef("run 'fence --help' for the flags", "--%s needs a value", name)
		}
	}
	for _, text := range c.StringSlice("below") {
		var b sandbox.Below
		if err := json.Unmarshal([]byte(text), &b); err != nil || len(b.Files) < 3 || len(b.Argv) == 0 {
			return o, cli.Usagef("fence serve --below does it", "--below: a session starts this itself")
		}
		o.below = append(o.below, b)
	}
	switch {
	case !slices.Contains([]string{"auto", "bare", "namespace"}, o.form):
		return o, cli.Usagef("", "--form: %q is not known (namespace, bare, auto)", o.form)
	case o.user != "" && !userIDs.MatchString(o.user):
		return o, cli.Usagef("numbers: --user 1000, --user 1000:1000", "--user: %q is not UID[:GID]", o.user)
	case o.user != "" && o.form == "bare":
		return o, cli.Usagef("leave one of them away: without a namespace a process is who it is", "--user and --form bare do not go together")
	case len(o.keep) > 0 && len(o.flags.Why) == 0:
		return o, cli.Usagef("add --why 'TEXT'", "--keep-fd: a descriptor is opened without a reason")
	case o.workdir != "" && !strings.HasPrefix(o.workdir, "/"):
		return o, cli.Usagef("", "--workdir: %q is not an absolute path", o.workdir)
	}
	for _, fd := range o.keep {
		if !isOpen(fd) {
			return o, cli.Usagef(openIt, "--keep-fd: descriptor %d is not open", fd)
		}
	}
	if o.statusFD != -1 && !isOpen(o.statusFD) {
		return o, cli.Usagef(openIt, "--status-fd: descriptor %d is not open", o.statusFD)
	}
	return o, nil
}

var userIDs = regexp.MustCompile(`^[0-9]{1,10}(:[0-9]{1,10})?$`)

// isUser makes sure that this process is who it was asked to be. userns.c has
// read the flag by itself.
func (o options) isUser(rs sandbox.Ruleset) error {
	if o.user == "" {
		return nil
	}
	if rs.Form != sandbox.Namespace {
		return notFenced(fmt.Errorf("--user: this node refuses the namespace that another user takes (%w)", cmp.Or(rs.Node.Namespaces.User, rs.Node.Namespaces.Mount)), "without --user it runs as who you are")
	}
	uid, gid, given := strings.Cut(o.user, ":")
	if strconv.Itoa(os.Geteuid()) != uid || given && strconv.Itoa(os.Getegid()) != gid {
		return notFenced(fmt.Errorf("--user: the process is %d:%d", os.Geteuid(), os.Getegid()), "before other flags, and without zeros in front: --user=1000:1000")
	}
	return nil
}

const openIt = "the shell opens it: fence --status-fd 3 -- COMMAND 3>FILE"

func isOpen(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && fd >= 0
}

// parseOptions are what the policy parser has to be told.
var parseOptions = policy.Options{Base: policies.Get, Syscall: seccomp.Known}

const siteFile = "/etc/fence/site.toml"

// load reads the policy that the options name, adds the flags and what the
// site hides. Inside a container nothing but the command line says which:
// the image's scripts can set variables.
func (o options) load() (policy.Policy, error) {
	name, from := o.policy, "--policy"
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(k, "FENCE_") {
			continue
		}
		if container, err := host.Container(); err != nil {
			return policy.Policy{}, notFenced(err, "")
		} else if container != "" {
			break
		}
		if k != "FENCE_POLICY" {
			return policy.Policy{}, cli.Usagef("the only one is FENCE_POLICY", "the variable %s is not known", k)
		}
		if name == "" {
			name, from = v, k
		}
	}
	p, err := named(cmp.Or(name, policies.Default), from)
	if err == nil {
		p, err = p.WithFlags(o.flags, parseOptions)
	}
	if err == nil {
		var hide []string
		if hide, err = siteHides(); err == nil {
			p, err = p.WithSite(hide)
		}
	}
	var pe *policy.Error
	if errors.As(err, &pe) {
		return policy.Policy{}, &cli.Error{Code: cli.Usage, Err: err, Hint: pe.Hint}
	}
	var ce *cli.Error
	if err != nil && !errors.As(err, &ce) {
		err = notFenced(fmt.Errorf("reading what the site hides: %w", err), "")
	}
	if err != nil {
		return policy.Policy{}, err
	}
	return p, nil
}

// siteHides is what the operators hide for everybody. In a container their
// file is one that was bound there: the image's own is the task's, which an
// earlier command may have written.
func siteHides() ([]string, error) {
	container, err := host.Container()
	if err != nil {
		return nil, err
	}
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, siteFile, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err == unix.ENOENT || err == unix.ENOTDIR ||
		err == nil && container != "" && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return nil, nil
	}
	data, err := os.ReadFile(siteFile)
	if err != nil {
		return nil, err
	}
	return policy.ParseSite(siteFile, data)
}

// named is a built-in policy, or the one in a file. from is the flag or the
// variable that named it.
func named(name, from string) (policy.Policy, error) {
	if p, ok := policies.Parsed(name); ok {
		return p, nil
	}
	hint := "built in are: " + strings.Join(policies.Names(), ", ")
	if !strings.ContainsAny(name, "/.") {
		hint += "; a file is named with its path: ./" + name
		if s := cli.Suggest(name, policies.Names()); s != "" {
			hint = "did you mean " + s + "?"
		}
		return policy.Policy{}, cli.Usagef(hint, "%s: %q is not a built-in policy", from, name)
	}
	if strings.Contains(name, "/") {
		hint = ""
	}
	data, err := os.ReadFile(name)
	if err != nil {
		if container, _ := host.Container(); container != "" {
			hint = fmt.Sprintf("a file is seen here if it was mounted: apptainer exec --bind $PWD/%s:/.fence/%[1]s:ro", filepath.Base(name))
		}
		return policy.Policy{}, cli.Usagef(hint, "%s: %w", from, err)
	}
	return policy.Parse(name, data, parseOptions)
}

func launcher() *urfave.App {
	return &urfave.App{
		Name:            "fence",
		Usage:           "run a command with nothing of the cluster in its reach",
		UsageText:       "fence [flags] -- COMMAND [ARGUMENT...]",
		Description:     help,
		Flags:           policyFlags(),
		HideHelpCommand: true,
		Action:          launch,
	}
}

// launch does everything up to exec. It returns only if the command did not
// start.
func launch(c *urfave.Context) error {
	if len(os.Args) == 1 {
		return cli.Usagef("fence -- COMMAND runs one; fence --help says more", "no command")
	}
	if !slices.Contains(os.Args, "--") {
		return cli.Usagef("put -- before the command: fence [flags] -- COMMAND", "there is no -- before the command")
	}
	argv := c.Args().Slice()
	if before := os.Args[len(os.Args)-len(argv)-1]; len(argv) > 0 && before != "--" {
		return cli.Usagef("a flag takes one value and can be given again: --read /a --read /b", "%q stands before the --", argv[0])
	}
	if len(argv) == 0 {
		return cli.Usagef("fence [flags] -- COMMAND", "there is no command after --")
	}
	o, err := optionsFrom(c)
	if err != nil {
		return err
	}
	return start(o, argv)
}

func start(o options, argv []string) error {
	if rs, line, err := sandbox.Joiner(os.Args[0]); err != nil {
		return notFenced(err, "")
	} else if rs != nil {
		return become(*rs, o, line, argv)
	}
	give, shared, maker := sandbox.Maker(os.Args[0])
	leader := sandbox.Leader(os.Args[0])
	var inside *supervise.Child
	if !maker && !leader {
		var err error
		if inside, err = supervise.Inside(os.Args[0]); err != nil {
			return notFenced(err, "")
		}
	}
	var p policy.Policy
	var err error
	if inside != nil {
		p, err = unpack(inside.Hello)
	} else if p, err = o.load(); err == nil && !maker {
		if up := supervisor(p); up != nil && leader {
			return notFenced(errors.New("a supervisor of connections needs the node's own process numbers"), "")
		} else if up != nil {
			return stay(*up)
		}
	}
	if err != nil {
		return err
	}
	shared = shared && p.Network.Mode.OnlyLoopback()
	ns, err := sandbox.Enter(p.Network.Mode != policy.NetworkHost && inside == nil && !shared)
	if err != nil {
		return notFenced(err, "try --form bare, which needs no namespace")
	}
	if leader && !ns.OwnPID {
		return notFenced(errors.New("there is no PID namespace of its own"), "")
	}
	if inside != nil {
		ns.Net = inside.Refused
	} else if shared {
		ns.Net = nil // that of the fence above
	}
	rs, err := resolve(p, o, ns)
	if err != nil {
		return err
	}
	if err := o.isUser(rs); err != nil {
		return err
	}
	if inside != nil {
		rs.HandOver = func(listener int) (sandbox.Session, error) {
			s, err := inside.HandOver(listener)
			return sandbox.Session{V4: s.Own.V4, V6: s.Own.V6, Decoy: s.Decoy}, err
		}
	}
	rs.Below = o.below
	var line []byte
	if o.statusFD >= 0 {
		st, err := status.Of(rs)
		st.User = o.user
		if err == nil {
			line, err = json.Marshal(st)
		}
		if err != nil {
			return notFenced(err, "")
		}
	}
	if maker {
		if err := sandbox.HandOver(rs, line, give); err != nil {
			return notFenced(err, "")
		}
		return notFenced(sandbox.Hold(give), "")
	}
	return become(rs, o, line, argv)
}

// become puts the fence in force and starts the command in it.
func become(rs sandbox.Ruleset, o options, line []byte, argv []string) error {
	if err := sandbox.Enforce(rs); err != nil {
		return notEnforced(err)
	}
	if o.statusFD >= 0 {
		if err := writeAll(o.statusFD, append(line, '\n')); err != nil {
			return notFenced(fmt.Errorf("writing the status line to descriptor %d: %w", o.statusFD, err), "")
		}
	}
	// On a terminal a person reads it before the command's own "no such file".
	// Elsewhere stderr is the command's alone; the status line has it.
	moved := strings.Join(status.Moved(rs), "")
	if moved != "" && cli.IsTerminal(os.Stderr) {
		fmt.Fprintln(os.Stderr, "fence: "+cli.Printable(moved))
	}
	return cannotRun(sandbox.Exec(rs, argv), moved)
}

// writeAll goes on where a pipe took a part: half a line says nothing.
func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return io.ErrShortWrite
		default:
			data = data[n:]
		}
	}
	return nil
}

// resolve decides what to enforce here, for launch and explain alike.
func resolve(p policy.Policy, o options, ns sandbox.Namespaces) (sandbox.Ruleset, error) {
	n, err := sandbox.Look(ns, o.keep)
	if err != nil {
		return sandbox.Ruleset{}, notFenced(err, "")
	}
	if ns.Net != nil && p.Network.Mode.OnlyLoopback() {
		n.Supervisor.Why = supervise.Possible(ns.User == nil)
		n.Supervisor.OK = n.Supervisor.Why == nil
	}
	n.KeepWhy, n.Hold = strings.Join(o.flags.Why, "; "), o.hold
	if o.workdir != "" {
		n.Workdir, n.AskedDir = o.workdir, true
	}
	rs, err := sandbox.Resolve(p, n)
	var refusal *sandbox.Refusal
	switch {
	case errors.As(err, &refusal):
		return rs, notFenced(err, refusal.Hint())
	case err != nil:
		return rs, err
	case o.form == "namespace" && rs.Form != sandbox.Namespace:
		return rs, notFenced(fmt.Errorf("--form namespace: this node refuses it (%w)", cmp.Or(ns.User, ns.Mount)), "fence check says why; --form bare needs no namespace")
	}
	// Asked for here and now, unlike a policy's, which is for many nodes.
	for _, h := range o.flags.Hide {
		if !strings.HasPrefix(h, "@") && !n.Stat(h).Exists {
			fmt.Fprintf(os.Stderr, "fence: --hide: there is no %s here\n", cli.Printable(h))
		}
	}
	return rs, nil
}

func notFenced(err error, hint string) error {
	return &cli.Error{Code: cli.NotFenced, Err: fmt.Errorf("not fenced, and the command was not run: %w", err), Hint: hint}
}

// notEnforced is notFenced with what to do where the node, or the proxy, is not ready.
func notEnforced(err error) error {
	if errors.Is(err, relay.ErrNone) {
		return notFenced(err, "start the proxy first; in a container bind its socket: --bind SOCKET:/.fence/proxy.sock, or name it: --net proxy=SOCKET")
	}
	return notFenced(err, "fence check says what this node can enforce")
}

// cannotRun turns what exec said into a shell's exit code. moved may be why a
// relative path leads nowhere.
func cannotRun(err error, moved string) error {
	var missing *sandbox.NotFoundError
	switch {
	case errors.As(err, &missing):
		hint := "PATH inside is " + missing.Path
		if strings.Contains(missing.Command, "/") {
			hint = "the fence hides some folders, fence explain lists them; or what its #! line names is not there"
			if !strings.HasPrefix(missing.Command, "/") {
				hint = moved + "\n" + hint
			}
		}
		return &cli.Error{Code: cli.NotFound, Err: err, Hint: hint}
	case errors.Is(err, syscall.ENOEXEC):
		return &cli.Error{Code: cli.CannotRun, Err: err, Hint: "it is neither a program for this machine nor a script that begins with #!"}
	}
	return &cli.Error{Code: cli.CannotRun, Err: err, Hint: "fence explain lists what may be run"}
}
