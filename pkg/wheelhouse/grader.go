package wheelhouse

import (
	"archive/zip"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"fence/pkg/internal/atomicfile"
	"fence/pkg/tree"
	"fence/pkg/wheel"
)

// Grader is what the folder has for graders.
type Grader struct {
	UV           string   `json:"uv"`           // its version
	Interpreters []string `json:"interpreters"` // folders below python/, named as uv names them
	Env          string   `json:"env"`          // the file to read with GRADER set to where the folder is mounted
}

// common is what graders fetch most, beside what tasks say: Harbor's own
// test.sh, and what the tests of datasets import.
var common = []string{"pytest", "pytest-json-ctrf", "pytest-timeout", "requests", "numpy"}

// graderSets are sets that every grader's folder has: uv, and the common wheels
// for each Python that a grader may ask for.
func graderSets(sets []wheel.Set, t wheel.Target) []wheel.Set {
	from := []string{"--grader"}
	all := []wheel.Set{{Requirements: []wheel.Requirement{{Project: "uv"}}, NoDeps: true, Python: t.Python, From: from}}
	for _, python := range pythons(sets, t) {
		s := wheel.Set{Python: python, From: from}
		for _, name := range common {
			s.Requirements = append(s.Requirements, wheel.Requirement{Project: name})
		}
		all = append(all, s)
	}
	return all
}

// pythons are those that sets ask for by number, and the target's, which images
// have.
func pythons(sets []wheel.Set, t wheel.Target) []string {
	all := asked(sets, t)
	if !slices.Contains(all, t.Python) {
		all = append(all, t.Python)
	}
	slices.Sort(all)
	return all
}

// asked are the Pythons that sets ask for by number, so that an image's own
// will not do; the target's if there are none.
func asked(sets []wheel.Set, t wheel.Target) []string {
	var all []string
	for _, s := range sets {
		if s.Python != "" && !slices.Contains(all, s.Python) {
			all = append(all, s.Python)
		}
	}
	if len(all) == 0 {
		all = append(all, t.Python)
	}
	slices.Sort(all)
	return all
}

// The programs that stand in for the network. client is also wget: it hands
// over uv's installer, and anything else to the real one.
var (
	//go:embed client.sh
	client string
	//go:embed grader.env
	graderEnv string
)

// grader makes bin/, python/ and grader.env.
func (h *house) grader(ctx context.Context) error {
	h.r.Grader = &Grader{Interpreters: []string{}, Env: "grader.env"}
	if err := h.programs(); err != nil {
		return err
	}
	given := map[string]string{}
	for _, p := range h.o.Interpreters {
		python, dir, err := h.install(p)
		if err != nil {
			h.fault(Interpreter, p, err.Error(), nil)
			continue
		}
		given[python] = dir
	}
	for _, python := range asked(h.o.Sets, h.o.Target) {
		dir := given[python]
		if dir == "" {
			dir = h.interpreter(python)
		}
		if dir == "" && !h.o.Offline {
			var err error
			if dir, err = h.fetchInterpreter(ctx, python); ctx.Err() != nil {
				return ctx.Err()
			} else if err != nil {
				h.fault(Interpreter, "Python "+python, err.Error(), nil)
			}
		} else if dir == "" {
			h.fault(Offline, "Python "+python, "it is not there, and nothing is fetched", nil)
		}
		if dir != "" {
			h.r.Grader.Interpreters = append(h.r.Grader.Interpreters, dir)
		}
	}
	for name, dir := range given {
		if !slices.Contains(h.r.Grader.Interpreters, dir) {
			h.r.Grader.Interpreters = append(h.r.Grader.Interpreters, dir)
			h.r.Notes = append(h.r.Notes, "no task asks for Python "+name+"; it is there because it was given")
		}
	}
	slices.Sort(h.r.Grader.Interpreters)
	for _, dir := range h.r.Grader.Interpreters {
		m := key.FindStringSubmatch(dir)
		link := filepath.Join(h.o.Dir, "bin", "python"+m[1])
		_ = os.Remove(link)
		if err := os.Symlink("../python/"+dir+"/bin/python"+m[1], link); err != nil {
			return err
		}
	}
	return nil
}

// programs writes what is in bin/.
func (h *house) programs() error {
	bin := filepath.Join(h.o.Dir, "bin")
	for name, text := range map[string]string{"bin/curl": client, "bin/wget": client, "grader.env": graderEnv} {
		file := filepath.Join(h.o.Dir, name)
		if err := put(file, func(w io.Writer) error { _, err := io.WriteString(w, text); return err }); err != nil {
			return err
		}
		if strings.HasPrefix(name, "bin/") {
			if err := os.Chmod(file, 0o755); err != nil {
				return err
			}
		}
	}
	uv := h.newest("uv")
	if uv == nil {
		return nil // a fault already
	}
	h.r.Grader.UV = uv.Version
	z, err := zip.OpenReader(filepath.Join(h.o.Dir, wheelsName, uv.File))
	if err != nil {
		return fmt.Errorf("unpacking uv: %w", err)
	}
	defer z.Close()
	for _, f := range z.File {
		dir, name := filepath.Split(f.Name)
		if (name != "uv" && name != "uvx") || !strings.HasSuffix(dir, ".data/scripts/") {
			continue
		}
		file := filepath.Join(bin, name)
		r, err := f.Open()
		if err == nil {
			err = atomicfile.Write(file, func(w io.Writer) error { _, err := io.Copy(w, r); return err })
			r.Close()
		}
		if err == nil {
			err = os.Chmod(file, 0o755)
		}
		if err != nil {
			return fmt.Errorf("unpacking uv: %w", err)
		}
	}
	return nil
}

// newest is the newest of a project, of those that do not come from an index of
// some task's: it is run here.
func (h *house) newest(project string) *Wheel {
	var best *Wheel
	for i, w := range h.r.Wheels {
		if w.Project == project && w.Source == "" && (best == nil || wheel.CompareVersions(w.Version, best.Version) > 0) {
			best = &h.r.Wheels[i]
		}
	}
	return best
}

// key is how uv names an interpreter's folder: cpython-3.13.0-linux-x86_64-gnu.
var key = regexp.MustCompile(`^cpython-(3\.\d+)\.\d+-linux-`)

// interpreter is the folder of a Python that is there, "" for none.
func (h *house) interpreter(python string) string {
	entries, _ := os.ReadDir(filepath.Join(h.o.Dir, "python"))
	for _, e := range slices.Backward(entries) {
		if m := key.FindStringSubmatch(e.Name()); m != nil && m[1] == python {
			return e.Name()
		}
	}
	return ""
}

func (h *house) keyOf(version string) string {
	libc := "gnu"
	if h.o.Target.Libc.Musl {
		libc = "musl"
	}
	return fmt.Sprintf("cpython-%s-linux-%s-%s", version, h.o.Target.Arch, libc)
}

// fetchInterpreter has uv fetch a Python, as a grader would: a build of
// python-build-standalone, from where uv's own settings say
// (UV_PYTHON_INSTALL_MIRROR).
func (h *house) fetchInterpreter(ctx context.Context, python string) (string, error) {
	const hint = "; name a folder or an archive of one with --interpreter PATH"
	h.o.Say("an interpreter: Python " + python)
	into := filepath.Join(h.stage, ".python")
	want := h.keyOf(python)
	cmd := exec.CommandContext(ctx, filepath.Join(h.o.Dir, "bin", "uv"), "--no-config", "python", "install", "--no-bin", "--install-dir", into, want)
	cmd.Env = append(os.Environ(), "UV_CACHE_DIR="+filepath.Join(h.o.Dir, cacheName, "uv"))
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		text := strings.TrimSpace(string(out))
		if text == "" {
			text = err.Error()
		}
		return "", errors.New("uv could not fetch it: " + oneLine(text) + hint)
	}
	entries, err := os.ReadDir(into)
	for _, e := range entries {
		if m := key.FindStringSubmatch(e.Name()); m != nil && m[1] == python && e.IsDir() {
			return h.place(filepath.Join(into, e.Name()), python, e.Name())
		}
	}
	return "", fmt.Errorf("uv said that it is there, and it is not (%w)%s", errors.Join(err, fs.ErrNotExist), hint)
}

// install copies an interpreter that somebody has: a folder, or an archive of
// one, with bin/python3.N in it or in its only folder.
func (h *house) install(from string) (python, dir string, err error) {
	st, err := os.Stat(from)
	if err != nil {
		return "", "", err
	}
	root := from
	if !st.IsDir() {
		root = filepath.Join(h.stage, ".unpacked")
		if err := errors.Join(os.RemoveAll(root), os.MkdirAll(root, 0o777)); err != nil {
			return "", "", err
		}
		f, err := os.Open(from)
		if err != nil {
			return "", "", err
		}
		defer f.Close()
		if _, err := tree.Unpack(f, root, tree.UnpackOptions{Apply: true}); err != nil {
			return "", "", fmt.Errorf("unpacking it: %w", err)
		}
	}
	home := ""
	for _, sub := range []string{".", "python", "python/install", "install"} {
		all, _ := filepath.Glob(filepath.Join(root, sub, "bin", "python3.*"))
		for _, p := range all {
			if v, err := wheel.ParsePython(strings.TrimPrefix(filepath.Base(p), "python")); err == nil && home == "" {
				home, python = filepath.Join(root, sub), v
			}
		}
	}
	if home == "" {
		return "", "", errors.New("there is no bin/python3.N in it")
	}
	name := h.keyOf(patch(home, python))
	if _, err := os.Stat(filepath.Join(h.o.Dir, "python", name)); err == nil {
		return python, name, nil // of an earlier run, and perhaps in use
	}
	staged := filepath.Join(h.stage, ".python", python)
	if err := copyInterpreter(home, staged, python); err != nil {
		return "", "", fmt.Errorf("copying it: %w", err)
	}
	dir, err = h.place(staged, python, name)
	return python, dir, err
}

// place gives an interpreter its name, if it is for the target's machine.
func (h *house) place(staged, python, name string) (string, error) {
	program := filepath.Join(staged, "bin", "python"+python)
	if arch, err := wheel.Machine(program); err != nil {
		return "", fmt.Errorf("looking at it: %w", err)
	} else if arch != h.o.Target.Arch {
		return "", fmt.Errorf("it is for %s, not for %s", arch, h.o.Target.Arch)
	}
	final := filepath.Join(h.o.Dir, "python", name)
	if err := os.MkdirAll(filepath.Dir(final), 0o777); err != nil {
		return "", err
	}
	return name, os.Rename(staged, final)
}

// patch is the whole version of an interpreter, as its header has it; 0 stands
// for a third number that is not known.
func patch(home, python string) string {
	text, _ := os.ReadFile(filepath.Join(home, "include", "python"+python, "patchlevel.h"))
	if m := regexp.MustCompile(`#define PY_VERSION\s+"(3\.\d+\.\d+)`).FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return python + ".0"
}

// copyInterpreter takes from a prefix what is the interpreter's. A prefix such
// as /usr has much more.
func copyInterpreter(home, to, python string) error {
	var parts []string
	for _, pattern := range []string{"bin/python", "bin/python3", "bin/python" + python, "include/python" + python, "lib/python" + python, "lib/libpython*", "lib/tcl*", "lib/tk*", "share/terminfo"} {
		found, err := filepath.Glob(filepath.Join(globbed(home), pattern))
		if err != nil {
			return err
		}
		parts = append(parts, found...)
	}
	for _, p := range parts {
		rel, err := filepath.Rel(home, p)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, rel)), 0o777); err != nil {
			return err
		}
		err = filepath.WalkDir(p, func(at string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			below, err := filepath.Rel(home, at)
			if err != nil {
				return err
			}
			dst := filepath.Join(to, below)
			switch {
			case d.IsDir() && d.Name() == "__pycache__":
				return filepath.SkipDir
			case d.IsDir():
				return os.MkdirAll(dst, 0o777)
			case d.Type() == fs.ModeSymlink:
				link, err := os.Readlink(at)
				if err != nil {
					return err
				}
				if filepath.IsAbs(link) || !filepath.IsLocal(filepath.Join(filepath.Dir(below), link)) {
					return copyFile(at, dst) // what it leads to would not be there
				}
				return os.Symlink(link, dst)
			case d.Type().IsRegular():
				return copyFile(at, dst)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func globbed(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}

// copyFile copies a file, links followed; what leads nowhere or to a folder is
// left out.
func copyFile(from, to string) error {
	st, err := os.Stat(from)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !st.Mode().IsRegular() {
		return nil
	}
	if err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666|st.Mode().Perm()&0o111)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
