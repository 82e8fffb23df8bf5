package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/internal/version"
)

// Options say what to try beside what every node is asked. The zero Options
// are a complete run.
type Options struct {
	Label     string        // of the report
	Shared    []string      // paths of shared filesystems, absolute
	TCP       []string      // HOST:PORT to connect to, outside the node
	UDP       []string      // HOST:PORT to send one byte to
	Canary    string        // the file that Listen wrote; "" for none
	Proxy     string        // path of an egress proxy's Unix socket
	Allow     []string      // HOST:PORT that the proxy must let through
	Deny      []string      // HOST:PORT that the proxy must refuse
	Skip      []string      // ids not to try, or groups of them ("net.dns" names net.dns.udp too)
	WriteTest bool          // also make named files, removed at once, where nameless ones cannot be made
	Timeout   time.Duration // of the whole run; 0: one minute
}

// Environment variables that add to Options: a fence starts its command with
// a command line that the operator wrote once.
const (
	SharedVar = "PROBE_SHARED" // paths, separated by colons
	SkipVar   = "PROBE_SKIP"   // ids, separated by commas
)

const (
	attemptLimit = 2 * time.Second
	fsLimit      = 3 * time.Second
	startLimit   = 10 * time.Second // for a worker's first word
	reapLimit    = time.Second      // for a killed worker to be gone
	runLimit     = time.Minute
)

// stretch is by how much deadlines are longer on a busy node: an attempt that
// waits for a processor does not hang. loadavg and stat are texts of /proc.
func stretch(loadavg, stat string) time.Duration {
	const most = 5
	load, err := strconv.ParseFloat(strings.SplitN(loadavg, " ", 2)[0], 64)
	cpus := strings.Count(stat, "\ncpu")
	if err != nil || cpus == 0 || load <= float64(cpus) {
		return 1
	}
	return min(most, time.Duration(load/float64(cpus)+1))
}

func stretchNow() time.Duration {
	loadavg, err := os.ReadFile("/proc/loadavg")
	stat, err2 := os.ReadFile("/proc/stat")
	if err != nil || err2 != nil {
		return 1
	}
	return stretch(string(loadavg), string(stat))
}

// RunAll makes every check and returns the report. A check that hangs, dies
// or cannot be made is a finding; the error is for a run that could not be:
// wrong options, or ctx ended.
//
// Nothing it does changes the node: see the package comment. The process
// itself only starts workers, and reads of /proc/self what cannot hang.
func RunAll(ctx context.Context, o Options) (Report, error) {
	return runAll(ctx, o, Checks())
}

func runAll(ctx context.Context, o Options, table []Check) (Report, error) {
	start := time.Now()
	o, canary, err := o.complete(table)
	if err != nil {
		return Report{}, err
	}
	limit := o.Timeout
	if limit == 0 {
		limit = runLimit
	}
	r := Report{
		Schema:   ReportSchema,
		Tool:     Tool{Name: "probe", Version: version.String()},
		Run:      Run{Label: o.Label, Time: start.UTC().Format(time.RFC3339Nano), Argv: os.Args},
		Subject:  subject(),
		Controls: controls(),
	}
	run := &run{
		table: table, found: map[Key]Finding{}, deadline: start.Add(limit), stretch: stretchNow(), skip: o.Skip,
		task: task{
			Shared: o.Shared, TCP: o.TCP, UDP: o.UDP, Proxy: o.Proxy, Allow: o.Allow, Deny: o.Deny, WriteTest: o.WriteTest,
			Canary: canary, Inherited: inheritedFDs(), Parent: os.Getpid(), Controls: r.Controls,
		},
	}
	// What is in force on this process is known before the rest is read by it.
	run.classes(ctx, []string{classLandlock, classListener})
	r.Controls = run.control(r.Controls)
	run.task.Controls = r.Controls
	run.classes(ctx, run.others())
	if err := ctx.Err(); err != nil {
		return Report{}, fmt.Errorf("the run was stopped: %w", err)
	}
	r.Checks = run.report()
	r.Summary = summarise(r.Checks)
	r.Run.DurationMS = time.Since(start).Milliseconds()
	return r, nil
}

// complete adds what the environment says, and refuses what cannot be meant:
// a word that is passed over would change what a report rests on. In a
// container variables that mean nothing may be the image's.
func (o Options) complete(table []Check) (Options, *Canary, error) {
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "PROBE_") && name != SharedVar && name != SkipVar && new(site).container() == "" {
			return o, nil, &UnknownVarError{name}
		}
	}
	skip := strings.Split(os.Getenv(SkipVar), ",")
	known := skippable(table)
	for i, id := range slices.Concat(o.Skip, skip) {
		if id == "" || slices.Contains(known, id) {
			continue
		}
		from := "skip"
		if i >= len(o.Skip) {
			from = SkipVar
		}
		return o, nil, fmt.Errorf("%s: %w", from, &UnknownIDError{id, known})
	}
	o.Shared = slices.Concat(o.Shared, strings.Split(os.Getenv(SharedVar), ":"))
	o.Skip = slices.Concat(o.Skip, skip)
	for i, p := range o.Shared {
		if p == "" {
			continue
		}
		if !filepath.IsAbs(p) {
			return o, nil, fmt.Errorf("shared path %q: must be absolute", p)
		}
		o.Shared[i] = filepath.Clean(p)
	}
	o.Shared = dedupe(o.Shared)
	o.Skip = dedupe(o.Skip)
	for _, list := range [][]string{o.TCP, o.UDP, o.Allow, o.Deny} {
		for _, hp := range list {
			if err := checkHostPort(hp); err != nil {
				return o, nil, err
			}
		}
	}
	if o.Proxy != "" && !filepath.IsAbs(o.Proxy) {
		return o, nil, fmt.Errorf("proxy socket %q: must be an absolute path", o.Proxy)
	}
	if o.Proxy == "" && len(o.Allow)+len(o.Deny) > 0 {
		return o, nil, errors.New("hosts to ask a proxy for, but no proxy socket")
	}
	if o.Timeout < 0 {
		return o, nil, fmt.Errorf("time limit %v: must be positive", o.Timeout)
	}
	if o.Canary == "" {
		return o, nil, nil
	}
	c, err := readCanary(o.Canary)
	return o, c, err
}

// UnknownVarError says that a variable begins with PROBE_ and means nothing.
type UnknownVarError struct{ Name string }

func (e *UnknownVarError) Error() string {
	return fmt.Sprintf("the variable %s is not known", clip(printable(e.Name), 60))
}

// skippable are the ids of a table, and the groups that they are in.
func skippable(table []Check) []string {
	var known []string
	for _, c := range table {
		for id := c.ID; id != ""; id = parent(id) {
			known = append(known, id)
		}
	}
	return dedupe(known)
}

// run is a run in progress.
type run struct {
	table    []Check
	task     task
	skip     []string
	deadline time.Time
	stretch  time.Duration // a factor

	mu     sync.Mutex
	found  map[Key]Finding
	order  []Key
	values map[string]int
}

// skipped says whether the operator left the id out.
func (r *run) skipped(id string) bool {
	return slices.ContainsFunc(r.skip, func(s string) bool { return id == s || strings.HasPrefix(id, s+".") })
}

// others are the classes beside those that run first.
func (r *run) others() []string {
	var out []string
	for _, c := range r.table {
		if c.Worker != classLandlock && c.Worker != classListener && c.Worker != classNone {
			out = append(out, c.Worker)
		}
	}
	return dedupe(out)
}

// classes runs the workers of several classes, a few at a time.
func (r *run) classes(ctx context.Context, names []string) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, max(4, runtime.NumCPU()))
	for _, name := range names {
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer func() { <-slots; wg.Done() }()
			r.class(ctx, name)
		}()
	}
	wg.Wait()
}

// add notes a finding of a check, unless the attempt already has one.
func (r *run) add(f Finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := f.Key()
	if _, ok := r.found[k]; ok {
		return
	}
	r.found[k] = f
	r.order = append(r.order, k)
}

// report puts the findings in the order of the table, and gives each what
// its check says of it.
func (r *run) report() []Finding {
	var out []Finding
	for _, c := range r.table {
		if c.Worker == classNone {
			continue
		}
		any := false
		for _, k := range r.order {
			if k.ID == c.ID {
				out = append(out, c.dress(r.found[k]))
				any = true
			}
		}
		if !any {
			out = append(out, c.dress(Finding{ID: c.ID, Outcome: Error, Evidence: "BUG: no attempt was made"}))
		}
	}
	for _, c := range r.table {
		if c.Worker != classNone {
			continue
		}
		f := Finding{Outcome: Skipped, Evidence: "left out"}
		if !r.skipped(c.ID) {
			f = compose(c.ID, out)
		}
		f.ID = c.ID
		out = append(out, c.dress(f))
	}
	return out
}

// dress adds to a finding what its check says. A finding may weigh less than
// its check, never more.
func (c Check) dress(f Finding) Finding {
	f.Group, f.Attack = c.Group, c.Attack
	if f.Severity == "" {
		f.Severity = c.Severity
	}
	return f
}

func summarise(fs []Finding) map[Outcome]int {
	sum := map[Outcome]int{}
	for _, f := range fs {
		sum[f.Outcome]++
	}
	return sum
}

// control fills in what only workers could find out.
func (r *run) control(c Controls) Controls {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.Landlock = LandlockState{ABI: r.values["landlock.abi"], Errata: r.values["landlock.errata"], Layers: -1}
	if n, ok := r.values["landlock.layers"]; ok {
		c.Landlock.Layers = n
	}
	c.Seccomp.Listener = r.values["seccomp.listener"] == 1
	return c
}

// controls are the controls that /proc/self names.
func controls() Controls {
	c := Controls{Namespaces: map[string]uint64{}}
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		// prctl says less, but needs no /proc.
		if mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0); err == nil {
			c.Seccomp.Mode = mode
		}
		if nnp, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil {
			c.NoNewPrivs = nnp == 1
		}
		return c
	}
	text := string(data)
	c.NoNewPrivs = statusField(text, "NoNewPrivs") == "1"
	c.Seccomp.Mode, _ = strconv.Atoi(statusField(text, "Seccomp"))
	c.Seccomp.Filters, _ = strconv.Atoi(statusField(text, "Seccomp_filters"))
	c.CapEff, c.CapBnd = statusField(text, "CapEff"), statusField(text, "CapBnd")
	for _, ns := range namespaces {
		if inode, err := namespaceInode("/proc/self/ns/" + ns); err == nil {
			c.Namespaces[ns] = inode
		}
	}
	return c
}

var namespaces = []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"}

// namespaceInode reads the inode out of a link such as "net:[4026531840]".
func namespaceInode(link string) (uint64, error) {
	text, err := os.Readlink(link)
	if err != nil {
		return 0, err
	}
	_, n, _ := strings.Cut(strings.TrimSuffix(text, "]"), "[")
	return strconv.ParseUint(n, 10, 64)
}

func subject() Subject {
	s := Subject{UID: os.Getuid(), GID: os.Getgid(), Arch: machine(), Runtime: newSite(task{}, nil).container()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		s.Hostname = unix.ByteSliceToString(u.Nodename[:])
		s.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if data, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		s.BootID = strings.TrimSpace(string(data))
	}
	for name, v := range map[string]string{"job_id": "SLURM_JOB_ID", "step_id": "SLURM_STEP_ID", "node": "SLURMD_NODENAME"} {
		if val := os.Getenv(v); val != "" {
			if s.Slurm == nil {
				s.Slurm = map[string]string{}
			}
			s.Slurm[name] = val
		}
	}
	return s
}

// machine is the architecture as uname(1) calls it.
func machine() string {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		return unix.ByteSliceToString(u.Machine[:])
	}
	return runtime.GOARCH
}

// inherited is a descriptor that this process was started with.
type inherited struct {
	FD   int    `json:"fd"`
	Link string `json:"link"`
	Copy int    `json:"copy,omitempty"` // where the worker finds it; 0: at FD
}

// inheritedFDs lists the descriptors that came through exec: those that are
// not close-on-exec, which all of Go's own are. Reading the links touches no
// filesystem but /proc.
func inheritedFDs() []inherited {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var out []inherited
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		link, _ := os.Readlink("/proc/self/fd/" + e.Name())
		out = append(out, inherited{FD: fd, Link: link})
	}
	slices.SortFunc(out, func(a, b inherited) int { return a.FD - b.FD })
	return out
}

func sysErr(name string, e syscall.Errno) string {
	if e == 0 {
		return name + " = 0"
	}
	return fmt.Sprintf("%s = -1 %s", name, errnoName(e))
}
