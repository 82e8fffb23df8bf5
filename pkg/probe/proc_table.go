package probe

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// process is one line of the process table, as far as /proc/PID/status tells.
type process struct {
	pid, ppid, uid, filters int
	name                    string
}

// maxProcs bounds the process table that is read.
const maxProcs = 20000

// procs is the process table.
func (s *site) procs() ([]process, error) {
	s.procsOnce.Do(func() {
		d, err := os.Open("/proc")
		if err != nil {
			s.procsErr = err
			return
		}
		defer d.Close()
		names, err := d.Readdirnames(-1)
		if err != nil {
			s.procsErr = err
			return
		}
		for _, n := range names {
			pid, err := strconv.Atoi(n)
			if err != nil || len(s.procList) >= maxProcs {
				continue
			}
			// Not cmdline: reading that waits for the other process's memory.
			data, err := os.ReadFile("/proc/" + n + "/status")
			if err != nil {
				continue
			}
			s.procList = append(s.procList, parseStatus(pid, string(data)))
		}
	})
	return s.procList, s.procsErr
}

func parseStatus(pid int, text string) process {
	p := process{pid: pid, uid: -1, name: statusField(text, "Name")}
	p.ppid, _ = strconv.Atoi(statusField(text, "PPid"))
	if uids := strings.Fields(statusField(text, "Uid")); len(uids) > 1 {
		p.uid, _ = strconv.Atoi(uids[1])
	}
	p.filters, _ = strconv.Atoi(statusField(text, "Seccomp_filters"))
	return p
}

// kernelThread says whether the process is part of the kernel.
func (p process) kernelThread() bool { return p.pid == 2 || p.ppid == 2 }

// outsiders splits this user's processes, other than probe itself and what
// it started, into those outside the fence and those that run behind as many
// seccomp filters as this one: other commands of the same session, most
// likely, which a fence lets it reach. Without a filter here all are outside.
func outsiders(ps []process, self, parent, uid, filters int) (outside, beside []process) {
	children := map[int][]int{}
	for _, p := range ps {
		children[p.ppid] = append(children[p.ppid], p.pid)
	}
	own := map[int]bool{}
	var mark func(int)
	mark = func(pid int) {
		if !own[pid] {
			own[pid] = true
			for _, c := range children[pid] {
				mark(c)
			}
		}
	}
	mark(self)
	mark(parent)
	for _, p := range ps {
		switch {
		case own[p.pid] || p.uid != uid || p.kernelThread():
		case filters > 0 && p.filters == filters:
			beside = append(beside, p)
		default:
			outside = append(outside, p)
		}
	}
	return outside, beside
}

func (s *site) split() (outside, beside []process, err error) {
	ps, err := s.procs()
	if err != nil {
		return nil, nil, err
	}
	outside, beside = outsiders(ps, os.Getpid(), s.Parent, os.Geteuid(), s.Controls.Seccomp.Filters)
	if c := s.Canary; c != nil && c.PIDNS != 0 && c.PIDNS == s.Controls.Namespaces["pid"] {
		beside = slices.DeleteFunc(beside, func(p process) bool { return p.pid == c.PID })
		outside = slices.DeleteFunc(outside, func(p process) bool { return p.pid == c.PID })
		outside = append([]process{{pid: c.PID, uid: os.Geteuid(), name: "the canary"}}, outside...)
	}
	return outside, beside, nil
}

// pidns is the mechanism by which processes are out of sight, if there is one.
func (s *site) pidns() string {
	if n := s.Controls.Namespaces["pid"]; n != 0 && n != initialNS["pid"] {
		return "pidns"
	}
	return ""
}
