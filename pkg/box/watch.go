package box

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/apptainer"
	"fence/pkg/result"
	"fence/pkg/session"
)

// watched is what is looked at.
type watched struct {
	pid     int      // all of the container is below it
	own     int      // how many processes are Apptainer's and fence's
	folders []string // files in memory
}

// watching is to be asked when only Apptainer and fence run.
func watching(pid int) watched {
	own := descendants(pid, 0)
	return watched{pid, len(own), memoryFolders(own)}
}

// watch looks after the limits until the container has ended.
func (b *Box) watch() {
	go b.watchDisk()
	for {
		begin := time.Now()
		if over := b.look(); over != nil {
			b.kill(over)
			return
		}
		select {
		case <-b.done:
			return
		case <-time.After(max(tick, 4*time.Since(begin))): // never more than a fifth of the time
		}
	}
}

// tick is the time between two looks.
const tick = time.Second

// look sees what is used now, but for the disk, and whether that is too much.
func (b *Box) look() *Error {
	w, l, most := b.watched, b.o.Limits, 0
	if l.Processes > 0 {
		most = w.own + l.Processes + 1 // more need not be counted
	}
	pids := descendants(w.pid, most)
	n := max(0, len(pids)-w.own)
	b.note(result.Usage{Processes: n})
	if l.Processes > 0 && n > l.Processes {
		return limit("process_limit", "more than %d processes at once", l.Processes)
	}
	n = b.kills()
	b.outOfMemory(n, n, session.Exit{})
	known := b.Usage().MemoryBytes
	if l.Memory > 0 {
		known = min(known, l.Memory)
	}
	sizes := map[int]int64{}
	for _, pid := range pids {
		sizes[pid] = resident(pid)
	}
	together.looked(b, sizes)
	if mem, ok := memory(sizes, taken(w.folders), known); ok {
		b.note(result.Usage{MemoryBytes: mem})
		if l.Memory > 0 && mem > l.Memory {
			return limit("memory_limit", "%s of memory in use, the limit is %s", size(mem), size(l.Memory))
		}
	}
	return nil
}

// listsChildren says that this kernel lists a thread's children
// (CONFIG_PROC_CHILDREN, see proc_tid_children(5)).
var listsChildren = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/thread-self/children")
	return err == nil
})

// descendants are the processes below one, as far as they are seen: those that
// fork meanwhile may be missing. There may be no more than most of them, if that
// is not 0.
func descendants(pid, most int) []int {
	if !listsChildren() {
		return apptainer.Below(pid)
	}
	var all []int
	for next := []int{pid}; len(next) > 0; {
		p := next[0]
		next = next[1:]
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p))
		if err != nil {
			continue
		}
		for _, t := range tasks {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", p, t.Name()))
			if err != nil {
				continue
			}
			for _, f := range strings.Fields(string(data)) {
				child, err := strconv.Atoi(f)
				if err != nil {
					continue
				}
				all, next = append(all, child), append(next, child)
				if most > 0 && len(all) >= most {
					return all
				}
			}
		}
	}
	return all
}

var pageSize = int64(os.Getpagesize())

// memory is what processes, with their resident pages in bytes, have together:
// what is shared counts once, and files in /dev/shm count whether or not anybody
// has mapped them. It is looked at closely only if it may be more than known,
// else ok is false: resident pages are no less, and cheap to count. shm is what
// the files take.
func memory(sizes map[int]int64, shm, known int64) (bytes int64, ok bool) {
	var rss int64
	for _, r := range sizes {
		rss += r
	}
	if rss+shm <= known {
		return 0, false
	}
	var own, mapped int64
	for pid, r := range sizes {
		if p, s, err := proportional(pid); err == nil {
			own, mapped = own+p-s, mapped+s
		} else {
			own += r
		}
	}
	return own + max(mapped, shm), true
}

// resident is the second field of /proc/PID/statm, see proc_pid_statm(5).
func resident(pid int) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if f := strings.Fields(string(data)); err == nil && len(f) > 1 {
		n, _ := strconv.ParseInt(f[1], 10, 64)
		return n * pageSize
	}
	return 0
}

// proportional are Pss and Pss_Shmem of /proc/PID/smaps_rollup, in bytes; see
// proc_pid_smaps(5) and Documentation/ABI/testing/procfs-smaps_rollup.
func proportional(pid int) (pss, shmem int64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, 0, err
	}
	pss, shmem = parseRollup(string(data))
	return pss, shmem, nil
}

func parseRollup(text string) (pss, shmem int64) {
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if len(f) != 2 || f[1] != "kB" {
			continue
		}
		n, _ := strconv.ParseInt(f[0], 10, 64)
		switch name {
		case "Pss":
			pss = n << 10
		case "Pss_Shmem":
			shmem = n << 10
		}
	}
	return pss, shmem
}

// memoryFolders are the /dev/shm of the domains, as this process can reach them:
// not by way of the container's root, a FUSE file system that is closed to who
// is outside its user namespace, but from the folders of terminals that the
// session's broker has open. pids are Apptainer's and fence's.
func memoryFolders(pids []int) (paths []string) {
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd/", pid)
		fds, _ := os.ReadDir(dir)
		for _, fd := range fds {
			p := dir + fd.Name()
			if to, err := os.Readlink(p); err == nil && to == "/dev/pts" {
				paths = append(paths, p+"/../shm")
			}
		}
	}
	return paths
}

// taken is how full file systems in memory are, each one once.
func taken(paths []string) (bytes int64) {
	seen := map[uint64]bool{}
	for _, p := range paths {
		var st unix.Stat_t
		var sf unix.Statfs_t
		if unix.Stat(p, &st) == nil && unix.Statfs(p, &sf) == nil && sf.Type == unix.TMPFS_MAGIC && !seen[st.Dev] {
			seen[st.Dev] = true
			bytes += int64(sf.Blocks-sf.Bfree) * sf.Bsize
		}
	}
	return bytes
}

// size is a number of bytes for people.
func size(n int64) string {
	for _, u := range []struct {
		name string
		of   int64
	}{{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}} {
		if n >= u.of {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.of), u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
