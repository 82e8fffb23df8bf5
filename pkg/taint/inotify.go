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

// opened hears which files are opened in some folders, whoever opens them.
type opened struct {
	f       *os.File
	folders sync.Map // watch descriptor (int32) -> path relative to the root
	done    chan struct{}

	// For who has waited for done only.
	seen map[string]bool
	lost string // why not all can have been heard, or ""
}

// newOpened begins to hear: inotify(7).
func newOpened() (*opened, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		if err == unix.EMFILE {
			return nil, errors.New("no inotify instance is left (fs.inotify.max_user_instances, which all of the user's processes share)")
		}
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	o := &opened{f: os.NewFile(uintptr(fd), "inotify"), done: make(chan struct{}), seen: map[string]bool{}}
	go o.listen()
	return o, nil
}

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
		wd, failed = unix.InotifyAddWatch(int(fd), fmt.Sprintf("/proc/self/fd/%d", dir), unix.IN_OPEN|unix.IN_ONLYDIR)
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
		if folder, ok := o.folders.Load(wd); ok && name != "" && mask&unix.IN_ISDIR == 0 {
			o.seen[path.Join(folder.(string), name)] = true
		}
	}
}

// past is a time to stop reading at.
var past = time.Unix(1, 0)

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
	defer o.f.Close()
	return raw.Control(func(fd uintptr) {
		buf := make([]byte, 64<<10)
		for {
			n, err := unix.Read(int(fd), buf)
			if err != nil || n <= 0 {
				return // EAGAIN
			}
			o.take(buf[:n])
		}
	})
}

// close ends it whatever it has heard.
func (o *opened) close() {
	o.f.Close()
	<-o.done
}
