package session

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reaper waits for every child of this process: those that it started, and
// those that came to it because their own parent has ended.
type reaper struct {
	mu    sync.Mutex // while it is held nothing is reaped, so no pid of a child is another's
	procs map[int]*proc
	spare map[int]bool // helpers of the launches, which end with their owners
}

type proc struct {
	last bool // what is left of its session ends with it
	done func(unix.WaitStatus, *unix.Rusage)
}

func newReaper() (*reaper, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl(PR_SET_CHILD_SUBREAPER)", err)
	}
	r := &reaper{procs: map[int]*proc{}, spare: map[int]bool{}}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go func() {
		for range ended {
			for r.reap() {
			}
		}
	}()
	return r, nil
}

// start is fork and exec; done is told how the child ended.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr, done func(unix.WaitStatus, *unix.Rusage)) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err == nil {
		r.procs[pid] = &proc{done: done}
	}
	return pid, err
}

// adopt takes a process that has become a child of ours for one that was
// started here. It says no if that is none.
func (r *reaper) adopt(pid int, done func(unix.WaitStatus, *unix.Rusage)) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.ContainsFunc(processes(), func(s process) bool { return s.pid == pid && s.parent == os.Getpid() }) || r.procs[pid] != nil {
		return false
	}
	r.procs[pid] = &proc{done: done}
	return true
}

// with calls f unless the child has been reaped: its pid is its own.
func (r *reaper) with(pid int, f func(*proc)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.procs[pid]; p != nil {
		f(p)
	}
}

func (r *reaper) reap() bool {
	r.mu.Lock()
	// First only looked at: as long as it is not reaped, the pid stands for its
	// process group and session.
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	pid := int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), 16))) // si_pid
	if err == unix.EINTR {
		r.mu.Unlock()
		return true
	}
	if err != nil || pid == 0 {
		r.mu.Unlock()
		return false
	}
	p := r.procs[pid]
	if p != nil && p.last {
		killSession(pid)
	}
	var ws unix.WaitStatus
	var ru unix.Rusage
	_, err = unix.Wait4(pid, &ws, 0, &ru)
	delete(r.procs, pid)
	delete(r.spare, pid)
	r.mu.Unlock()
	if p != nil && err == nil {
		p.done(ws, &ru)
	}
	return true
}

// keep spares the children that are there now.
func (r *reaper) keep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range processes() {
		if s.parent == os.Getpid() && r.procs[s.pid] == nil {
			r.spare[s.pid] = true
		}
	}
}

// sweep kills what came to us, and what comes when that has died. It reports
// whether an end was reached: not while there is a zombie either, whose
// children may have been born after /proc was listed. Nobody but us can take
// away a child of ours, so a listing without any says that there is none.
func (r *reaper) sweep() bool {
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		found := false
		for _, s := range processes() {
			if s.parent == os.Getpid() && r.procs[s.pid] == nil && !r.spare[s.pid] {
				found = true
				_ = unix.Kill(s.pid, unix.SIGKILL)
			}
		}
		r.mu.Unlock()
		if !found {
			return true
		}
	}
	return false
}

// endAll is sweep for every child, whoever waits for it.
func (r *reaper) endAll() {
	r.mu.Lock()
	r.procs, r.spare = map[int]*proc{}, map[int]bool{}
	r.mu.Unlock()
	r.sweep()
}

// killSession ends every process of a session whose leader is not reaped.
func killSession(sid int) {
	for begin := time.Now(); time.Since(begin) < patience; {
		found := false
		_ = unix.Kill(-sid, unix.SIGKILL)
		for _, s := range processes() {
			if s.session == sid && (s.threads > 1 || s.state != "Z" && s.state != "X") { // its first thread may have ended alone
				found = unix.Kill(s.pid, unix.SIGKILL) == nil || found
			}
		}
		if !found {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

type process struct {
	pid, parent, session, threads int
	state                         string
}

// processes is what /proc shows.
func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var all []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := processOf(pid); ok { // it may have ended
			all = append(all, p)
		}
	}
	return all
}

func processOf(pid int) (p process, ok bool) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	text := string(data)
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // the name may hold anything
	if len(f) < 18 {
		return p, false
	}
	p = process{pid: pid, state: f[0]}
	p.parent, _ = strconv.Atoi(f[1])
	p.session, _ = strconv.Atoi(f[3])
	p.threads, _ = strconv.Atoi(f[17])
	return p, true
}

// lineage is a process, its parent, and so on, as far as it can be seen.
func lineage(pid int) (line []int) {
	for {
		line = append(line, pid)
		p, ok := processOf(pid)
		if !ok {
			return line
		}
		pid = p.parent
	}
}

// descends says whether a process comes of this one. One with whom we share no
// ancestor that can be seen may, and so does one that has ended.
func descends(pid int) bool {
	for range 10 { // it may lose a parent meanwhile
		line := lineage(pid)
		if slices.Contains(line, os.Getpid()) {
			return true
		}
		ours := lineage(os.Getppid())
		if slices.ContainsFunc(line, func(p int) bool { return slices.Contains(ours, p) }) {
			return false
		}
	}
	return true
}
