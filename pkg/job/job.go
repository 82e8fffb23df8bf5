// Package job says what a batch job, or whatever else limits this process,
// leaves to it: processors, memory, time. It asks the kernel first, and Slurm's
// variables where Slurm has not told the kernel.
package job

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Here is where this process runs; tests have others.
type Here struct {
	Root   string                   // that /proc and /sys are in
	Getenv func(name string) string // of this process
}

// This is the process itself.
func This() Here { return Here{Root: "/", Getenv: os.Getenv} }

// OnLogin says that this node belongs to Slurm and this process to no job: heavy
// work is for a job there.
func (h Here) OnLogin() bool {
	_, err := exec.LookPath("sbatch")
	return err == nil && h.Getenv("SLURM_JOB_ID") == ""
}

// CPUs is how many processors this process may use, at least 1: those that it
// may run on (sched_getaffinity(2)), as far as no control group above it has a
// smaller quota, and no more than Slurm gave to the job on this node.
func (h Here) CPUs() int {
	n := runtime.GOMAXPROCS(0) // the affinity, and the quota of the group itself alone
	for _, g := range h.groups("self", "cpu") {
		quota, period := g.first("cpu.max"), 0.0
		if quota != "" {
			var p string
			quota, p, _ = strings.Cut(quota, " ")
			period = number(p)
		} else {
			quota, period = g.first("cpu.cfs_quota_us"), number(g.first("cpu.cfs_period_us"))
		}
		if q := number(quota); q > 0 && period > 0 {
			n = min(n, int(math.Ceil(q/period)))
		}
	}
	if s, err := strconv.Atoi(h.Getenv("SLURM_CPUS_ON_NODE")); err == nil && s > 0 {
		n = min(n, s)
	}
	return max(n, 1)
}

// Memory is how much more this process and those below it can take, and what
// does not let them take more.
type Memory struct {
	Bytes int64
	Of    string // "the node", "its control group" or "the Slurm job"
}

// Memory finds the least of what the node, each control group above this
// process, and the Slurm job have left. Pages of files that nobody has used for
// long count as left: the kernel takes them back first.
func (h Here) Memory() Memory {
	free := Memory{math.MaxInt64, "the node"}
	for line := range strings.Lines(h.read("proc/meminfo")) {
		if kb, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			free.Bytes = int64(number(strings.TrimSuffix(strings.TrimSpace(kb), " kB"))) << 10
		}
	}
	least := func(bytes float64, of string) {
		if b := int64(max(bytes, 0)); b < free.Bytes {
			free = Memory{b, of}
		}
	}
	for _, g := range h.groups("self", "memory") {
		limit, used, old := g.first("memory.max"), g.first("memory.current"), "inactive_file "
		if limit == "" {
			limit, used, old = g.first("memory.limit_in_bytes"), g.first("memory.usage_in_bytes"), "total_inactive_file "
		}
		// The first version writes "none" as a number that no machine has.
		if l := number(limit); l > 0 && l < 1<<60 && used != "" {
			left := l - number(used)
			for line := range strings.Lines(g.read("memory.stat")) {
				if v, ok := strings.CutPrefix(line, old); ok {
					left += number(strings.TrimSpace(v))
				}
			}
			least(left, "its control group")
		}
	}
	if l := h.slurmMemory(); l > 0 {
		least(l-float64(h.resident(os.Getpid())), "the Slurm job")
	}
	return free
}

// slurmMemory is what the job was given on this node, in bytes; 0 if Slurm does
// not limit it. Both variables are in MiB, see sbatch(1).
func (h Here) slurmMemory() float64 {
	if m := number(h.Getenv("SLURM_MEM_PER_NODE")); m > 0 {
		return m * (1 << 20)
	}
	return number(h.Getenv("SLURM_MEM_PER_CPU")) * number(h.Getenv("SLURM_CPUS_ON_NODE")) * (1 << 20)
}

// resident is the memory of a process and all below it, in bytes.
func (h Here) resident(pid int) int64 {
	below, pages := map[int][]int{}, map[int]int64{}
	stats, _ := filepath.Glob(filepath.Join(h.Root, "proc/[0-9]*/stat"))
	for _, name := range stats {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// proc_pid_stat(5): after the name in parentheses the state, the parent, ..., rss the 24th of all.
		f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(f) < 22 {
			continue
		}
		p := int(number(filepath.Base(filepath.Dir(name))))
		parent := int(number(f[1]))
		below[parent] = append(below[parent], p)
		pages[p] = int64(number(f[21]))
	}
	var sum int64
	for queue := []int{pid}; len(queue) > 0; {
		p := queue[0]
		sum += pages[p]
		queue = append(queue[1:], below[p]...)
		below[p] = nil
	}
	return sum * int64(os.Getpagesize())
}

// group is the folder of a control group.
type group string

func (g group) read(name string) string {
	data, _ := os.ReadFile(filepath.Join(string(g), name))
	return string(data)
}

// first is the first line of a file, "" if there is none.
func (g group) first(name string) string {
	line, _, _ := strings.Cut(g.read(name), "\n")
	return strings.TrimSpace(line)
}

// OOMKills is how many processes the kernel has killed for want of memory in the
// control group that a process is in, as far as that one counts: memory.events,
// or memory.oom_control in the first version
// (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst). The group is
// "" if none does.
func (h Here) OOMKills(pid int) (group string, n int) {
	for _, g := range h.groups(strconv.Itoa(pid), "memory") {
		for line := range strings.Lines(g.read("memory.events") + g.read("memory.oom_control")) {
			if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
				return string(g), int(number(strings.TrimSpace(v)))
			}
		}
	}
	return "", 0
}

// groups are the control groups of a controller that a process is in ("self":
// this one), the innermost first, of both versions (cgroups(7)).
func (h Here) groups(pid, controller string) (all []group) {
	mounts := h.read("proc/self/mountinfo")
	for line := range strings.Lines(h.read(filepath.Join("proc", pid, "cgroup"))) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // ID:CONTROLLERS:PATH
		if len(parts) != 3 {
			continue
		}
		names := strings.Split(parts[1], ",")
		if parts[1] != "" && !slices.Contains(names, controller) {
			continue
		}
		top, at := mounted(mounts, parts[1] == "", controller)
		if at == "" {
			continue
		}
		// Seen from within a container, the path may begin above what is mounted.
		path := strings.TrimPrefix(filepath.Clean("/"+parts[2]), strings.TrimSuffix(top, "/"))
		for ; ; path = filepath.Dir(path) {
			all = append(all, group(filepath.Join(h.Root, at, path)))
			if path == "/" || path == "." || path == "" {
				break
			}
		}
	}
	return all
}

// mounted finds in mountinfo, see proc_pid_mountinfo(5), where a hierarchy of
// control groups is, and which group is at its top.
func mounted(mountinfo string, v2 bool, controller string) (top, at string) {
	s := bufio.NewScanner(strings.NewReader(mountinfo))
	for s.Scan() {
		left, right, _ := strings.Cut(s.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) < 5 || len(r) < 3 {
			continue
		}
		if v2 && r[0] == "cgroup2" || !v2 && r[0] == "cgroup" && slices.Contains(strings.Split(r[2], ","), controller) {
			top, at = l[3], l[4]
		}
	}
	return top, at
}

func (h Here) read(name string) string {
	data, _ := os.ReadFile(filepath.Join(h.Root, name))
	return string(data)
}

// number is what a text says, 0 if that is no number: "max", "".
func number(s string) float64 {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0
	}
	return f
}
