package taint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"fence/pkg/result"
	"fence/pkg/sif"
	"fence/pkg/tree"
)

// Find is called when the verifier has ended. alive says whether processes of
// the agent's may have lived until then: they may have changed files of the
// image while the verifier worked. Where unknown is not "", it says in a line
// why it cannot be told what the verifier opened; then every file counts that
// it would have loaded, had it been opened. Where not all could be looked at that
// was changed, the folder / is found: of the rest anything may be true.
func (w *Watch) Find(alive bool) (found []result.Taint, unknown string) {
	seen, stirred, puts := map[string]bool{}, map[string]int{}, map[string]put{}
	if w.opened != nil {
		err := w.opened.finish()
		seen, stirred, puts = w.opened.seen, w.opened.stirred, w.opened.puts
		if w.lost == "" {
			w.lost = w.opened.lost
		}
		if err != nil {
			w.lost = err.Error()
		}
		w.opened = nil
	}
	if runs := relative(w.o.Runs); w.lost == "" && w.o.Runs != "" && !seen[runs] {
		w.lost = fmt.Sprintf("nothing was heard when the verifier opened %s: the overlay is none of fuse-overlayfs", w.o.Runs)
	}
	inodes := map[uint64]bool{} // opened by any of its names
	for p := range maps.Clone(seen) {
		if source := sourceOf(p); source != "" {
			seen[source] = true
		}
		if t, ok := w.agents[p]; ok {
			inodes[t.ino] = true
		}
	}
	f := finder{Watch: w, seen: seen, inodes: inodes, alive: alive, rest: map[string]bool{}, stirred: stirred, puts: puts, brought: map[string]map[string]bool{}}
	for p := range w.agents {
		f.rest[p] = true
	}
	err := w.each(f.visit, nil)
	if err == nil {
		err = f.hidden()
	}
	if err == nil {
		err = f.gone()
	}
	if err != errEnough {
		w.miss(err)
	}
	for _, p := range w.removed {
		if w.judge.has(p) && !w.judge.tellsOf(p) {
			f.found = append(f.found, result.Taint{Path: "/" + p, Why: "is gone, and was in the image: tests that call it may take that for an answer"})
		}
	}
	slices.SortFunc(f.found, func(a, b result.Taint) int { return strings.Compare(a.Path, b.Path) })
	if len(f.found) > enough {
		f.found = append(f.found[:enough], result.Taint{Path: "/", Why: "and more files"})
	}
	if w.missed != "" {
		w.lost = w.missed
		f.found = append(f.found, result.Taint{Path: "/", Why: "not all that was changed could be looked at: " + w.missed})
	}
	return f.found, w.lost
}

// errEnough ends the looking: more files than are named are found.
var errEnough = errors.New("enough was found")

type finder struct {
	*Watch
	seen   map[string]bool
	inodes map[uint64]bool
	alive  bool
	// stirred is what came and went meanwhile, and how often.
	stirred map[string]int
	puts    map[string]put
	tests   *tests
	brought map[string]map[string]bool // packages that the tests install, by folder
	texts   int                        // bytes of metadata that were read
	rest    map[string]bool            // of the agent's that were not met
	found   []result.Taint
}

func (f *finder) visit(v *tree.Visited) error {
	if v.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	now := stateOf(v)
	t, ok := f.agents[v.Path]
	delete(f.rest, v.Path)
	stirs := f.stirred[v.Path]
	delete(f.stirred, v.Path)
	link := v.Mode&unix.S_IFMT == unix.S_IFLNK
	was := f.before[v.Path]
	k := nothing
	if !ok || t.state != now {
		k, _ = f.judge.kindOf(v.Path)
	}
	if !ok && !f.made[v.Ino] && k != nothing {
		f.before[v.Path] = now
	}
	switch {
	case ok && t.state == now:
		if f.lost != "" || f.inodes[v.Ino] || f.seen[v.Path] || link && v.Atim.Sec != longAgo.Sec {
			return f.add(v.Path, t, v, "")
		}
		return nil
	case ok && (f.lost != "" || f.seen[v.Path] || f.inodes[t.ino] || link && t.ino == now.ino):
		// A link that is the same, but for its times: they were set back.
		known := len(f.found)
		if err := f.add(v.Path, t, nil, ""); err != nil || len(f.found) > known {
			return err
		}
	}
	if !f.alive || was == now || k == nothing {
		return nil
	}
	known := len(f.found)
	if err := f.late(v, k); err != nil || len(f.found) > known {
		return err
	}
	e, err := f.judge.image.Lookup(v.Path)
	switch {
	case err != nil && err != fs.ErrNotExist:
		return err
	case len(f.found) > enough:
		return errEnough
	case err != nil && f.puts[v.Path].times > 1 && k.program(v.Path):
		f.found = append(f.found, result.Taint{Path: "/" + v.Path, Why: "is new, and was changed again while the tests ran, beside processes of the agent's"})
	case err == nil && stirs > 1 && !link && e.Mode.IsRegular() && sameContent(v, e):
		return f.add(v.Path, touched{state: now}, nil, putBack)
	}
	return nil
}

const putBack = "; it changed while the tests ran, beside processes of the agent's, and was put back"

// hidden judges what the agent changed and is not there any more: the verifier
// removed it, or somebody who did not want it seen.
func (f *finder) hidden() error {
	for p := range f.rest {
		if f.lost != "" || f.seen[p] {
			if err := f.add(p, f.agents[p], nil, ""); err != nil {
				return err
			}
		}
	}
	return nil
}

// gone judges what came and went again while the verifier worked, and is found
// in place of a shell or loaded by every program.
func (f *finder) gone() error {
	if !f.alive {
		return nil
	}
	for p := range f.stirred {
		k, _ := f.judge.kindOf(p)
		if _, err := f.judge.image.Lookup(p); err != fs.ErrNotExist || f.agents[p].mode != 0 || sourceOf(p) != "" {
			continue
		}
		if k == site || k == above || k == pth && f.imageHas(path.Dir(p)) || k == hook || k == startup || k == tool || k == command && shells.MatchString(path.Base(p)) {
			if err := f.add(p, touched{state: state{mode: 0o755}}, nil, putBack); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *finder) imageHas(p string) bool {
	_, err := f.judge.image.Lookup(p)
	return err == nil
}

// late judges what changed while the verifier worked: by it, or by what the
// agent left running. Verifiers install programs, but change none of the
// image's; they make no start files but with what they say themselves, or what
// installers write, and nothing that is found in place of a shell. What the
// agent made before is the agent's wherever it was moved to.
func (f *finder) late(v *tree.Visited, k kind) error {
	t := touched{state: stateOf(v)}
	if v.Mode&unix.S_IFMT == unix.S_IFLNK {
		t.to, _ = v.Link()
	} else if k.byText() || k == startup || k == hook {
		t.text, _ = read(v)
	}
	base := path.Base(v.Path)
	had := f.imageHas(v.Path)
	switch {
	case k == pth && !f.imageHas(path.Dir(v.Path)): // an environment of the tests' own
		return nil
	case sourceOf(v.Path) != "" && !f.made[v.Ino]: // the tests' own Python writes it
		return nil
	case f.made[v.Ino], v.Path == "etc/ld.so.preload", k == site, k == above, k == library, k == cache, k == pth, k == command && shells.MatchString(base):
	case k == hook, k == startup, k == git:
		if !f.seen[v.Path] || t.to == "" && f.says(v.Path, k, t.text) {
			return nil
		}
	case k == plugin:
		if f.brings(v.Path) {
			return nil
		}
	case k == tool:
		if testTools.MatchString(base) {
			return nil
		}
	case k == beside:
		if !had && (!f.seen[v.Path] || strings.Contains(f.told().text, base)) {
			return nil
		}
	case !had:
		return nil
	}
	return f.add(v.Path, t, v, "; it changed while the tests ran, beside processes of the agent's")
}

// add judges a path that counts as opened. v is nil if what the agent wrote is
// not there any more.
func (f *finder) add(p string, t touched, v *tree.Visited, more string) error {
	c := change{path: p, link: t.mode&unix.S_IFMT == unix.S_IFLNK, to: t.to, exec: t.mode&0o111 != 0, text: t.text}
	if v != nil && !c.link {
		c.same = func(e sif.Entry) bool { return sameContent(v, e) }
	}
	if len(f.found) > enough {
		return errEnough
	}
	why, err := f.judge.taints(c)
	if err != nil {
		return err
	}
	if why != "" {
		f.found = append(f.found, result.Taint{Path: "/" + p, Why: why + more})
	}
	return nil
}

// sameContent says whether a file is the image's still; one that cannot be
// read is not.
func sameContent(v *tree.Visited, e sif.Entry) bool {
	if v.Size != e.Size {
		return false
	}
	ours, err := v.Open()
	if err != nil {
		return false
	}
	defer ours.Close()
	theirs, err := e.Open()
	if err != nil {
		return false
	}
	return equal(ours, theirs)
}

// equal compares two streams.
func equal(a, b io.Reader) bool {
	bufA, bufB := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, errA := io.ReadFull(a, bufA)
		m, errB := io.ReadFull(b, bufB)
		if n != m || string(bufA[:n]) != string(bufB[:m]) {
			return false
		}
		if errA != nil || errB != nil {
			end := func(err error) bool { return err == io.EOF || err == io.ErrUnexpectedEOF }
			return end(errA) && end(errB)
		}
	}
}
