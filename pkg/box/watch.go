package box

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/result"
)

// watch looks after the limits until the container has ended. pid is the
// process that it is below.
func (b *Box) watch(pid int) {
	go b.watchDisk()
	own := len(descendants(pid, 0)) // Apptainer's and fence's
	for wait := tick; ; {
		select {
		case <-b.done:
			return
		case <-time.After(wait):
		}
		begin := time.Now()
		l := b.o.Limits
		most := 0
		if l.Processes > 0 {
			most = own + l.Processes + 1 // more need not be counted
		}
		pids := descendants(pid, most)
		n := max(0, len(pids)-own)
		b.note(result.Usage{Processes: n})
		if l.Processes > 0 && n > l.Processes {
			b.limit("process_limit", "more than %d processes at once", l.Processes)
			return
		}
		if mem, ok := memory(pids, max(b.Usage().MemoryBytes, 1)); ok {
			b.note(result.Usage{MemoryBytes: mem})
			if l.Memory > 0 && mem > l.Memory {
				b.limit("memory_limit", "%s of memory in use, the limit is %s", size(mem), size(l.Memory))
				return
			}
		}
		wait = max(tick-time.Since(begin), 4*time.Since(begin)) // never more than a fifth of the time
	}
}

// descendants are the processes below one, as far as they are seen: those that
// fork meanwhile may be missing. There are no more than most of them, if that is
// not 0.
func descendants(pid, most int) []int {
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

// memory is what the processes have together, in bytes: what is shared counts
// once, and files in /dev/shm count whether or not anybody has mapped them. It
// is exact only if it is more than known; ok is false if it is not. Resident
// pages are no less than that and cheap to count.
func memory(pids []int, known int64) (bytes int64, ok bool) {
	var rss int64
	for _, pid := range pids {
		rss += resident(pid)
	}
	shm := sharedMemory(pids)
	if rss+shm <= known {
		return 0, false
	}
	var own, mapped int64
	for _, pid := range pids {
		if p, s, err := proportional(pid); err == nil {
			own, mapped = own+p-s, mapped+s
		} else {
			own += resident(pid)
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

// sharedMemory is how full the /dev/shm of the processes are, each one once.
func sharedMemory(pids []int) (bytes int64) {
	seen := map[string]bool{}
	for _, pid := range pids {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil || seen[ns] {
			continue
		}
		seen[ns] = true
		var st unix.Stat_t
		var sf unix.Statfs_t
		p := fmt.Sprintf("/proc/%d/root/dev/shm", pid)
		if unix.Stat(p, &st) != nil || unix.Statfs(p, &sf) != nil || sf.Type != unix.TMPFS_MAGIC || seen[fmt.Sprint(st.Dev)] {
			continue
		}
		seen[fmt.Sprint(st.Dev)] = true
		bytes += int64(sf.Blocks-sf.Bfree) * sf.Bsize
	}
	return bytes
}

// watchDisk looks how much the container has written, until it has ended.
func (b *Box) watchDisk() {
	for wait := tick; ; {
		select {
		case <-b.done:
			return
		case <-time.After(wait):
		}
		begin := time.Now()
		if _, err := os.Stat(b.o.in("overlay")); errors.Is(err, fs.ErrNotExist) {
			b.kill(nil) // b.why sees it, too
			return
		}
		n := written(b.o.in("overlay")) + written(b.o.in("tmp"))
		b.note(result.Usage{DiskBytes: n})
		if l := b.o.Limits.Disk; l > 0 && n > l {
			b.limit("disk_limit", "%s written, the limit is %s", size(n), size(l))
			return
		}
		wait = max(tick, 10*time.Since(begin))
	}
}

// written is what the files below dir take on disk, in bytes. What cannot be
// looked at does not count.
func written(dir string) (bytes int64) {
	seen := map[uint64]bool{} // hard links
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err != nil || unix.Lstat(p, &st) != nil {
			return nil
		}
		if st.Nlink > 1 && !d.IsDir() {
			if seen[st.Ino] {
				return nil
			}
			seen[st.Ino] = true
		}
		bytes += st.Blocks * 512 // stat(2)
		return nil
	})
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
