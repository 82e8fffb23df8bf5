package box

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/result"
)

// watchDisk looks how much the container has written, until it has ended.
func (b *Box) watchDisk() {
	for wait := tick; ; {
		select {
		case <-b.done:
			return
		case <-time.After(wait):
		}
		begin := time.Now()
		b.noRoom()
		// Where the disk has less room than this box may take, what cannot be seen
		// may be why. Neighbours may be, too: then it costs a closer look.
		l := b.o.Limits.Disk
		switch d, there := b.count(disk{closer: l > 0 && b.free.bytes-room(b.o.Scratch).bytes > l}); {
		case !there:
			b.kill(nil) // b.why sees it, too
			return
		case l > 0 && d.bytes > l:
			b.kill(limit("disk_limit", "%s written, the limit is %s", size(d.bytes), size(l)))
			return
		case l > 0 && d.deep:
			b.kill(limit("disk_limit", "folders are nested more than %d deep: what is in them cannot be counted", deepest))
			return
		}
		wait = max(tick, 10*time.Since(begin))
	}
}

// count notes what has been written; there is false if the folders for it are
// gone.
func (b *Box) count(d disk) (_ disk, there bool) {
	d.seen = map[uint64]bool{}
	for _, name := range []string{"overlay", "tmp"} {
		fd, err := unix.Open(b.o.in(name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return d, false
		}
		if err == nil {
			d.folder(fd, 0)
		}
	}
	if d.closer {
		d.nameless(descendants(b.watched.pid, 0))
	}
	b.note(result.Usage{DiskBytes: d.bytes})
	return d, true
}

// amount is of what a disk has: bytes, and files.
type amount struct{ bytes, files int64 }

// room is what the disk has left.
func room(dir string) amount {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return amount{}
	}
	return amount{int64(st.Bfree) * st.Bsize, int64(st.Ffree)}
}

// leastFree is the room, in bytes, that scratch must have for what commands did
// to be all that they would have done.
const leastFree = 1 << 20

// tooFull says that a folder has not that room: on the disk, in its table of
// files, or of the user's quota, of which statfs(2) says nothing. So it is tried,
// with a file that has no name, where there can be such files.
func tooFull(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		for err = unix.EINTR; err == unix.EINTR; {
			err = unix.Fallocate(fd, 0, 0, leastFree)
		}
		unix.Close(fd)
	}
	if err == nil || full(err) {
		return err
	}
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil && st.Blocks > 0 && int64(st.Bavail)*st.Bsize < leastFree {
		return unix.ENOSPC
	}
	return nil
}

// noRoom ends the boxes of a disk that is full: a command that could not write
// must not be judged by what it has written. The one that filled it has itself to
// blame.
func (b *Box) noRoom() {
	if err := tooFull(b.o.Scratch); err != nil {
		for _, other := range together.on(b.disk) {
			other.kill(other.filled(err))
		}
	}
}

// filled is why a box ends whose disk is full. It has filled that if it has
// written most of what the disk lost since it began.
func (b *Box) filled(err error) *Error {
	d, _ := b.count(disk{closer: true})
	now := room(b.o.Scratch)
	if 2*d.bytes > b.free.bytes-now.bytes && d.bytes > leastFree || 2*d.files > b.free.files-now.files && d.files > leastFiles {
		return limit("disk_limit", "the disk for containers is full, and this one has written most of it, %s in %d files", size(d.bytes), d.files)
	}
	return scratchFull(err.Error())
}

// leastFiles is more than a container has before its first command.
const leastFiles = 1000

// disk counts what files take on disk, as du(1) does. What is there belongs to
// commands that change it meanwhile, and may not want it to be counted.
type disk struct {
	amount
	deep   bool            // folders are nested too deep
	closer bool            // look into folders that their owner has shut, and open them for that moment
	seen   map[uint64]bool // what has several links, or none
	dev    uint64          // the file system that was counted
}

// deepest is how many folders are open at once.
const deepest = 1000

// folder counts all below the folder that is open, and closes it.
func (d *disk) folder(fd, depth int) {
	f := os.NewFile(uintptr(fd), "folder")
	defer f.Close()
	for {
		names, err := f.Readdirnames(1024)
		for _, name := range names {
			d.entry(fd, name, depth)
		}
		if err != nil || len(names) == 0 {
			return
		}
	}
}

func (d *disk) entry(dir int, name string, depth int) {
	var st unix.Stat_t
	if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		d.count(&st)
		return
	}
	d.bytes, d.files = d.bytes+st.Blocks*512, d.files+1 // stat(2)
	d.dev = st.Dev
	if depth == deepest {
		d.deep = true
		return
	}
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dir, name, flags, 0)
	if err == unix.EACCES && d.closer {
		// Fchmodat follows links, which a command may have put there just now.
		pinned, e := unix.Openat(dir, name, flags&^unix.O_RDONLY|unix.O_PATH, 0)
		if e != nil {
			return
		}
		defer unix.Close(pinned)
		self := "/proc/self/fd/" + strconv.Itoa(pinned)
		if unix.Chmod(self, st.Mode&0o7777|0o500) != nil {
			return
		}
		fd, err = unix.Openat(pinned, ".", flags, 0)
		if err == nil {
			d.folder(fd, depth+1)
		}
		_ = unix.Chmod(self, st.Mode&0o7777)
		return
	}
	if err == nil {
		d.folder(fd, depth+1)
	}
}

// count counts a file once, whatever number of names it has.
func (d *disk) count(st *unix.Stat_t) {
	if st.Nlink != 1 {
		if d.seen[st.Ino] {
			return
		}
		d.seen[st.Ino] = true
	}
	d.bytes, d.files = d.bytes+st.Blocks*512, d.files+1
}

// nameless counts files that were removed and that the processes have open.
func (d *disk) nameless(pids []int) {
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd/", pid)
		fds, _ := os.ReadDir(dir)
		for _, fd := range fds {
			var st unix.Stat_t
			if unix.Stat(dir+fd.Name(), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 0 && st.Dev == d.dev {
				d.count(&st)
			}
		}
	}
}
