package step

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fence/pkg/tree"
)

// begin looks at what the layers below note, before a command can change it.
func (n *notary) begin(below []tree.Special) error {
	var st unix.Stat_t
	if err := unix.Fstat(n.root, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	n.dev, n.since = st.Dev, time.Now().Unix()-1
	n.below, n.devices = map[string]tree.Special{}, map[string]tree.Special{}
	n.notes = map[identity]tree.Owner{}
	for _, s := range below {
		n.below[s.Path] = s
		if s.Device == "" {
			if unix.Fstatat(n.root, s.Path, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Dev == n.dev && !carries(st.Mode) {
				n.old[inode{st.Dev, st.Ino}] = s.Owner
			}
			continue
		}
		placed, err := standIn(n.root, s)
		if err != nil {
			return fmt.Errorf("standing in for a device: %w", err)
		}
		if placed {
			n.devices[s.Path] = s
		}
	}
	return nil
}

// settle notes whose the new files are, when all processes have ended, and
// lists what the upper folder cannot hold. A list's entry that says nothing is
// about what a layer below notes there, and is not so any more.
func (n *notary) settle() ([]tree.Special, error) {
	w := &settling{notary: n, specials: map[string]tree.Special{}, group: map[string]int{}}
	if err := filepath.WalkDir(proc(n.upper)+"/.", w.visit); err != nil {
		return nil, fmt.Errorf("noting whose the new files are: %w", err)
	}
	for _, s := range w.devices {
		if err := n.standDown(s.Path); err != nil {
			return nil, fmt.Errorf("taking back what stands for a device: %w", err)
		}
		if s != n.devices[s.Path] {
			w.specials[s.Path] = s
		}
	}
	for p, s := range n.below {
		_, again := w.specials[p]
		gone := !again && s.Device == "" && w.has(p)
		if _, placed := n.devices[p]; placed {
			gone = !again && !slices.Contains(w.devices, s)
		}
		if gone {
			w.specials[p] = tree.Special{Path: p}
		}
	}
	return slices.SortedFunc(maps.Values(w.specials), func(a, b tree.Special) int { return strings.Compare(a.Path, b.Path) }), nil
}

// settling goes through the upper folder.
type settling struct {
	*notary
	specials map[string]tree.Special
	devices  []tree.Special // what files stand for
	group    map[string]int // that new files of a setgid folder get
}

func (w *settling) visit(p string, d os.DirEntry, err error) error {
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(proc(w.upper), p)
	if err != nil {
		return err
	}
	maker := w.user
	if gid, ok := w.group[path.Dir(rel)]; ok && rel != "." {
		maker.GID = gid
	}
	switch t := d.Type(); {
	case t&os.ModeCharDevice != 0: // a whiteout
	case !t.IsRegular() && !t.IsDir():
		o, err := w.other(rel, maker)
		if err == nil && o != (tree.Owner{}) {
			w.specials[rel] = tree.Special{Path: rel, Owner: o}
		}
		return err
	default:
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return &os.PathError{Op: "lstat", Path: "/" + rel, Err: err}
		}
		if dev, ok := deviceAt(p); ok && t.IsRegular() {
			o, _ := noteOf(p)
			w.devices = append(w.devices, tree.Special{Path: rel, Owner: o, Device: dev.kind, Mode: st.Mode & 0o7777, Major: dev.Major, Minor: dev.Minor})
			return nil
		}
		if _, noted := noteOf(p); !noted && rel != "." && maker != (tree.Owner{}) && w.fresh(rel, &st) {
			if err := writeNote(p, maker); err != nil {
				return err
			}
		}
		if t.IsRegular() && hollow(st.Size, st.Blocks*512) {
			w.hollow(rel, st.Size)
		}
		if t.IsDir() && st.Mode&unix.S_ISGID != 0 {
			o, _ := noteOf(p)
			w.group[rel] = o.GID
		}
	}
	return nil
}

// hollow says that a file takes far less of a disk than it is long, and that
// reading it will take long all the same. Both are in bytes.
func hollow(size, taken int64) bool { return size >= 1<<30 && taken < size/10 }

// hollow notes such a file, and where there are many, a few.
func (w *settling) hollow(rel string, size int64) {
	const most = 3
	if len(w.holes) < most {
		w.holes = append(w.holes, fmt.Sprintf("%q is %d GiB long and mostly holes, which take as long to pack and to copy as other bytes: leave it out, or make it shorter (useradd --no-log-init leaves /var/log/lastlog alone)", "/"+rel, size>>30))
	}
}

// other says whose a link, FIFO or socket is.
func (w *settling) other(rel string, maker tree.Owner) (o tree.Owner, err error) {
	if maker == (tree.Owner{}) && len(w.notes)+len(w.old) == 0 {
		return o, nil
	}
	var st unix.Stat_t
	for _, dir := range []int{w.root, w.upper} {
		fd, err := unix.Openat2(dir, rel, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
		if err != nil {
			return o, &os.PathError{Op: "open", Path: "/" + rel, Err: err}
		}
		defer unix.Close(fd)
		if err := unix.Fstat(fd, &st); err != nil {
			return o, &os.PathError{Op: "stat", Path: "/" + rel, Err: err}
		}
		if o, ok := w.remembered(fd, &st); ok {
			return o, nil
		}
		if dir == w.root && !w.fresh(rel, &st) {
			maker = tree.Owner{}
		}
	}
	return maker, nil
}

// has reports whether the upper folder has something at a path, be it a mark that nothing is there.
func (n *notary) has(rel string) bool {
	var st unix.Stat_t
	return unix.Fstatat(n.upper, rel, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}
