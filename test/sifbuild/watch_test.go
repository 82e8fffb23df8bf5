package sifbuild

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// watch calls do at the nth thing that a build does to its cache and its
// scratch folder (a file made, written to, renamed, removed: inotify(7)), and
// returns how many there were until stop was called. Watching costs a build
// nothing, and the moments are spread over what it does, not over the clock.
func (p *place) watch(nth int, do func()) (stop func() int) {
	p.t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	p.must(err)
	wake, wakeW, err := os.Pipe()
	p.must(err)
	dirs := map[int32]string{}
	var add func(dir string)
	add = func(dir string) {
		const what = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
		wd, err := unix.InotifyAddWatch(fd, dir, what)
		if err != nil {
			return // it is gone again
		}
		dirs[int32(wd)] = dir
		entries, _ := os.ReadDir(dir) // what was made before the watch was set
		for _, e := range entries {
			if e.IsDir() {
				add(filepath.Join(dir, e.Name()))
			}
		}
	}
	add(p.path("cache"))
	add(p.path("scratch"))
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
					add(filepath.Join(dirs[e.Wd], name))
				}
				if total++; total == nth {
					do()
				}
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

// gone waits until none of the processes that the test's commands started is
// left: those of a killed one end soon after it.
func (p *place) gone() {
	p.t.Helper()
	until := time.Now().Add(time.Minute)
	for {
		pids := p.processes()
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
			p.t.Errorf("a minute after the end of its sifbuild there is a process still: %v", pids)
			return
		}
	}
}

// whole says that everything in the cache is: each image opens and can be read
// to its end, each step's archive too, no file is half there, and no lock is held.
func (p *place) whole() {
	p.t.Helper()
	p.wholeCache(p.path("cache"))
}

func (p *place) wholeCache(cache string) {
	p.t.Helper()
	p.must(filepath.WalkDir(cache, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
		case strings.HasPrefix(d.Name(), "."), filepath.Base(filepath.Dir(name)) == "locks":
			p.t.Errorf("in the cache: %s", strings.TrimPrefix(name, cache))
		case filepath.Ext(name) == ".sif":
			p.listing(name)
		case filepath.Ext(name) == ".tar":
			if err := readLayer(name); err != nil {
				p.t.Errorf("%s: %v", name, err)
			}
		}
		return nil
	}))
}

func readLayer(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	plain, err := zstd.NewReader(f)
	if err != nil {
		return err
	}
	defer plain.Close()
	for r := tar.NewReader(plain); ; {
		if _, err := r.Next(); err == io.EOF {
			_, err = io.Copy(io.Discard, plain) // and the checksum is right
			return err
		} else if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			return err
		}
	}
}
