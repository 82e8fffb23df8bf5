// Package taint says which files that an agent changed in its container a
// verifier then executed or loaded, without the task having told it to: a
// bash that is another, a start file of Python. A verdict with such files is
// not the verifier's alone.
//
// It looks from outside, at the folder that an overlay writes to. What is
// there was changed; what is opened while the verifier works, the kernel says
// (inotify: through fuse-overlayfs every open of a file in the container is one
// of a file there, where access times are no help, as its file contents are
// kept in memory). What a file means is told by its path and by the image. Of
// links only the access time moves, when they are followed.
//
// It cannot see who opened a file: what the agent's own processes load while
// the verifier works counts as well. Nor what the verifier was told by
// something else than files: settings in memory, servers of the agent's. And an
// open is no proof that a file was more than looked at.
package taint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"

	"fence/pkg/sif"
	"fence/pkg/tree"
)

// Options are what a Watch has to know of a trial.
type Options struct {
	Upper string // the overlay's upper folder on the host
	Image string // the SIF
	// Workdir is where the tests start, a path in the container. What is below
	// is the task's.
	Workdir string
	// Path is the PATH of the verifier's commands.
	Path string
	// Homes are folders that they may have as HOME, beside those of the image's
	// /etc/passwd.
	Homes []string
	// Private are the folders that only the verifier's domain sees.
	Private []string
	// Instruction is what the task tells the agent: a script that it names, or a
	// package, was to be changed.
	Instruction string
	// Tests are folders on the host: what is in them may install what it names,
	// while processes of the agent's live.
	Tests []string
	// Runs is a file, as /tests/test.sh, that the verifier opens in any case: if
	// nothing is heard of it, nothing is known. "" for none.
	Runs string
}

// most is how deep the folders of an overlay are gone into: no program's files
// are as deep.
const most = 64

// tooMany files of an agent's are not looked through: they would take gigabytes
// of memory here.
const tooMany = 2_000_000

// enough is how many files are named.
const enough = 100

// textLimit is how much of a file is looked at that is judged by its text.
// Of all files together, textsLimit is kept.
const (
	textLimit  = 4 << 20
	textsLimit = 64 << 20
)

// state is what makes a file the same as before.
type state struct {
	ino, ctimeSec, ctimeNsec, size uint64
	mode                           uint32
}

func stateOf(v *tree.Visited) state {
	return state{v.Ino, uint64(v.Ctim.Sec), uint64(v.Ctim.Nsec), uint64(v.Size), v.Mode}
}

// touched is a path that the agent changed.
type touched struct {
	state
	to   string // of a link
	text []byte // of a kind that is judged by it
}

// Watch follows one trial's container. It is not for concurrent use.
type Watch struct {
	o       Options
	image   *sif.Image
	judge   judge
	before  map[string]state   // what was there when the agent began, of the kinds that count
	agents  map[string]touched // what it changed, in all steps, of the kinds that count
	made    map[uint64]bool    // the inodes of all that it changed, of any kind
	removed []string           // programs by whose absence tests are led astray, of its doing
	opened  *opened
	lost    string // why it is not known what was opened
	missed  string // why it is not known of all that was changed
	most    int    // files that are looked through
}

// New prepares for a trial. The image has to stay where it is until Close.
func New(o Options) (*Watch, error) {
	img, err := sif.Open(o.Image)
	if err != nil {
		return nil, err
	}
	w := &Watch{o: o, image: img, agents: map[string]touched{}, most: tooMany}
	pl := places{workdir: relative(o.Workdir), homes: []string{".", "root"}} // of who is not in /etc/passwd
	accounts, err := img.ReadFile("etc/passwd", textLimit)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		img.Close()
		return nil, err
	}
	users, _ := user.ParsePasswd(bytes.NewReader(accounts))
	for _, u := range users {
		o.Homes = append(o.Homes, u.Home)
	}
	for _, h := range o.Homes {
		if h := w.resolve(h); h != "" && !slices.Contains(pl.homes, h) {
			pl.homes = append(pl.homes, h)
		}
	}
	for _, p := range o.Private {
		pl.private = append(pl.private, relative(p))
	}
	for _, d := range strings.Split(o.Path+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", ":") {
		if d = w.resolve(d); d != "" && !slices.Contains(pl.path, d) {
			pl.path = append(pl.path, d)
		}
	}
	w.judge = judge{pl, newIndex(img), o.Instruction}
	return w, nil
}

// Folders are the image's folders in which programs look for each other, as far
// as it has them. Of an overlay that has them from the start no change is
// missed: what comes and goes at once in a folder that comes with it is.
func Folders(image string) ([]string, error) {
	w, err := New(Options{Image: image})
	if err != nil {
		return nil, err
	}
	defer w.Close()
	all := slices.Concat([]string{"etc"}, slices.DeleteFunc(slices.Clone(w.judge.homes), func(h string) bool { return h == "." || skipped(h) }), w.judge.path, libraryFolders(w.judge.image), w.judge.pythonFolders(""), w.judge.perlFolders())
	vars, _ := sif.Environment(w.image.Config)
	for _, v := range vars {
		if v[0] == "PATH" {
			for _, d := range strings.Split(v[1], ":") {
				if d = w.resolve(d); d != "" {
					all = append(all, d)
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Close ends the watching and closes the image.
func (w *Watch) Close() error {
	if w.opened != nil {
		w.opened.close()
		w.opened = nil
	}
	return w.image.Close()
}

func relative(p string) string {
	if p = path.Join("/", p)[1:]; p == "" {
		return "."
	}
	return p
}

// resolve is a PATH folder without the image's links; "" if it is none.
func (w *Watch) resolve(d string) string {
	if !path.IsAbs(d) {
		return ""
	}
	d = relative(d)
	for range 8 {
		parts := strings.Split(d, "/")
		i := 1
		for ; i <= len(parts); i++ {
			e, err := w.image.Lookup(path.Join(parts[:i]...))
			if err == nil && e.Mode&fs.ModeSymlink != 0 {
				to := e.Link
				if !path.IsAbs(to) {
					to = path.Join(path.Dir(e.Path), to)
				}
				d = relative(path.Join(to, path.Join(parts[i:]...)))
				break
			}
		}
		if i > len(parts) {
			return d
		}
	}
	return ""
}

// each visits what is in the upper folder but for whiteouts and the overlay's
// own files (fuse-overlayfs: .wh.NAME; both kinds of overlay: a device 0:0), of
// which removed, if it is not nil, is told what they stand for.
func (w *Watch) each(f func(v *tree.Visited) error, removed func(p string)) error {
	n := 0
	return tree.Visit(w.o.Upper, most, func(v *tree.Visited) error {
		if n++; n > w.most {
			return fmt.Errorf("there are more than %d files of the agent's", w.most)
		}
		if name, is := strings.CutPrefix(path.Base(v.Path), ".wh."); is || v.Mode&unix.S_IFMT == unix.S_IFCHR {
			if removed != nil {
				removed(path.Join(path.Dir(v.Path), name))
			}
			return nil
		}
		return f(v)
	})
}

// Before is called once, when nothing of an agent's has run: what is there is
// the harness's. What Find sees at its end is a verifier's, unless it is an
// agent's. All that comes to be in between is an agent's: its processes live on.
func (w *Watch) Before() {
	w.before = map[string]state{}
	w.miss(w.each(func(v *tree.Visited) error {
		if v.Mode&unix.S_IFMT != unix.S_IFDIR && w.counts(v.Path) {
			w.before[v.Path] = stateOf(v)
		}
		return nil
	}, nil))
}

// miss says that not all was seen: of what was not, nothing is known.
func (w *Watch) miss(err error) {
	if err != nil && w.missed == "" {
		w.missed = err.Error()
	}
}

// After is called when an agent's time is over and nothing of the verifier's
// has begun. From here on it hears what is opened.
func (w *Watch) After() {
	var err error
	w.lost = ""
	if w.opened != nil {
		w.opened.close()
	}
	if w.opened, err = newOpened(w.o.Upper, w.follows); err != nil {
		w.lost = err.Error()
	}
	var st unix.Statfs_t
	if err := unix.Statfs(w.o.Upper, &st); err == nil && st.Flags&unix.ST_NOATIME != 0 {
		w.lost = "the file system of the scratch folder keeps no access times (noatime)"
	}
	w.made = map[uint64]bool{}
	m := marker{Watch: w, now: map[string]touched{}, heard: map[string]bool{}}
	w.removed = nil
	w.miss(w.each(m.visit, func(p string) {
		if k, _ := w.judge.kindOf(p); k == command && interpreter.MatchString(path.Base(p)) {
			w.removed = append(w.removed, p)
		}
	}))
	if w.opened != nil {
		if err := w.opened.begin(); err != nil {
			w.lost = err.Error()
		}
	}
	w.agents = m.now
}

// marker notes what the agent changed and gets ready to hear of it.
type marker struct {
	*Watch
	now   map[string]touched
	heard map[string]bool // folders that are listened at
	texts int             // bytes of text that are kept
}

// longAgo is the access time of a link that nobody has followed yet.
var longAgo = unix.Timespec{Sec: 1}

func (m *marker) visit(v *tree.Visited) error {
	if v.Mode&unix.S_IFMT == unix.S_IFDIR {
		if v.Err != nil && m.counts(v.Path+"/x.py") {
			m.lost = fmt.Sprintf("/%s cannot be listed: %v", v.Path, v.Err)
		}
		if v.Err == nil && (v.Path == path.Dir(relative(m.o.Runs)) || m.follows(v.Path)) {
			m.listen(v, v.Path, path.Base(v.Path))
		}
		return nil
	}
	old, agents := m.agents[v.Path]
	if now := stateOf(v); m.before[v.Path] == now && !(agents && old.state == now) {
		return nil
	}
	m.made[v.Ino] = true
	if !m.counts(v.Path) {
		return nil
	}
	var t touched
	if v.Mode&unix.S_IFMT == unix.S_IFLNK {
		t.to, _ = v.Link()
		if err := v.At(func(dir int, name string) error { return forget(dir, name, &v.Stat_t) }); err != nil {
			m.lost = fmt.Sprintf("/%s cannot be watched: %v", v.Path, err)
		}
	} else {
		switch k, _ := m.judge.kindOf(v.Path); {
		case !k.byText():
		case m.texts < textsLimit:
			t.text, _ = read(v)
			m.texts += len(t.text)
		default: // a file without its text is judged as if it had the worst
			m.lost = "more text of the agent's would have to be kept than can be"
		}
		m.listen(v, path.Dir(v.Path), ".")
	}
	t.state = stateOf(v)
	m.now[v.Path] = t
	return nil
}

// forget makes a link one that nobody has followed yet.
func forget(dir int, name string, st *unix.Stat_t) error {
	times := []unix.Timespec{longAgo, {Nsec: unix.UTIME_OMIT}}
	if err := unix.UtimesNanoAt(dir, name, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.Fstatat(dir, name, st, unix.AT_SYMLINK_NOFOLLOW)
}

// listen hears of the files in the folder at p, which is name where v is.
func (m *marker) listen(v *tree.Visited, p, name string) {
	if m.opened == nil || m.heard[p] {
		return
	}
	m.heard[p] = true
	switch err := v.At(func(dir int, _ string) error { return m.opened.add(p, dir, name) }); {
	case errors.Is(err, unix.ENOSPC):
		m.lost = "no inotify watch is left (fs.inotify.max_user_watches, which all of the user's processes share)"
	case err != nil:
		m.lost = fmt.Sprintf("/%s cannot be watched: %v", p, err)
	}
}

// follows says whether programs may come to be in a folder, or in one that is
// in it, or what they load by themselves.
func (w *Watch) follows(dir string) bool {
	return dir == "." || w.counts(dir+"/x.so") || slices.ContainsFunc(w.judge.path, func(d string) bool { return under(d, dir) }) ||
		w.judge.homeFolder(dir) || slices.ContainsFunc(hooks, func(h hookFile) bool { return under(path.Dir(h.path), dir) })
}

func (w *Watch) counts(p string) bool {
	k, _ := w.judge.kindOf(p)
	return k != nothing
}

// read reads a file that the agent wrote.
func read(v *tree.Visited) ([]byte, error) {
	f, err := v.Open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, textLimit))
}
