package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	urfave "github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"fence/pkg/cli"
	"fence/pkg/host"
	"fence/pkg/policy"
	"fence/pkg/session"
)

const exitCodes = `
Exit codes: the command's own, 128+N if signal N ended it; 124 it did not end
in time and was ended; 125 it was not run; 126 it cannot be executed; 127 there
is no such command; 2 wrong flags, no such domain, or a session of another
version; 3 there is no session, or it was lost.`

func sessionCommands() []*urfave.Command {
	socket := &urfave.StringFlag{Name: "socket", Usage: "the session's socket is at `PATH`"}
	domain := &urfave.StringFlag{Name: "domain", Usage: "in the domain `NAME`; the only one need not be named"}
	wait := &urfave.DurationFlag{Name: "wait", Usage: "wait up to `TIME` until the session's socket is there", DefaultText: "not at all"}
	timeout := &urfave.DurationFlag{Name: "timeout", Usage: "end it, and all of its process group, after `TIME`: SIGTERM, then SIGKILL", DefaultText: "none"}
	grace := &urfave.DurationFlag{Name: "grace", Usage: "`TIME` between SIGTERM and SIGKILL", DefaultText: "2s"}
	dir := func(usage string) urfave.Flag { return &urfave.StringFlag{Name: "dir", Usage: usage} }
	list := func(name, usage string) urfave.Flag {
		return &urfave.StringSliceFlag{Name: name, Usage: usage}
	}
	return []*urfave.Command{
		{
			Name:      "serve",
			Usage:     "keep one or more fences up, for fence run",
			UsageText: "fence serve --socket PATH -- apptainer exec ... /.fence/fence serve --stdio --domain NAME=POLICY...\nfence serve --stdio|--socket PATH --domain NAME=POLICY...",
			Description: `A session: commands that run one after the other, or at once, behind a fence
that stays up. A later one can signal an earlier one, servers live on, and a
command costs milliseconds.

Outside the container, with a command after --, it starts that command with a
channel as descriptor 0 and passes on to it what connects to PATH. Inside,
--stdio takes the channel: there is no way to it for the commands. All ends
when the process that started it does. Each domain is a fence of its own, whose
processes cannot reach those of another.

Examples:
  eval "$(fence env)"; S=$(mktemp -d)/s
  fence serve --socket "$S" -- apptainer exec img.sif \
      /.fence/fence serve --stdio --domain agent=strict &
  fence run --socket "$S" --wait 1m -- bash -c 'python3 server.py & make'
  fence run --socket "$S" -- pkill -f server.py

A folder for one domain:
  --domain agent=strict --flag agent:write=/out --flag agent:why="results"

Exit codes: with a command after --, that command's. Otherwise 0 the session
was told to end, or its caller is gone; 2 wrong flags, a policy that does not
parse, a socket that cannot be made; 3 it failed; 125 a domain is not fenced.`,
			Flags: []urfave.Flag{
				&urfave.StringFlag{Name: "socket", Usage: "listen at `PATH`, on the node's own disk"},
				&urfave.BoolFlag{Name: "stdio", Usage: "the channel is descriptor 0: a listening or a connected Unix socket"},
				list("domain", "a domain and its policy, `NAME=POLICY`; again for more"),
				list("below", "the domain `NAME=ABOVE` lies below ABOVE, whose processes can signal and look at its own"),
				list("private", "the folder `NAME=DIR` is the domain's alone: hidden from every other, made if it is missing"),
				list("flag", "a flag of a launch for a domain, `NAME:FLAG=VALUE`: agent:read=/data (with agent:why=...)"),
				&urfave.IntFlag{Name: "lifeline", Value: -1, Usage: "end when the other side of descriptor `N` (pipe, socket, pidfd) is gone"},
			},
			Action: serve,
		},
		{
			Name:      "run",
			Usage:     "run a command in a session",
			UsageText: "fence run --socket PATH [--domain NAME] [flags] -- COMMAND [ARGUMENT...]",
			Description: `Runs COMMAND in the session, with its input, output and exit status here. When
fence run is ended, so is the command with its process group; what it started
with setsid lives on until the domain ends.

Examples:
  fence run --socket "$S" -- make test
  fence run --socket "$S" --timeout 5m --dir /app -- bash -s < solve.sh
  fence run --socket "$S" --tty -- bash --login
  fence run --socket "$S" --status | jq -r '.domains[].state'
  fence run --socket "$S" --end agent
` + exitCodes,
			Flags: []urfave.Flag{
				socket, domain, wait, timeout, grace,
				&urfave.BoolFlag{Name: "tty", Aliases: []string{"t"}, Usage: "give it a terminal of the domain's own, and connect it with this one"},
				dir("start in `DIR`"),
				list("env", "set `NAME=VALUE`, or NAME as it is here"),
				&urfave.StringFlag{Name: "umask", Usage: "with the umask `OCTAL`"},
				list("limit", "with the resource limit `NAME=VALUE`: nofile=64"),
				&urfave.BoolFlag{Name: "status", Usage: "run nothing; print what the session consists of (JSON)"},
				&urfave.StringFlag{Name: "end", Usage: "run nothing; end the domain `NAME` with all that runs in it"},
			},
			Action: runInSession,
		},
		{
			Name:      "put",
			Usage:     "unpack a tar stream in a session",
			UsageText: "fence put --socket PATH [--domain NAME] [--dir DIR] < FILE.tar",
			Description: `Files, folders and links go below DIR, which is made if it is missing, with
the rights that a command of the domain has. No link is followed, in DIR
neither; a name with .. or a leading / and devices are refused, and what came
before them is there.

Examples:
  tar c tests | fence put --socket "$S" --domain verifier
  tar c -C results . | fence put --socket "$S" --dir /app/results

Exit codes: 0 all of it is there; 2 wrong flags, or no tar stream to take; 3 it
cannot be written, or the session was lost; 124, 125 as fence run.`,
			Flags:  []urfave.Flag{socket, domain, wait, timeout, dir("below the folder `DIR`; else /")},
			Action: noArguments(putOrGet),
		},
		{
			Name:      "get",
			Usage:     "pack files of a session into a tar stream",
			UsageText: "fence get --socket PATH [--domain NAME] [--dir DIR] FILE... > FILE.tar",
			Description: `FILE lies below DIR (else /) and is named so in the stream; a folder comes with
all that is in it. No link is followed; sockets, pipes and devices are left out
and named.

Examples:
  fence get --socket "$S" --domain verifier --dir /logs verifier | tar x
  fence get --socket "$S" --dir /app . > app.tar

Exit codes: 0 all of it is in the stream; 2 wrong flags; 3 something cannot be
read, or the session was lost: the stream is of no use; 124, 125 as fence run.`,
			Flags:  []urfave.Flag{socket, domain, wait, timeout, dir("below the folder `DIR`; else /")},
			Action: putOrGet,
		},
	}
}

// inSession is the process that a session starts behind the fence.
func inSession(args []string) error {
	if args[0] == "leader" {
		return sessionError(session.Lead())
	}
	return sessionError(session.Inside(args[1:]))
}

func sessionError(err error) error {
	var e *session.Error
	var ce *cli.Error
	switch {
	case err == nil, errors.As(err, &ce):
		return err
	case errors.As(err, &e):
		return &cli.Error{Code: e.Code, Err: e, Hint: e.Hint}
	}
	return &cli.Error{Code: cli.Unknown, Err: err}
}

var domainName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)

// domainFlags are those of a launch that a domain can be given.
var domainFlags = []string{"read", "write", "hide", "net", "env", "syscall", "limit", "accept", "why", "workdir", "form", "user"}

func domains(c *urfave.Context) ([]session.Domain, error) {
	var all []session.Domain
	for _, spec := range c.StringSlice("domain") {
		name, policy, _ := strings.Cut(spec, "=")
		if !domainName.MatchString(name) || policy == "" {
			return nil, cli.Usagef("--domain agent=strict", "--domain: %q is not NAME=POLICY", spec)
		}
		if slices.ContainsFunc(all, func(d session.Domain) bool { return d.Name == name }) {
			return nil, cli.Usagef("", "--domain: %s is there twice", name)
		}
		all = append(all, session.Domain{Name: name, Policy: policy})
	}
	if len(all) == 0 {
		return nil, cli.Usagef("--domain agent=strict", "a session needs a domain")
	}
	at := func(name string) int {
		return slices.IndexFunc(all, func(d session.Domain) bool { return d.Name == name })
	}
	for _, spec := range c.StringSlice("below") {
		name, up, _ := strings.Cut(spec, "=")
		i, above := at(name), at(up)
		switch {
		case i < 0 || above < 0 || i == above:
			return nil, cli.Usagef("--below agent=verifier, after --domain for both", "--below: %q is not NAME=ABOVE of two domains", spec)
		case all[i].Below != "":
			return nil, cli.Usagef("", "--below: %s is there twice", name)
		}
		all[i].Below = up
	}
	for _, d := range all {
		if d.Below != "" && all[at(d.Below)].Below != "" {
			return nil, cli.Usagef("a domain is above or below, not both", "--below: %s lies below %s, which lies below another", d.Name, d.Below)
		}
	}
	for _, spec := range c.StringSlice("private") {
		name, dir, _ := strings.Cut(spec, "=")
		i := at(name)
		switch {
		case i < 0 || !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/":
			return nil, cli.Usagef("--private verifier=/tests", "--private: %q is not NAME=DIR, a domain and the absolute path of a folder", spec)
		case all[i].Below != "":
			return nil, cli.Usagef("give it to the domain above", "--private: the domain %s lies below another, which sees all that it has", name)
		case slices.ContainsFunc(all, func(d session.Domain) bool { return d.Name != name && len(d.Private) > 0 }):
			return nil, cli.Usagef("", "--private: only one domain can have folders of its own")
		}
		all[i].Private = append(all[i].Private, dir)
	}
	for _, spec := range c.StringSlice("flag") {
		name, flag, _ := strings.Cut(spec, ":")
		flag, value, ok := strings.Cut(flag, "=")
		i := slices.IndexFunc(all, func(d session.Domain) bool { return d.Name == name })
		switch {
		case !ok || !slices.Contains(domainFlags, flag):
			return nil, cli.Usagef("--flag agent:read=/data --flag agent:why='the data'; flags are "+strings.Join(domainFlags, ", "), "--flag: %q is not NAME:FLAG=VALUE", spec)
		case i < 0:
			return nil, cli.Usagef("", "--flag: there is no domain %q", name)
		}
		all[i].Flags = append(all[i].Flags, "--"+flag+"="+value)
	}
	for _, d := range all {
		if d.Below != "" {
			if err := fits(d, all[at(d.Below)]); err != nil {
				return nil, err
			}
		}
	}
	// The launch gets a reason for the session's own descriptor, which must
	// not stand for anything else.
	for _, d := range all {
		opens := slices.ContainsFunc(d.Flags, func(f string) bool {
			name, value, _ := strings.Cut(strings.TrimPrefix(f, "--"), "=")
			return !slices.Contains([]string{"why", "hide", "limit", "workdir", "form", "user"}, name) && !(name == "net" && (value == "none" || value == "loopback"))
		})
		if opens && !slices.ContainsFunc(d.Flags, func(f string) bool { return strings.HasPrefix(f, "--why=") && f != "--why=" }) {
			return nil, cli.Usagef("--flag "+d.Name+":why='TEXT'", "--flag: something is opened for the domain %s without a reason", d.Name)
		}
	}
	return all, nil
}

// fits refuses a domain that is to have what the one above has not: behind two
// fences only what both open is open.
func fits(low, up session.Domain) error {
	for _, d := range []session.Domain{low, up} {
		if slices.Contains(d.Flags, "--form=bare") {
			return cli.Usagef("", "--below: a domain above or below another has namespaces, and %s asks for the bare form", d.Name)
		}
	}
	p, err := policyOf(low)
	if err != nil {
		return err
	}
	above, err := policyOf(up)
	if err != nil {
		return err
	}
	if n := p.Network; n.Mode != policy.NetworkNone && (n.Mode != above.Network.Mode || n.Socket != above.Network.Socket) {
		return cli.Usagef(fmt.Sprintf("give both the same: --flag %s:net=%s", up.Name, n.Mode),
			"--below: the domain %s has the network mode %s, and %s, above it, %s", low.Name, n.Mode, up.Name, above.Network.Mode)
	}
	for _, o := range p.Open {
		if o.Path != "" && !slices.ContainsFunc(above.Open, func(a policy.Open) bool {
			return a.Path != "" && (o.Path == a.Path || strings.HasPrefix(o.Path, a.Path+"/")) && (o.Access == a.Access || o.Access == policy.AccessRead && a.Access == policy.AccessWrite)
		}) {
			return cli.Usagef(fmt.Sprintf("open it for both: --flag %s:%s=%s --flag %[1]s:why='TEXT'", up.Name, o.Access, o.Path),
				"--below: the domain %s opens %s (%s), and %s, above it, does not", low.Name, o.Path, o.Access, up.Name)
		}
	}
	return nil
}

// policyOf is the policy that the domain's launch will have.
func policyOf(d session.Domain) (policy.Policy, error) {
	o := options{policy: d.Policy}
	f := &o.flags
	lists := map[string]*[]string{"read": &f.Read, "write": &f.Write, "hide": &f.Hide, "env": &f.Env, "syscall": &f.Syscall, "limit": &f.Limit, "accept": &f.Accept, "why": &f.Why}
	for _, flag := range d.Flags {
		name, value, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
		if list := lists[name]; list != nil {
			*list = append(*list, value)
		} else if name == "net" {
			f.Net = value
		}
	}
	return o.load()
}

func serve(c *urfave.Context) error {
	socket, stdio := c.String("socket"), c.Bool("stdio")
	if argv := c.Args().Slice(); len(argv) > 0 || slices.Contains(os.Args, "--") {
		switch {
		case !slices.Contains(os.Args, "--"):
			return cli.Usagef("put -- before the command", "there is no -- before %q", argv[0])
		case len(argv) == 0:
			return cli.Usagef("fence serve --socket PATH -- apptainer exec ... /.fence/fence serve --stdio ...", "there is no command after --")
		case socket == "" || stdio || c.IsSet("domain") || c.IsSet("flag") || c.IsSet("lifeline"):
			return cli.Usagef("the domains belong behind the --, to the fence serve --stdio in the container", "with a command after --, fence serve takes --socket PATH and nothing else")
		}
		code, err := session.Host(socket, argv)
		if err != nil || code == 0 {
			return sessionError(err)
		}
		return cli.Exit(code)
	}
	if stdio == (socket != "") {
		return cli.Usagef("--stdio in a container whose caller passes a channel, --socket PATH elsewhere", "fence serve takes --stdio or --socket PATH")
	}
	o := session.Options{Lifeline: c.Int("lifeline")}
	var err error
	if o.Domains, err = domains(c); err != nil {
		return err
	}
	if c.IsSet("lifeline") && !isOpen(o.Lifeline) {
		return cli.Usagef("the caller opens it", "--lifeline: descriptor %d is not open", o.Lifeline)
	}
	container, err := host.Container()
	if err != nil {
		return sessionError(err)
	}
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return sessionError(err)
	}
	// The initial PID namespace, as in include/linux/proc_ns.h: the container
	// has none of its own, and everybody's number can be seen.
	o.Outside = container != "" && ns != "pid:[4026531836]"
	if !stdio {
		var remove func()
		if o.Channel, remove, err = session.Listen(socket); err != nil {
			return sessionError(err)
		}
		defer remove()
		if !o.Outside { // what a command connects to must not be the session
			hidden, err := filepath.Abs(socket)
			if err != nil {
				return sessionError(err)
			}
			for i := range o.Domains {
				o.Domains[i].Flags = append(o.Domains[i].Flags, "--hide="+hidden)
			}
		}
	}
	return sessionError(session.Serve(o))
}

// client is that of the socket.
func client(c *urfave.Context) (*session.Client, error) {
	path := c.String("socket")
	if path == "" {
		return nil, cli.Usagef("fence "+c.Command.Name+" --socket PATH, that of fence serve", "which session?")
	}
	return session.Dial(path, c.Duration("wait")), nil
}

func command(c *urfave.Context) (session.Command, error) {
	cmd := session.Command{
		Domain: c.String("domain"), Dir: c.String("dir"), Argv: c.Args().Slice(),
		Timeout: c.Duration("timeout").Milliseconds(), Grace: c.Duration("grace").Milliseconds(),
	}
	if v := c.String("umask"); v != "" {
		n, err := strconv.ParseInt(v, 8, 16)
		if err != nil || n < 0 || n > 0o777 {
			return cmd, cli.Usagef("--umask 022", "--umask: %q is none", v)
		}
		mask := int(n)
		cmd.Umask = &mask
	}
	for _, kv := range c.StringSlice("env") {
		name, value, given := strings.Cut(kv, "=")
		if !given {
			if value, given = os.LookupEnv(name); !given {
				return cmd, cli.Usagef("--env NAME=VALUE", "--env: %s is not set here", name)
			}
		}
		if policy.LooksSecret(name, value) {
			return cmd, cli.Usagef("let what needs it run outside the fence", "--env: %s looks like a credential", name)
		}
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	for _, l := range c.StringSlice("limit") {
		name, value, _ := strings.Cut(l, "=")
		n, err := strconv.ParseUint(value, 10, 63)
		if err != nil {
			return cmd, cli.Usagef("--limit nofile=64", "--limit: %q is not NAME=NUMBER", l)
		}
		if cmd.Limits == nil {
			cmd.Limits = map[string]uint64{}
		}
		cmd.Limits[name] = n
	}
	for _, name := range []string{"timeout", "grace"} {
		if d := c.Duration(name); c.IsSet(name) && d < time.Millisecond {
			return cmd, cli.Usagef("--"+name+" 5m", "--%s: %s is too short", name, d)
		}
	}
	return cmd, nil
}

func runInSession(c *urfave.Context) error {
	cl, err := client(c)
	if err != nil {
		return err
	}
	if asked := c.Bool("status") || c.IsSet("end"); asked {
		if c.Args().Present() || c.Bool("status") && c.IsSet("end") {
			return cli.Usagef("one after the other", "--status and --end run no command")
		}
		if c.IsSet("end") {
			return sessionError(cl.End(c.Context, c.String("end")))
		}
		st, err := cl.Status(c.Context)
		if err != nil {
			return sessionError(err)
		}
		return printJSON(c.App.Writer, st)
	}
	if !slices.Contains(os.Args, "--") {
		return cli.Usagef("put -- before the command: fence run --socket PATH -- COMMAND", "there is no -- before the command")
	}
	cmd, err := command(c)
	if err != nil {
		return err
	}
	streams := session.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	signals := make(chan unix.Signal)
	streams.Signals = signals
	ctx, cancel := context.WithCancel(c.Context)
	defer cancel()
	begin, restore := func() {}, func() {}
	if c.Bool("tty") {
		begin, restore, streams.Sizes = terminal(&cmd)
	}
	defer func() { restore() }()
	// Until the session answers, a signal ends this process as any other.
	streams.Begin = func() {
		got := make(chan os.Signal, 8)
		signal.Notify(got, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
		go func() {
			for s := range got {
				signals <- s.(unix.Signal)
			}
		}()
		begin()
	}
	exit, err := cl.Run(ctx, cmd, streams)
	return ended(cmd, exit, err)
}

func ended(cmd session.Command, exit session.Exit, err error) error {
	switch {
	case err != nil:
		return sessionError(err)
	case exit.TimedOut:
		return &cli.Error{Code: session.CodeTimedOut, Err: fmt.Errorf("it did not end within %s and was ended", time.Duration(cmd.Timeout)*time.Millisecond)}
	case exit.Code != 0:
		return cli.Exit(exit.Code)
	}
	return nil
}

// terminal asks for one of the size of the caller's, and tells of changes. raw
// makes the caller's one that passes every key on.
func terminal(cmd *session.Command) (raw, restore func(), sizes <-chan session.Size) {
	fd := int(os.Stdin.Fd())
	size := func() session.Size {
		for _, fd := range []int{0, 1, 2} {
			if ws, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil && ws.Row > 0 {
				return session.Size{Rows: ws.Row, Cols: ws.Col}
			}
		}
		return session.Size{Rows: 24, Cols: 80}
	}
	s := size()
	cmd.TTY = &s
	if term := os.Getenv("TERM"); term != "" && !slices.ContainsFunc(cmd.Env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") }) {
		cmd.Env = append(cmd.Env, "TERM="+term)
	}
	was, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return func() {}, func() {}, nil // a pipe
	}
	keys := *was
	keys.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	keys.Oflag &^= unix.OPOST
	keys.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	keys.Cflag = keys.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	keys.Cc[unix.VMIN], keys.Cc[unix.VTIME] = 1, 0
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGWINCH)
	out := make(chan session.Size)
	go func() {
		for range changed {
			out <- size()
		}
	}()
	raw = func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, &keys) }
	restore = func() { _ = unix.IoctlSetTermios(fd, unix.TCSETSW, was) }
	return raw, restore, out
}

func putOrGet(c *urfave.Context) error {
	cl, err := client(c)
	if err != nil {
		return err
	}
	cmd, err := command(c)
	if err != nil {
		return err
	}
	dir := cmd.Dir
	if cmd.Dir = ""; dir == "" {
		dir = "/"
	}
	if !strings.HasPrefix(dir, "/") {
		return cli.Usagef("", "--dir: %q is not an absolute path", dir)
	}
	streams := session.Streams{Err: printable{os.Stderr}} // names are the domain's
	cmd.Tool = c.Command.Name
	switch cmd.Tool {
	case "put":
		cmd.Argv, streams.In = []string{dir}, os.Stdin
	default:
		if cmd.Argv = append([]string{dir}, cmd.Argv...); len(cmd.Argv) == 1 {
			return cli.Usagef("fence get --dir /app . > app.tar", "which files?")
		}
		if cli.IsTerminal(os.Stdout) {
			return cli.Usagef("fence get ... > FILE.tar", "a tar stream is nothing for a terminal")
		}
		streams.Out = c.App.Writer
	}
	exit, err := cl.Run(c.Context, cmd, streams)
	return ended(cmd, exit, err)
}

// printable writes lines that do nothing to a terminal.
type printable struct{ w io.Writer }

func (p printable) Write(data []byte) (int, error) {
	for line := range strings.Lines(string(data)) {
		text, end := strings.CutSuffix(line, "\n")
		text = cli.Printable(text)
		if end {
			text += "\n"
		}
		if _, err := io.WriteString(p.w, text); err != nil {
			return 0, err
		}
	}
	return len(data), nil
}
