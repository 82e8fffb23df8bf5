package step

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"fence/pkg/tree"
)

// wanted mounts what --mount asks for, and says where that is, links followed,
// in the root folder; "" where nothing is mounted.
func (g *stage) wanted(m Mount, i int) (string, error) {
	at, err := g.mountWanted(m, i)
	if err != nil {
		return "", err
	}
	if at != "" {
		if err := g.note(at, m); err != nil {
			return "", err
		}
	}
	at = strings.TrimPrefix(at, g.root)
	for _, own := range []string{"/", "/proc", "/sys", "/dev", inFence} {
		if clean := path.Clean("/" + at); m.Target != "" && (clean == own || own != "/" && own != "/dev" && strings.HasPrefix(clean, own+"/")) {
			return "", fmt.Errorf("--mount: %s is %s, which every step has", m.Target, own)
		}
	}
	return at, nil
}

// note remembers what is to be known of what is mounted at a path (of this process).
func (g *stage) note(at string, m Mount) error {
	var st unix.Stat_t
	if err := unix.Stat(at, &st); err != nil {
		return &os.PathError{Op: "stat", Path: m.Target, Err: err}
	}
	g.mounted[st.Dev] = m.ReadOnly && (m.Lower != nil || m.Matches != nil) // views of their own
	if m.Tmpfs {
		writeNote(at, tree.Owner{}) // Linux 6.6
	}
	for _, s := range m.Specials {
		rel, err := filepath.Rel(path.Join("/", m.Source), "/"+s.Path)
		if err != nil || s.Device != "" || !filepath.IsLocal(rel) {
			continue
		}
		if unix.Lstat(filepath.Join(at, rel), &st) == nil && g.is(st.Dev) && !carries(st.Mode) {
			g.old[inode{st.Dev, st.Ino}] = s.Owner
		}
	}
	return nil
}

// is reports whether a file of that st_dev is of what was mounted.
func (g *stage) is(dev uint64) bool {
	_, ok := g.mounted[dev]
	return ok
}

// layers is a view of layers with a folder for changes on top, in which files
// stand for devices.
func (g *stage) layers(dir, top string, lower []string, specials []tree.Special) (string, error) {
	if err := os.MkdirAll(top, 0o755); err != nil {
		return "", err
	}
	if left, err := os.ReadDir(top); err != nil {
		return "", err
	} else if len(left) == 0 {
		if err := rootLike(lower[0], top); err != nil {
			return "", err
		}
	}
	root, err := view(dir, lower, top)
	if err != nil {
		return "", err
	}
	fd, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(fd)
	for _, s := range specials {
		if s.Device != "" {
			if _, err := standIn(fd, s); err != nil {
				return "", err
			}
		}
	}
	return root, nil
}

func (g *stage) mountWanted(m Mount, i int) (string, error) {
	own := func(name string) string { return filepath.Join(g.dir, fmt.Sprintf("mount%d-%s", i, name)) }
	switch {
	case m.Target == "":
		return "", nil
	case m.Tmpfs:
		data := "mode=1777"
		if m.Size > 0 {
			data += fmt.Sprintf(",size=%d", m.Size)
		}
		at, err := g.mount("sifbuild", m.Target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, data)
		if err == nil && m.ReadOnly {
			err = readOnly(at)
		}
		return at, err
	case m.IsData:
		return g.owned(m.Target, m.Data, os.FileMode(m.Mode), m.Owner)
	}
	source := m.Source
	switch {
	case m.Matches != nil:
		source = own("copy")
		if err := os.Mkdir(source, 0o755); err != nil {
			return "", err
		}
		copied := source
		dest := "/"
		if e := m.Matches[0].Entry; e.Type != "dir" {
			dest = "/file"
		}
		if _, err := tree.Copy(copied, tree.CopyRequest{Root: m.Source, Matches: m.Matches, Dest: dest}); err != nil {
			return "", fmt.Errorf("--mount: %w", err)
		}
		if m.ReadOnly {
			var err error
			if source, err = g.layers(own("view"), own("changes"), []string{copied}, nil); err != nil {
				return "", err
			}
		}
		if dest == "/file" {
			source += dest
		}
	case m.Lower != nil:
		// What is written must not come into the layers.
		from, err := g.layers(own("from"), cmp.Or(m.Changes, own("changes")), m.Lower, m.Specials)
		if err != nil {
			return "", err
		}
		fd, err := inRoot(from, m.Source, unix.O_PATH)
		if err != nil {
			return "", fmt.Errorf("--mount: /%s: %w", m.Source, err)
		}
		source, err = os.Readlink(proc(fd))
		unix.Close(fd)
		if err != nil {
			return "", err
		}
	}
	at, err := g.mount(source, m.Target, "", unix.MS_BIND|unix.MS_REC, "")
	if err == nil && m.ReadOnly {
		err = readOnly(at)
	}
	return at, err
}
