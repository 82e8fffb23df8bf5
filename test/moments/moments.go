// Package moments lets tests wait for what a program does, where a clock would
// say nothing on a busy machine: what it does to files, and the end of processes.
package moments

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Watch calls each with the number, from 1, of every thing that is done below
// the folders (a file made, written to, renamed, removed: inotify(7)), and
// returns how many there were until stop was called. Watching costs the
// program nothing, and the moments are spread over what it does, not over the
// clock. The folders are there; those that are made in them are watched, too.
func Watch(t testing.TB, each func(n int), dirs ...string) (stop func() int) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	wake, wakeW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	watched := map[int32]string{}
	var add func(dir string)
	add = func(dir string) {
		const what = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
		wd, err := unix.InotifyAddWatch(fd, dir, what)
		if err != nil {
			return // it is gone again
		}
		watched[int32(wd)] = dir
		entries, _ := os.ReadDir(dir) // what was made before the watch was set
		for _, e := range entries {
			if e.IsDir() {
				add(filepath.Join(dir, e.Name()))
			}
		}
	}
	for _, dir := range dirs {
		add(dir)
	}
	total, done := 0, make(chan struct{})
	read := func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := unix.Read(fd, buf)
			if err != nil {
				return
			}
			for at := 0; at < n; {
				e := (*unix.InotifyEvent)(unsafe.Pointer(&buf[at]))
				name := strings.TrimRight(string(buf[at+unix.SizeofInotifyEvent:at+unix.SizeofInotifyEvent+int(e.Len)]), "\x00")
				at += unix.SizeofInotifyEvent + int(e.Len)
				if e.Mask&unix.IN_ISDIR != 0 && e.Mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
					add(filepath.Join(watched[e.Wd], name))
				}
				total++
				each(total)
			}
		}
	}
	go func() {
		defer close(done)
		for {
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(wake.Fd()), Events: unix.POLLIN}}
			if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
				return
			}
			read()
			if fds[1].Revents != 0 {
				return
			}
		}
	}()
	return func() int {
		wakeW.Close()
		<-done
		wake.Close()
		unix.Close(fd)
		return total
	}
}

// Gone waits until no process is among those that are asked for: those of a
// program that was killed end soon after it. What is there after a minute is an
// error, which says of each what it is.
func Gone(t testing.TB, processes func() []int) {
	t.Helper()
	until := time.Now().Add(time.Minute)
	for {
		pids := processes()
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue // it is gone
			}
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			_, _ = unix.Poll(fds, int(time.Until(until).Milliseconds()))
			unix.Close(fd)
		}
		if time.Now().After(until) {
			for _, pid := range pids {
				args, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
				t.Errorf("a minute after the end of what started it there is a process still: %d %q", pid, args)
			}
			return
		}
	}
}
