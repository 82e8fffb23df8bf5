package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Domain is a fence of the session: its name and the flags of its launch.
type Domain struct {
	Name, Policy string
	Flags        []string
	Below        string   // the domain that it shall lie below, "" for none
	Private      []string // folders of its own, which no other domain has; of one domain only
}

// Options are what a broker is started with.
type Options struct {
	Domains  []Domain
	Channel  int  // a listening socket, or a connected one over which connections come
	Outside  bool // peers that are in this PID namespace are inside the container
	Lifeline int  // a pipe, socket or pidfd: when it ends, the session does; -1: none
}

type broker struct {
	Options
	r       *reaper
	domains []*domain
	owner   *domain // of places that no other domain has, nil: none
	places  sync.Once
	emptied error // what went wrong when they were
	listens bool
	nofile  uint64     // the limit of open files
	ending  chan error // why the session ends; nil: as it was told
}

type domain struct {
	Domain
	b       *broker
	c       *conn
	above   *domain // it lies below that one
	beside  string  // why it does not, although it should
	masked  bool    // the places of the owner are hidden from it
	ownPID  bool    // it is a PID namespace: all of it ends with its first process, pid
	pid     int
	exited  chan struct{} // its leader has been reaped
	gone    chan struct{} // and all that it left
	devpts  int           // the folder of its terminals, -1: none
	fence   json.RawMessage
	mu      sync.Mutex
	runs    map[uint64]*run
	last    uint64
	drains  atomic.Int32 // descriptors that are read for nobody
	state   string
	why     string
	started bool
}

type run struct {
	news            chan news // one of each kind: nobody waits for room
	started, failed bool
}

// Serve starts the domains and does what clients ask for until the caller is
// gone, or tells it to end. Nothing of the session is left when it returns.
func Serve(o Options) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_DUMPABLE)", err)
	}
	// What the container's runtime inherited is nothing for us.
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return os.NewSyscallError("close_range", err)
	}
	listens, err := unix.GetsockoptInt(o.Channel, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if family, e := unix.GetsockoptInt(o.Channel, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || e != nil || family != unix.AF_UNIX {
		return &Error{CodeUsage, "--stdio: descriptor 0 is not a Unix socket", "a harness passes one end of a socketpair, or let fence do it: fence serve --socket PATH -- apptainer exec ... fence serve --stdio ..."}
	}
	r, err := newReaper()
	if err != nil {
		return err
	}
	b := &broker{Options: o, r: r, listens: listens != 0, ending: make(chan error, 1)}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	b.nofile = files.Max // which the Go runtime takes
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	go func() { <-stop; b.end(nil) }()
	if o.Lifeline >= 0 {
		go func() { b.end(watch(o.Lifeline)) }()
	}
	if !b.listens { // seen also while the domains start
		go func() { b.end(hangup(o.Channel)) }()
	}
	launched := make(chan error, 1)
	go func() { launched <- b.launchAll() }()
	select {
	case err = <-launched:
	case err = <-b.ending: // a launch may wait for what never comes
		r.endAll()
		return err
	}
	if err == nil {
		r.keep()
		go b.serve()
		err = <-b.ending
	}
	var all sync.WaitGroup
	for _, d := range b.domains {
		all.Go(func() { d.end("ended", "the session ended") })
	}
	all.Wait()
	return err
}

func (b *broker) end(err error) {
	select {
	case b.ending <- err:
	default:
	}
}

// watch returns when the other side of fd is gone: a pidfd becomes readable
// then, a pipe or a socket has its end.
func watch(fd int) error {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			return os.NewSyscallError("poll", err)
		}
		n, err := unix.Read(fd, make([]byte, 64))
		if n <= 0 && err != unix.EAGAIN && err != unix.EINTR {
			return nil
		}
	}
}

func hangup(fd int) error {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if _, err := unix.Poll(fds, -1); err != unix.EINTR {
			return os.NewSyscallError("poll", err)
		}
	}
}

// launchAll starts first who has places of its own: in which form that one
// stands decides whether they can be hidden from the others. One that shall lie
// below another comes with it, or afterwards, beside it.
func (b *broker) launchAll() error {
	for _, spec := range b.Domains {
		d := &domain{Domain: spec, b: b, devpts: -1, state: "alive", runs: map[uint64]*run{}, exited: make(chan struct{}), gone: make(chan struct{})}
		b.domains = append(b.domains, d)
		if len(d.Private) > 0 {
			b.owner = d
		}
	}
	for _, d := range b.domains {
		if i := slices.IndexFunc(b.domains, func(up *domain) bool { return up.Name == d.Below }); i >= 0 {
			d.above = b.domains[i]
		}
	}
	if b.owner != nil {
		if err := makePlaces(b.owner.Private); err != nil {
			return err
		}
	}
	for {
		var all sync.WaitGroup
		errs, n := make([]error, len(b.domains)), 0
		for i, d := range b.domains {
			if !d.started && d.above == nil && (b.owner == nil || b.owner == d || b.owner.started) {
				n++
				all.Go(func() { errs[i] = d.launch() })
			}
		}
		all.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		if n == 0 {
			break
		}
		if o := b.owner; o != nil && len(b.domains) > 1 && o.form() == "bare" {
			if err := notMounted(o.Private); err != nil {
				return err
			}
		}
	}
	if err := b.apart(); err != nil {
		return err
	}
	select {
	case err := <-b.ending:
		b.end(err)
	default:
	}
	return nil
}

// apart refuses domains that can signal each other: before ABI 6 Landlock keeps
// no signals in. Who lies above others may signal them.
func (b *broker) apart() error {
	for _, d := range b.domains {
		var s struct{ Landlock struct{ Scoped uint64 } }
		_ = json.Unmarshal(d.fence, &s)
		if d.ownPID || s.Landlock.Scoped&ll.ScopeSignal != 0 {
			continue
		}
		for _, x := range b.domains {
			if x != d && x.above != d {
				return &Error{CodeNotRun, fmt.Sprintf("domain %s: this kernel's Landlock cannot keep its signals from the domain %s, and it has no PID namespace of its own", d.Name, x.Name),
					"one session for each, or a node with Landlock ABI 6 (kernel 6.12)"}
			}
		}
	}
	return nil
}

// launching is the broker's side of a launch.
type launching struct {
	d            *domain
	files        []int // descriptors 0, 1, ... of the launch: nothing, nothing, stderr, the leader's channel, the status line
	status, said *os.File
	text         bytes.Buffer
	heard        chan struct{} // text is complete
}

func (d *domain) prepare() (*launching, error) {
	l := &launching{d: d, heard: make(chan struct{})}
	c, theirs, err := pair(maxNews)
	if err != nil {
		return nil, err
	}
	d.c = c
	var ends [4]int // read and write ends of the status line and of stderr
	for i := 0; i < 4; i += 2 {
		if err := unix.Pipe2(ends[i:i+2], unix.O_CLOEXEC); err != nil {
			return nil, os.NewSyscallError("pipe2", err)
		}
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	// A regular file or terminal of ours would be opened by the fence's rules.
	l.files = []int{null, null, ends[3], theirs, ends[1]}
	l.status, l.said = os.NewFile(uintptr(ends[0]), "status"), os.NewFile(uintptr(ends[2]), "stderr")
	return l, nil
}

// argv is an ordinary launch of fence. Its command is fence again, started
// anew: the Go runtime makes threads from one that is not fenced.
func (l *launching) argv(name string, more ...string) []string {
	d := l.d
	argv := slices.Concat([]string{name, "--policy", d.Policy}, d.Flags, more)
	// Descriptors on their way through sockets count for the user, and against
	// the limit of who sends more (unix(7), ETOOMANYREFS): a domain must not be
	// able to reach ours. Every policy's limit is 4096 or its author's affair.
	if d.b.nofile < 2*4096 && !slices.ContainsFunc(d.Flags, func(f string) bool { return strings.HasPrefix(f, "--limit=nofile=") }) {
		argv = append(argv, fmt.Sprintf("--limit=nofile=%d", d.b.nofile/2))
	}
	for _, p := range d.Private {
		argv = append(argv, "--hold="+p) // a folder that its owner removes takes the others' masks along
	}
	if d.masked {
		for _, p := range d.b.owner.Private {
			argv = append(argv, "--hide="+p)
		}
	}
	return append(argv, "--keep-fd", fmt.Sprint(leaderFD), "--status-fd", fmt.Sprint(leaderFD+1), "--why", "the session's channel to its leader", "--", "/proc/self/exe", "leader")
}

// launch starts the domain, and those that shall lie below it. It gets a PID
// namespace of its own where it can be had, and nobody lies below it: those
// are to be seen from it.
func (d *domain) launch() error {
	// What a bare fence shows cannot be hidden from those that are bare too.
	o := d.b.owner
	d.masked = o != nil && o != d && o.form() != "bare"
	var lows []*domain
	for _, low := range d.b.domains {
		if low.above == d {
			low.masked = d.masked || o == d && o != nil
			lows = append(lows, low)
		}
	}
	if len(lows) == 0 && !slices.Contains(d.Flags, "--form=bare") {
		if err := d.try(fmt.Sprint("fence:lead:", leaderFD+1), nil); err == nil {
			return nil
		}
	}
	return d.try("fence", lows)
}

func (d *domain) try(name string, lows []*domain) error {
	own, err := d.prepare()
	if err != nil {
		return err
	}
	launches, files := []*launching{own}, slices.Clone(own.files)
	var more []string
	for _, low := range lows {
		l, err := low.prepare()
		if err != nil {
			return err
		}
		below := struct {
			Argv  []string `json:"argv"`
			Files []int    `json:"files"`
		}{Argv: l.argv("fence")}
		for i := range l.files {
			below.Files = append(below.Files, len(files)+i)
		}
		text, err := json.Marshal(below)
		if err != nil {
			return err
		}
		more, files = append(more, "--below", string(text)), append(files, l.files...)
		launches = append(launches, l)
	}
	var given []uintptr
	for _, fd := range files {
		given = append(given, uintptr(fd))
	}
	ended := make(chan int, 1) // the process that we start, which is the leader or makes it
	pid, err := d.b.r.start("/proc/self/exe", own.argv(name, more...), &syscall.ProcAttr{Env: os.Environ(), Files: given, Sys: &syscall.SysProcAttr{Setsid: true}},
		func(ws unix.WaitStatus, ru *unix.Rusage) { ended <- exitOf(ws, ru).Code })
	closeAll(files)
	if err != nil {
		return &Error{CodeNotRun, fmt.Sprintf("domain %s: starting fence: %v", d.Name, err), ""}
	}
	var all sync.WaitGroup
	for _, l := range launches[1:] {
		all.Go(func() {
			low := l.d
			if low.started = l.ready(0); !low.started {
				why := strings.TrimPrefix(low.refused(CodeNotRun, l.stderr()).Text, "domain "+low.Name+": ")
				low.above, low.beside = nil, strings.TrimPrefix(why, "not fenced: ")
			}
		})
	}
	if name != "fence" {
		<-ended // it has made the leader, or has failed
		d.started = own.ready(0)
	} else if d.started = own.ready(pid); d.started {
		go func() { <-ended; close(d.exited) }()
	}
	all.Wait()
	if d.started {
		for _, low := range lows {
			if low.beside != "" {
				fmt.Fprintf(os.Stderr, "fence: the domain %s stands beside %s, not below it: %s\n", low.Name, d.Name, low.beside)
			}
		}
		return nil
	}
	code := CodeNotRun
	if name == "fence" {
		d.b.r.with(pid, func(*proc) { _ = unix.Kill(pid, unix.SIGKILL) })
		code = <-ended
	}
	return d.refused(code, own.stderr())
}

// ready waits until the leader is there. pid is the process that all of the
// domain ends with; 0: the first line of the status says it, and it has become
// our child.
func (l *launching) ready(pid int) bool {
	d := l.d
	go func() {
		_, _ = io.CopyN(&l.text, l.said, 8<<10)
		close(l.heard)
		_, _ = io.Copy(io.Discard, l.said)
		l.said.Close()
	}()
	// Its other side closes when the leader is executed, or nothing is.
	line, err := io.ReadAll(io.LimitReader(l.status, 1<<20))
	l.status.Close()
	if pid == 0 {
		first, rest, _ := bytes.Cut(line, []byte("\n"))
		n, _ := strconv.Atoi(string(first))
		if n == 0 || !d.b.r.adopt(n, func(unix.WaitStatus, *unix.Rusage) { close(d.exited) }) {
			d.c.close()
			return false
		}
		pid, line, d.ownPID = n, rest, true
	}
	var n news
	if err == nil && len(line) > 0 {
		_ = d.c.f.SetReadDeadline(time.Now().Add(patience))
		_, err = d.c.recv(&n)
		_ = d.c.f.SetReadDeadline(time.Time{})
	}
	if err != nil || !n.Ready || !json.Valid(line) {
		d.c.close()
		if d.ownPID {
			d.b.r.with(pid, func(*proc) { _ = unix.Kill(pid, unix.SIGKILL) })
			<-d.exited
			d.exited, d.ownPID = make(chan struct{}), false
		}
		return false
	}
	d.pid = pid
	d.fence = bytes.TrimSpace(line)
	if d.ownPID {
		n.PID = pid
	}
	if n.TTY {
		d.devpts = d.terminals(n.PID)
	}
	go d.listen()
	return true
}

// stderr is what a launch that came to nothing has written.
func (l *launching) stderr() string {
	<-l.heard
	return l.text.String()
}

// refused is what the launch said, as an error of the session's.
func (d *domain) refused(exit int, said string) *Error {
	e := &Error{Code: CodeNotRun}
	if exit == CodeUsage {
		e.Code = exit
	}
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, "fence: "); ok && e.Text == "" && !strings.HasPrefix(text, "--hide: ") { // the first is the cause, but for a remark
			e.Text = "domain " + d.Name + ": " + strings.ReplaceAll(text, ", and the command was not run", "")
		} else if hint, ok := strings.CutPrefix(line, "hint: "); ok {
			e.Hint += hint + "\n"
		}
	}
	if e.Text == "" {
		e.Text = fmt.Sprintf("domain %s: its fence ended with %d", d.Name, exit)
	}
	return e
}

// listen believes the leader for its own commands: each starts once and ends
// once. Anything else, and any descriptor, and the domain is lost.
func (d *domain) listen() {
	for {
		var n news
		fds, err := d.c.recv(&n)
		closeAll(fds)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			d.end("lost", "its leader was killed")
			return
		}
		if err != nil || len(fds) > 0 || !d.take(n) {
			d.end("lost", "its leader said what none says")
			return
		}
	}
}

func (d *domain) take(n news) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != "alive" {
		return true // it was killed with the rest, which is what its client is told
	}
	r := d.runs[n.ID]
	switch {
	case r == nil || n.Ready || n.TTY || n.PID != 0:
		return false
	case n.Started && n.Failed == nil && n.Exit == nil && !r.started:
		r.started = true
	case n.Failed != nil && !n.Started && n.Exit == nil && !r.started && n.Failed.Code > 0 && n.Failed.Code < 128:
		delete(d.runs, n.ID)
	case n.Exit != nil && !n.Started && n.Failed == nil && r.started && n.Exit.Code >= 0 && n.Exit.Code < 256 && n.Exit.Signal >= 0 && n.Exit.Signal <= 64 &&
		!n.Exit.TimedOut && n.Exit.Reason == "":
		delete(d.runs, n.ID)
	default:
		return false
	}
	r.news <- n
	return true
}

// end ends all of the domain and returns when it is gone. A PID namespace ends
// with its first process. Without one the leader is asked to take the others
// along; then it is killed, and so is what it left, which has come to us.
func (d *domain) end(state, why string) {
	d.mu.Lock()
	first := d.state == "alive"
	if first {
		d.state, d.why = state, why
	}
	d.mu.Unlock()
	if !first {
		<-d.gone
		return
	}
	defer close(d.gone)
	if !d.started {
		return
	}
	for _, low := range d.b.domains {
		if low.above == d {
			low.end(state, "the domain "+d.Name+", which it lies below, is gone")
		}
	}
	if state == "ended" && !d.ownPID && d.c.send(order{End: true}) == nil {
		select {
		case <-d.exited:
		case <-time.After(patience):
		}
	}
	d.b.r.with(d.pid, func(*proc) { _ = unix.Kill(d.pid, unix.SIGKILL) })
	<-d.exited
	d.c.close()
	d.mu.Lock()
	if d.devpts >= 0 {
		unix.Close(d.devpts)
		d.devpts = -1
	}
	d.mu.Unlock()
	if !d.b.r.sweep() {
		d.b.end(&Error{CodeLost, "what was left of the domain " + d.Name + " could not be killed: the session ends", ""})
	}
}

func (d *domain) status() DomainStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := DomainStatus{Name: d.Name, Policy: d.Policy, State: d.state, Why: d.why, Running: len(d.runs), TTY: d.devpts >= 0, Private: d.Private, Beside: d.beside, Fence: d.fence}
	if d.above != nil {
		s.Below = d.above.Name
	}
	s.PIDNamespace = d.ownPID
	return s
}

// form is that of its fence, "" if it has none.
func (d *domain) form() string {
	var s struct{ Form string }
	_ = json.Unmarshal(d.fence, &s)
	return s.Form
}

// keeps says why nothing can be done for the owner of places: a domain from
// which they are not hidden has not ended. When the last has, they are emptied.
func (b *broker) keeps(d *domain) (failed *Error) {
	if d != b.owner {
		return nil
	}
	open := false
	for _, x := range b.domains {
		if x == d || x.masked {
			continue
		}
		open = true
		select {
		case <-x.gone:
		default:
			return &Error{CodeNotRun, fmt.Sprintf("the domain %s has places of its own (%s), which cannot be hidden from %s on this node", d.Name, strings.Join(d.Private, ", "), x.Name),
				"end that first, and they are emptied: fence run --end " + x.Name}
		}
	}
	b.places.Do(func() {
		if open {
			b.emptied = emptyPlaces(d.Private)
		}
	})
	if b.emptied != nil {
		failed = errorf(CodeLost, "emptying the places of the domain %s: %v", d.Name, b.emptied)
	}
	return failed
}

func (b *broker) named(name string) (*domain, *Error) {
	var names []string
	for _, d := range b.domains {
		if d.Name == name || name == "" && len(b.domains) == 1 {
			if s := d.status(); s.State != "alive" {
				return nil, d.over()
			}
			return d, nil
		}
		names = append(names, d.Name)
	}
	if name == "" {
		return nil, &Error{CodeUsage, "the session has several domains: " + strings.Join(names, ", "), "name one: --domain " + names[0]}
	}
	return nil, &Error{CodeUsage, fmt.Sprintf("the session has no domain %q", name), "it has " + strings.Join(names, ", ")}
}

func (d *domain) over() *Error {
	s := d.status()
	return errorf(CodeLost, "the domain %s is %s: %s", d.Name, s.State, s.Why)
}

// serve takes connections until there are none any more.
func (b *broker) serve() {
	if b.listens {
		for {
			fd, _, err := unix.Accept4(b.Channel, unix.SOCK_CLOEXEC)
			switch err {
			case nil:
				if _, known := peer(fd); !known {
					unix.Close(fd)
				} else {
					b.connect(fd)
				}
			case unix.EINTR, unix.ECONNABORTED:
			case unix.EAGAIN, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(b.Channel), Events: unix.POLLIN}}, 10)
			default:
				b.end(os.NewSyscallError("accept", err))
				return
			}
		}
	}
	c, err := newConn(b.Channel, maxNews)
	for err == nil {
		var q request
		var fds []int
		if fds, err = c.recv(&q); err == nil && q.Connect && len(fds) == 1 {
			b.connect(fds[0])
			continue
		}
		if closeAll(fds); errors.Is(err, errTooMany) {
			err = nil // there was no room for it: that one is lost, the others are not
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
		err = nil // the caller is gone
	}
	b.end(err)
}

func (b *broker) connect(fd int) {
	who, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	// What came of the domains came of us. 0 is nobody whom we could see.
	inside := err != nil || who.Pid > 0 && (b.Outside || descends(int(who.Pid)))
	c, err := newConn(fd, maxRequest)
	if err != nil {
		return
	}
	go func() {
		defer c.close()
		_ = c.f.SetReadDeadline(time.Now().Add(patience))
		var q request
		fds, failed := b.greet(c, inside, &q)
		_ = c.f.SetReadDeadline(time.Time{})
		defer func() { closeAll(fds) }()
		switch {
		case failed != nil:
		case q.Status:
			_ = c.send(reply{Status: b.status()})
			return
		case q.End != "":
			d, e := b.named(q.End)
			if failed = e; e == nil {
				d.end("ended", "a client ended it")
				_ = c.send(reply{Ended: true})
				return
			}
		case q.Run != nil:
			if err := q.Run.check(); !errors.As(err, &failed) {
				var d *domain
				if d, failed = b.named(q.Run.Domain); failed == nil {
					failed = b.keeps(d)
				}
				if failed == nil {
					given := fds
					fds = nil
					d.run(c, q.Run, given)
					return
				}
			}
		default:
			failed = errorf(CodeUsage, "a request without one")
		}
		if failed.Code != 0 { // else there is nobody to tell
			_ = c.send(reply{Error: failed})
		}
	}()
}

// greet exchanges the versions and reads the request. Each side says its own
// first, so that the other can say what is the matter.
func (b *broker) greet(c *conn, inside bool, q *request) ([]int, *Error) {
	body, fds, err := c.frame()
	closeAll(fds)
	var h hello
	if err != nil || json.Unmarshal(body, &h) != nil || c.send(hello{Schema}) != nil {
		return nil, &Error{}
	}
	if h.Schema != Schema {
		return nil, errorf(CodeUsage, "this session speaks %s, the client %.40q", Schema, h.Schema)
	}
	fds, err = c.recv(q)
	switch {
	case inside: // what it sent is read: else the answer could be lost
		closeAll(fds)
		return nil, errorf(CodeUsage, "this session does what is asked from outside its domains only")
	case err != nil:
		return nil, errorf(CodeUsage, "the request: %v", err)
	}
	return fds, nil
}

func (b *broker) status() *Status {
	s := &Status{Schema: Schema, Peers: "any", Domains: []DomainStatus{}}
	if b.Outside {
		s.Peers = "outside"
	}
	for _, d := range b.domains {
		s.Domains = append(s.Domains, d.status())
	}
	return s
}
