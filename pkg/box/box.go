// Package box is one trial's container, kept up: a task's image under
// Apptainer with nothing of the site in it, and in it a session of fence with
// two domains, the agent's below the verifier's. Everything that is done in the
// container is a command of one of the two; this program never links the
// sandbox, it starts fence as any caller does.
//
// A program that uses it calls apptainer.Main first: a box does not outlive
// whoever started it, however that ended.
package box

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/apptainer"
	"fence/pkg/result"
	"fence/pkg/session"
	"fence/pkg/tree"
)

// The domains of every box.
const Agent, Verifier = "agent", "verifier"

// Options are what a box is started with. Paths on the node are absolute.
type Options struct {
	Apptainer    string // the node's
	Fence, Probe string // static programs, bound read-only as /.fence/fence and /.fence/probe
	Image        string // a SIF
	// Scratch is an empty folder for this box alone, on a disk of this node:
	// what the container's commands write lies there, and all else that the box
	// needs. Close removes it.
	Scratch string
	// Network is "none", "loopback" (servers of the container's own) or "host",
	// which needs Why. Both domains have it, and share their loopback.
	Network, Why string
	// AgentUser and VerifierUser are as USER in a Dockerfile, "name", "name:group"
	// or numbers; "" is the image's. There is one real user, the caller; others
	// are pretended, and everything of the container belongs to each of them.
	AgentUser, VerifierUser string
	Users                   []string          // others of the agent's side, see Box.Domain
	Workdir                 string            // where commands begin; "" is the image's WORKDIR. It is made if it is missing
	Opens                   []Open            // what else both domains may
	Binds                   []Bind            // folders and files of the node, read-only
	Env                     map[string]string // of every command, over the image's
	Limits                  Limits
	// Folders of the image's, relative to the root, are in the overlay from the
	// start, as they are in the image: what happens in them can be heard there.
	Folders []string
	Private []string // folders that the verifier alone has; nil: /tests, /logs/verifier
	Step    *Step    // which keeps the limit of memory; nil: none
}

// Open is what both domains may over their policies, as [[open]] in one: a path
// with its access, read or write, or a system call; and why.
type Open struct{ Path, Access, Syscall, Why string }

// Bind is a path of the node that both domains can read as Target.
type Bind struct{ Source, Target, Why string }

// Limits end a box that goes beyond one; 0 is none. They are looked at once a
// second.
type Limits struct {
	Memory    int64 // bytes: of the processes, without what they share with others, and of /dev/shm
	Processes int   // without those of Apptainer and fence
	Disk      int64 // bytes written to the container's files, /tmp and /var/tmp
}

// Box is a container that is up.
type Box struct {
	o       Options
	config  Config
	users   people
	workdir string
	status  session.Status

	client  *session.Client
	channel io.Closer // the session's life
	said    apptainer.Tail
	watched watched
	free    amount // of its disk, when it began
	life    context.Context
	kill    context.CancelCauseFunc
	done    chan struct{}
	gone    chan struct{} // closed when nothing is left of it
	end     error         // how Apptainer ended, once done is closed
	err     error         // why

	closing  sync.Once
	closeErr error
	mu       sync.Mutex
	usage    result.Usage

	// See boxes, which guards them.
	disk  uint64        // of its scratch folder
	group string        // its control group
	sizes map[int]int64 // of its processes, in bytes, when they were looked at
	saw   int           // kills in the group that were not to be explained then
}

// Start starts a box and returns when commands can run in it, with nothing left
// if they cannot: an *Error. The end of ctx is that of the start only.
func Start(ctx context.Context, o Options) (*Box, error) {
	if o.Private == nil {
		o.Private = []string{"/tests", "/logs/verifier"}
	}
	if err := o.check(); err != nil {
		os.Remove(o.Scratch) // if it is empty
		return nil, err
	}
	config, users, err := o.inspect()
	if err != nil {
		os.Remove(o.Scratch)
		return nil, err
	}
	ownNet := o.Network != "host" && netAllowed()
	b, err := start(ctx, o, config, users, ownNet)
	if err != nil && ownNet && noNetwork.MatchString(err.Error()) {
		// A node may refuse it in more ways than one. The domains have networks of
		// their own, or a supervisor, in any case.
		if e := os.Mkdir(o.Scratch, 0o700); e == nil {
			b, err = start(ctx, o, config, users, false)
		}
	}
	return b, err
}

// noNetwork is how Apptainer says that it cannot make a network, or may not: its
// starter, the set-up of the container, and the site's settings.
var noNetwork = regexp.MustCompile(`create network namespace|network setup failed|network requires root|=\S+ is permitted in --fakeroot mode`)

// Possible says why no box can start on this node: its users may make no user
// namespaces, and Apptainer none for them. It is an *Error; Scratch is used and
// removed.
func Possible(ctx context.Context, o Options) error {
	cmd := exec.CommandContext(ctx, o.Fence, "--version")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	if cmd.Run() == nil {
		return os.Remove(o.Scratch)
	}
	b, err := Start(ctx, o) // there are sites where it alone may
	if err != nil {
		return err
	}
	return b.Close()
}

// netAllowed says whether the node lets its users make network namespaces. Where
// it does not, Apptainer's --net is an error.
func netAllowed() bool {
	n, err := os.ReadFile("/proc/sys/user/max_net_namespaces") // namespaces(7)
	return err != nil || strings.TrimSpace(string(n)) != "0"
}

func start(ctx context.Context, o Options, config Config, users people, ownNet bool) (_ *Box, err error) {
	b := &Box{
		o: o, config: config, users: users, workdir: cmp.Or(o.Workdir, config.Workdir, "/"),
		said: apptainer.Tail{Most: 16 << 10}, done: make(chan struct{}), gone: make(chan struct{}), free: room(o.Scratch),
	}
	own, err := o.prepare()
	if err == nil {
		err = o.folders()
	}
	if err != nil {
		return nil, errors.Join(startError(err), tree.RemoveAll(o.Scratch))
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, startError(os.NewSyscallError("socketpair", err))
	}
	theirs := os.NewFile(uintptr(fds[1]), "channel")
	if b.client, b.channel, err = session.Over(fds[0]); err != nil {
		theirs.Close()
		return nil, startError(err)
	}
	argv := slices.Concat(o.container(ownNet), o.serve(users))
	cmd := exec.Command(o.Apptainer, argv...)
	cmd.Env, cmd.Dir = apptainer.Env(own), "/"
	b.life, b.kill = context.WithCancelCause(context.Background())
	started := make(chan int, 1)
	go func() {
		defer close(b.done)
		end, err := apptainer.Run(b.life, cmd, apptainer.Start{
			Stdin: theirs, Said: &b.said, OOM: oomScore, Given: []io.Closer{theirs}, Started: func(pid int) { started <- pid }, Step: o.step(os.Environ()),
		})
		b.channel.Close()
		b.end, b.err = end, b.why(err, end, context.Cause(b.life))
		if cmd.ProcessState != nil {
			b.note(result.Usage{CPUSec: (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()})
		}
	}()
	b.status, err = b.client.Status(ctx)
	if err != nil && ctx.Err() == nil {
		b.await()
		err = b.refused()
	} else if err == nil {
		select {
		case pid := <-started:
			b.watched = watching(pid)
			together.enter(b)
			go b.watch()
		case <-b.done:
		}
		err = b.makeWorkdir(ctx)
	}
	if err != nil {
		b.Close()
		return nil, b.late(ctx, err)
	}
	return b, nil
}

// late is an error of a start, which may be that of its time.
func (b *Box) late(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil:
		return err
	case errors.Is(ctx.Err(), context.Canceled):
		return &Error{Class: "stopped", Cause: "infra", Message: "the start of a container was stopped"}
	}
	return &Error{
		Class: "start_timeout", Cause: "infra", Message: fmt.Sprintf("the container of %s has not started in time: %s", b.o.Image, apptainer.LastWords(b.said.String(), ctx.Err())),
		Hint: "a busy node or a slow file system: give it longer, or run fewer at once",
	}
}

// oomScore of everything in a box: where the node runs out of memory, it goes
// before its neighbours and before this program.
const oomScore = 1000

// makeWorkdir makes the folder where commands begin, unless it is there.
func (b *Box) makeWorkdir(ctx context.Context) error {
	var empty bytes.Buffer
	if err := tar.NewWriter(&empty).Close(); err != nil {
		return err
	}
	err := b.Put(ctx, Agent, b.workdir, &empty)
	if err == nil {
		return nil
	}
	// Nothing is put behind a link, but commands can begin there.
	_, e := b.Run(ctx, Command{Domain: Agent, Argv: []string{inFence + "fence", "--version"}}, session.Streams{})
	var own *Error
	switch {
	case e == nil:
		return nil
	case errors.As(err, &own):
		return own
	}
	return &Error{Class: "start_failed", Cause: "task", Message: fmt.Sprintf("the folder %s, where commands begin, cannot be made: %v", b.workdir, err), Hint: "WORKDIR of the image, or workdir of the task"}
}

// Command is what is run.
type Command struct {
	Domain string
	Argv   []string
	Env    map[string]string // over that of the box
	Dir    string            // "" is where commands begin
	// Timeout ends the command and what is left of its session, SIGTERM first; 0:
	// none. What it started in a session of its own (a daemon) lives on, until End.
	Timeout time.Duration
	TTY     *session.Size
}

// Run runs a command. An *Error is the end of the box or of the domain; any
// other error is ctx's, or a *session.Error whose Code says why nothing ran (127:
// there is no such program).
func (b *Box) Run(ctx context.Context, c Command, s session.Streams) (session.Exit, error) {
	cmd := session.Command{
		Domain: c.Domain, Argv: c.Argv, Env: b.env(c), Dir: cmp.Or(c.Dir, b.workdir), Timeout: milliseconds(c.Timeout), TTY: c.TTY,
	}
	before := b.kills()
	exit, err := b.client.Run(ctx, cmd, s)
	b.mu.Lock()
	b.usage.CPUSec += float64(exit.UserUS+exit.SystemUS) / 1e6
	b.usage.MemoryBytes = max(b.usage.MemoryBytes, exit.MaxRSSKB<<10) // between two looks
	b.mu.Unlock()
	if err != nil {
		return exit, b.explain(err, c.Domain)
	}
	// What came and went between two looks.
	b.outOfMemory(b.kills(), before, exit)
	b.noRoom()
	b.stepEnding(exit)
	return exit, b.ended()
}

// ended is why the box has been ended, or is about to be.
func (b *Box) ended() error {
	if b.ending() {
		<-b.done
	}
	return b.Err()
}

// milliseconds rounds up: 0 would be no limit.
func milliseconds(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }

// env is what a command has over the image's environment.
func (b *Box) env(c Command) []string {
	all := map[string]string{"HOME": b.users.in[c.Domain].Home}
	if home := b.config.Env["HOME"]; home != "" {
		all["HOME"] = home
	}
	maps.Copy(all, b.o.Env)
	maps.Copy(all, c.Env)
	var list []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list
}

// Put unpacks a tar stream below a folder, as the domain; the folder is made if
// it is missing. See session.Client.Put.
func (b *Box) Put(ctx context.Context, domain, dir string, tar io.Reader) error {
	return b.explain(b.client.Put(ctx, session.Command{Domain: domain}, dir, tar), domain)
}

// Get packs paths below a folder into a tar stream, as the domain. What is in
// the stream is the domain's word: see session.Client.Get.
func (b *Box) Get(ctx context.Context, domain, dir string, paths []string, tar io.Writer) error {
	return b.explain(b.client.Get(ctx, session.Command{Domain: domain}, dir, paths, tar), domain)
}

// End ends all of a domain, for good: of the verifier's also the agent's.
func (b *Box) End(ctx context.Context, domain string) error {
	return b.explain(b.client.End(ctx, domain), domain)
}

// Done is closed when the container has ended, by itself or by a limit.
func (b *Box) Done() <-chan struct{} { return b.done }

// Err says why the container has ended: an *Error, or nil while it has not and
// after Close.
func (b *Box) Err() error {
	select {
	case <-b.done:
		return b.err
	default:
		return nil
	}
}

// Upper is the folder on the node with all that was changed of the container's
// files but /tmp and /var/tmp, as overlayfs keeps it; until Close. What is in
// it is the commands' affair: names, links, modes.
func (b *Box) Upper() string { return filepath.Join(b.o.Scratch, "overlay", "upper") }

// Config is what the image says of itself.
func (b *Box) Config() Config { return b.config }

// Domain is where commands are those of a user of the agent's side: Agent for
// Options.AgentUser, and for another of Options.Users who is not the same one a
// domain of its own, beside the agent's and below the verifier's.
func (b *Box) Domain(user string) string { return b.users.domain[user] }

// Workdir is where commands begin.
func (b *Box) Workdir() string { return b.workdir }

// Usage is what was used so far at the most, as far as it was seen: once a
// second. CPU time is complete after Close, and that
// of commands alone in a Step.
func (b *Box) Usage() result.Usage {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.usage
}

func (b *Box) note(u result.Usage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.usage.MemoryBytes = max(b.usage.MemoryBytes, u.MemoryBytes)
	b.usage.DiskBytes = max(b.usage.DiskBytes, u.DiskBytes)
	b.usage.Processes = max(b.usage.Processes, u.Processes)
	b.usage.CPUSec = max(b.usage.CPUSec, u.CPUSec)
}

// Close ends the container with all that is in it, and removes all that it
// left. Calling it again changes nothing.
func (b *Box) Close() error {
	b.closing.Do(func() {
		if b.watched.pid != 0 && b.Err() == nil { // it may have been short
			b.look()
			b.count(disk{})
		}
		b.kill(errClosed)
		<-b.done
		if err := tree.RemoveAll(b.o.Scratch); err != nil {
			b.closeErr = &Error{Class: "internal", Cause: "infra", Message: fmt.Sprintf("the folder of a container could not be removed: %v", err), Hint: "remove " + b.o.Scratch}
		}
		together.leave(b)
		close(b.gone)
	})
	return b.closeErr
}

// await waits for the end of a container whose session is gone, and helps.
func (b *Box) await() {
	b.channel.Close()
	timer := time.AfterFunc(endTimeout, func() { b.kill(nil) })
	defer timer.Stop()
	<-b.done
}

// endTimeout is for a container whose session has ended. It takes a few
// hundredths of a second.
const endTimeout = 10 * time.Second
