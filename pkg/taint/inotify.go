package taint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// opened hears which files are opened in some folders, and which come and go
// there, whoever does it.
type opened struct {
	f       *os.File
	root    *os.File              // the upper folder
	follows func(dir string) bool // whether a folder that is made is listened at, too
	folders sync.Map              // watch descriptor (int32) -> path relative to the root
	done    chan struct{}

	// For who has waited for done only.
	seen map[string]bool
	// stirred counts how often what is at a path came, went or was written: a
	// copy that the overlay makes of the image's file comes once.
	stirred map[string]int
	puts    map[string]put
	lost    string // why not all can have been heard, or ""
}

// put is how often something came to be at a path. To make a file and to write
// it is one time.
type put struct {
	times int
	fresh bool // it has come, and was not closed yet by who wrote it
	open  bool // it was opened, and not written since
	runs  int  // how often it was opened and written since it was closed
}

// hear takes an event. What fuse-overlayfs does with times and modes looks like
// writing, but by nobody who opened the file, or like opening for it.
func (p put) hear(mask uint32) put {
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		return put{times: p.times + 1, fresh: true}
	case mask&unix.IN_OPEN != 0:
		p.open = true
	case mask&unix.IN_MODIFY != 0 && p.open:
		p.open = false
		// What was linked or moved here is opened and written at once; then this is
		// the second run, and else that of who made it.
		if p.runs++; p.runs == 2 || !p.fresh {
			p.times++
		}
	case mask&unix.IN_CLOSE_WRITE != 0:
		return put{times: p.times}
	}
	return p
}

// newOpened makes ready to hear: inotify(7). Call begin when folders are added.
func newOpened(upper string, follows func(string) bool) (*opened, error) {
	root, err := os.OpenFile(upper, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		root.Close()
		if err == unix.EMFILE {
			return nil, errors.New("no inotify instance is left (fs.inotify.max_user_instances, which all of the user's processes share)")
		}
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	o := &opened{
		f: os.NewFile(uintptr(fd), "inotify"), root: root, follows: follows, done: make(chan struct{}),
		seen: map[string]bool{}, stirred: map[string]int{}, puts: map[string]put{},
	}
	return o, nil
}

// moves are what happens to names.
const moves = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE

// add hears of the folder at p, name in the folder that fd is open on.
func (o *opened) add(p string, fd int, name string) error {
	dir, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	raw, err := o.f.SyscallConn()
	if err != nil {
		return err
	}
	var wd int
	var failed error
	err = raw.Control(func(fd uintptr) {
		wd, failed = unix.InotifyAddWatch(int(fd), fmt.Sprintf("/proc/self/fd/%d", dir), unix.IN_OPEN|moves|unix.IN_MODIFY|unix.IN_CLOSE_WRITE|unix.IN_ONLYDIR)
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	o.folders.Store(int32(wd), p)
	return nil
}

// listen takes what the kernel says until finish.
func (o *opened) listen() {
	defer close(o.done)
	buf := make([]byte, 64<<10)
	for {
		n, err := o.f.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			o.lost = err.Error()
			return
		}
		o.take(buf[:n])
	}
}

// take reads events.
func (o *opened) take(b []byte) {
	for len(b) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(b))
		mask := binary.NativeEndian.Uint32(b[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00")
		b = b[end:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			o.lost = "more files were opened at once than the kernel remembers (fs.inotify.max_queued_events)"
		}
		folder, ok := o.folders.Load(wd)
		if !ok || name == "" {
			continue
		}
		if len(o.seen)+len(o.stirred) > tooMany {
			o.lost = "more files came, went and were opened than are remembered"
			continue
		}
		p := path.Join(folder.(string), name)
		switch {
		case mask&unix.IN_ISDIR != 0:
			if mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
				o.enter(p, 8)
			}
			continue
		case mask&unix.IN_MODIFY != 0:
			o.stirred[p] += 2
		case mask&moves != 0:
			o.stirred[p]++
		}
		if mask&unix.IN_OPEN != 0 {
			o.seen[p] = true
		}
		if was := o.puts[p]; was != was.hear(mask) {
			o.puts[p] = was.hear(mask)
		}
	}
}

// past is a time to stop reading at.
var past = time.Unix(1, 0)

// enter hears of a folder that came up, and of those in it. What it has by then
// came once.
func (o *opened) enter(p string, depth int) {
	if depth == 0 || !o.follows(p) {
		return
	}
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(int(o.root.Fd()), p, &how)
	if err != nil {
		return // gone again
	}
	dir := os.NewFile(uintptr(fd), p)
	defer dir.Close()
	list, _ := dir.ReadDir(-1)
	for _, e := range list {
		if !e.IsDir() {
			at := path.Join(p, e.Name())
			o.stirred[at]++
			o.puts[at] = o.puts[at].hear(unix.IN_CREATE)
		}
	}
	if err := o.add(p, fd, "."); err != nil && o.lost == "" {
		o.lost = fmt.Sprintf("/%s cannot be watched: %v", p, err)
	}
	for _, e := range list {
		if e.IsDir() {
			o.enter(path.Join(p, e.Name()), depth-1)
		}
	}
}

// finish ends the listening when all that has happened is heard.
func (o *opened) finish() error {
	if err := o.f.SetReadDeadline(past); err != nil {
		return err
	}
	<-o.done
	raw, err := o.f.SyscallConn()
	if err != nil {
		return err
	}
	defer o.root.Close()
	defer o.f.Close()
	return raw.Control(func(fd uintptr) { o.drain(fd) })
}

// drain takes what is there.
func (o *opened) drain(fd uintptr) {
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(int(fd), buf)
		if err != nil || n <= 0 {
			return // EAGAIN
		}
		o.take(buf[:n])
	}
}

// begin forgets what was opened so far, by the caller itself, and hears from
// now on.
func (o *opened) begin() error {
	defer func() { go o.listen() }()
	raw, err := o.f.SyscallConn()
	if err != nil {
		return err
	}
	err = raw.Control(func(fd uintptr) { o.drain(fd) })
	clear(o.seen)
	clear(o.stirred)
	clear(o.puts)
	o.lost = ""
	return err
}

// close ends it whatever it has heard.
func (o *opened) close() {
	o.f.Close()
	<-o.done
	o.root.Close()
}
