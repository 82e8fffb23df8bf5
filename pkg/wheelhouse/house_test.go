package wheelhouse

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fence/pkg/wheel"
)

// put makes a pure wheel in a folder.
func wheelFile(t *testing.T, dir, name, version string, requires ...string) string {
	t.Helper()
	info := name + "-" + version + ".dist-info/"
	metadata := "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\nRequires-Python: >=3.8\n"
	for _, r := range requires {
		metadata += "Requires-Dist: " + r + "\n"
	}
	files := [][2]string{{name + "/__init__.py", "x = 1\n"}, {info + "METADATA", metadata}, {info + "WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n"}}
	record := info + "RECORD,,\n"
	for _, f := range files {
		sum := sha256.Sum256([]byte(f[1]))
		record += fmt.Sprintf("%s,sha256=%s,%d\n", f[0], base64.RawURLEncoding.EncodeToString(sum[:]), len(f[1]))
	}
	file := filepath.Join(dir, name+"-"+version+"-py3-none-any.whl")
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	z := zip.NewWriter(out)
	for _, f := range append(files, [2]string{info + "RECORD", record}) {
		w, err := z.Create(f[0])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(w, f[1])
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return filepath.Base(file)
}

func options(dir string) Options {
	return Options{Dir: dir, Offline: true, Target: wheel.Target{Arch: "x86_64", Python: "3.12", Libc: wheel.Libc{Major: 2, Minor: 31}}}
}

func build(t *testing.T, o Options) *Record {
	t.Helper()
	r, err := Build(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What somebody puts into wheels/ is looked at, and has its place in the index
// and the lock; what is no good goes out of it.
func TestBuild_ByHand(t *testing.T) {
	dir := t.TempDir()
	wheels := filepath.Join(dir, "wheels")
	if err := os.Mkdir(wheels, 0o755); err != nil {
		t.Fatal(err)
	}
	wheelFile(t, wheels, "a_b", "1.0")
	file := wheelFile(t, wheels, "a_b", "2.0", "c")
	if err := os.WriteFile(filepath.Join(wheels, "bad-1-py3-none-any.whl"), []byte("PK no"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := build(t, options(dir))
	if len(r.Wheels) != 2 || len(r.Notes) != 2 || len(r.Faults) != 1 || r.Faults[0].Class != wheel.Corrupt {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(filepath.Join(dir, "rejected", "bad-1-py3-none-any.whl")); err != nil {
		t.Error(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "simple/a-b/index.html"))
	want := fmt.Sprintf(`<a href="../../wheels/%s#sha256=%s" data-requires-python="&gt;=3.8">%[1]s</a>`, file, r.wheel(file).SHA256)
	if err != nil || !strings.Contains(string(page), want) || strings.Count(string(page), "<a ") != 2 {
		t.Errorf("%v, no %s in\n%s", err, want, page)
	}
	if r = build(t, options(dir)); len(r.Wheels) != 2 || len(r.Notes)+len(r.Faults) != 0 {
		t.Errorf("again: %+v", r)
	}
	if err := os.Remove(filepath.Join(wheels, file)); err != nil {
		t.Fatal(err)
	}
	if r = build(t, options(dir)); len(r.Wheels) != 1 {
		t.Errorf("one less: %+v", r)
	}
	o := options(dir)
	o.Target.Arch = "aarch64"
	if _, err := Build(context.Background(), o); !errors.Is(err, ErrTarget) {
		t.Errorf("another target: %v", err)
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			t.Errorf("left: %s", e.Name())
		}
	}
}

// A folder of something else is left as it is; what a run that was killed before
// it had a record has left is taken up.
func TestBuild_Foreign(t *testing.T) {
	for _, c := range []struct {
		files   []string
		foreign bool
	}{
		{[]string{"main.py", "simple/page/x", "locks/mine", ".cache/x", "requirements.lock"}, true},
		{[]string{".bashrc", ".cache/x"}, true},
		{[]string{"wheels/.x", ".stage-1/x", ".cache/x", ".lock"}, false},
		{[]string{"wheelhouse.json", "notes.txt"}, false},
	} {
		dir := t.TempDir()
		for _, f := range c.files {
			text := ""
			if f == "wheelhouse.json" {
				text = `{"schema":"` + Schema + `","target":{"arch":"x86_64","libc":"glibc 2.31"}}`
			}
			if err := put(filepath.Join(dir, f), func(w io.Writer) error { _, err := io.WriteString(w, text); return err }); err != nil {
				t.Fatal(err)
			}
		}
		if slices.Contains(c.files, ".lock") {
			if err := os.Chtimes(filepath.Join(dir, ".lock"), time.Time{}, time.Now().Add(-time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Build(context.Background(), options(dir))
		if errors.Is(err, ErrForeign) != c.foreign || !c.foreign && err != nil {
			t.Errorf("%q: %v", c.files, err)
		}
		for _, f := range c.files {
			if _, err := os.Stat(filepath.Join(dir, f)); c.foreign && err != nil {
				t.Error(err)
			}
		}
	}
}

// A set that asks for the target's Python by number is one that asks for none.
func TestBuild_SetsOfOnePython(t *testing.T) {
	o := options(t.TempDir())
	a := wheel.Requirement{Project: "a"}
	o.Sets = []wheel.Set{{Requirements: []wheel.Requirement{a}, From: []string{"x"}}, {Requirements: []wheel.Requirement{a}, Python: "3.12", From: []string{"y"}}, {Requirements: []wheel.Requirement{a}, Python: "3.13", From: []string{"z"}}}
	r := build(t, o)
	if len(r.Sets) != 2 || len(r.Faults) != 2 || !slices.Equal(r.Sets[0].From, []string{"x", "y"}) && !slices.Equal(r.Sets[1].From, []string{"x", "y"}) {
		t.Errorf("%+v", r.Sets)
	}
	if o.Sets[0].Python != "" {
		t.Error("the caller's sets were changed")
	}
	for _, name := range []string{"requirements.lock", "locks/python3.13.lock"} {
		if _, err := os.Stat(filepath.Join(o.Dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	err := lock(name, []string{"why\nnot"}, []Wheel{
		{Project: "b", Version: "1.9", SHA256: "bb"}, {Project: "b", Version: "1.10", SHA256: "cc"}, {Project: "b", Version: "1.10", SHA256: "aa"}, {Project: "a", Version: "1", SHA256: "dd"}, {Project: "a", Version: "1", SHA256: "dd"},
		{Project: "b", Version: "99", SHA256: "ee", Source: "https://index.test"},
	})
	got, _ := os.ReadFile(name)
	want := "# why not\na==1 \\\n    --hash=sha256:dd\nb==1.10 \\\n    --hash=sha256:aa \\\n    --hash=sha256:cc\n# b==1.9 --hash=sha256:bb\n# b==99 --hash=sha256:ee\n"
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s, want\n%s", err, got, want)
	}
}

// What pip 23 and 25 print.
func TestPipsWords(t *testing.T) {
	const ok = `Looking in links: /w
Collecting a
  Downloading a-1-py3-none-any.whl (1 kB)
Collecting b>=1
  File was already downloaded /w/.stage/b-1.5-py3-none-any.whl
Saved ./a-1-py3-none-any.whl
Successfully downloaded a b
`
	if got := saved(ok); !slices.Equal(got, []string{"b-1.5-py3-none-any.whl", "a-1-py3-none-any.whl"}) {
		t.Errorf("saved: %q", got)
	}
	const none = "ERROR: Could not find a version that satisfies the requirement a==9 (from versions: 1.0, 2.0)\nERROR: No matching distribution found for a==9\n"
	const needed = "ERROR: Could not find a version that satisfies the requirement s>=1 (from n) (from versions: none)\nERROR: No matching distribution found for s>=1\n"
	const hash = `ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package versions, please update the hashes.
    d from http://127.0.0.1/files/d-1.0-py3-none-any.whl#sha256=00 (from -r .tmp/requirements (line 1)):
        Expected sha256 00
             Got        11
`
	if m := noMatch.FindStringSubmatch(none); m == nil || m[1] != "a==9" || neededBy.MatchString(none) {
		t.Errorf("%q", m)
	}
	if m := fromThese.FindStringSubmatch(none); m == nil || m[1] != "1.0, 2.0" {
		t.Errorf("%q", m)
	}
	if m := neededBy.FindStringSubmatch(needed); m == nil || m[1] != "n" {
		t.Errorf("%q", m)
	}
	if m := fromThese.FindStringSubmatch(needed); m == nil || m[1] != "none" {
		t.Errorf("%q", m)
	}
	if m := wrongHash.FindStringSubmatch(hash); m == nil || filepath.Base(m[1]) != "d-1.0-py3-none-any.whl" {
		t.Errorf("%q", m)
	}
	if got := lastError("WARNING: Retrying x\nERROR: one\nERROR: two \n", errors.New("exit 1")); got != "two" {
		t.Errorf("%q", got)
	}
	if got := lastError("", errors.New("exit 1")); got != "exit 1" {
		t.Errorf("%q", got)
	}
}

// An index that sends a byte now and then, or a file without end, ends neither
// the run nor the disk.
func TestPip_Limits(t *testing.T) {
	for _, c := range []struct {
		script string
		err    error
	}{
		{"echo fine", nil},
		{"while :; do echo x >>wheel; sleep 0.01; done", errQuiet},
		{"sleep 1000 & wait", errQuiet},
		{"while [ $(ulimit -f) = unlimited ]; do :; done; head -c 2M /dev/zero >wheel; wc -c <wheel; exit 0", nil},
	} {
		p := newPip([]string{"sh", "-c"}, t.TempDir(), t.TempDir())
		p.quiet, p.most = 200*time.Millisecond, 1<<20
		out, err := p.run(t.Context(), c.script)
		if !errors.Is(err, c.err) || err != nil && c.err == nil {
			t.Errorf("%s: %v\n%s", c.script, err, out)
		}
		if st, err := os.Stat(filepath.Join(p.stage, "wheel")); err == nil && st.Size() > 1<<20 {
			t.Errorf("%s: a file of %d bytes", c.script, st.Size())
		}
	}
}

func TestGraderSets(t *testing.T) {
	o := options("")
	for want, sets := range map[string][]wheel.Set{
		"3.12":           nil,
		"3.12 3.13":      {{Python: "3.13"}, {}},
		"3.11 3.12 3.13": {{Python: "3.13"}, {Python: "3.11"}, {Python: "3.13"}},
	} {
		if got := strings.Join(pythons(sets, o.Target), " "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := asked([]wheel.Set{{Python: "3.13"}, {}}, o.Target); !slices.Equal(got, []string{"3.13"}) {
		t.Errorf("an image's own Python will do: %q", got)
	}
}

// The stand-in hands over the installer for uv's addresses and no others.
func TestClient(t *testing.T) {
	dir := t.TempDir()
	bin, real, home := filepath.Join(dir, "it's bin"), filepath.Join(dir, "real"), filepath.Join(dir, "home")
	for _, d := range []string{bin, real, home} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		bin + "/curl": client, bin + "/wget": client, bin + "/uv": "#!/bin/sh\necho uv 9\n", bin + "/uvx": "#!/bin/sh\necho uvx\n",
		real + "/curl": "#!/bin/sh\necho real \"$@\"\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ script, want string }{
		{"curl -LsSf https://astral.sh/uv/install.sh | sh; . $HOME/.local/bin/env; uvx", "uvx"},
		{"rm -rf $HOME/.local/bin/uv; mkdir -p $HOME/.local/bin/uv; curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh && $HOME/.local/bin/uv", "uv 9"},
		{"curl --proto '=https' --tlsv1.2 -LsSf https://github.com/astral-sh/uv/releases/download/0.9.5/uv-installer.sh | env UV_INSTALL_DIR=$HOME/x sh && $HOME/x/uvx", "uvx"},
		{"curl -LsSf https://astral.sh/uv/install.sh -o i.sh && UV_INSTALL_DIR=$HOME/y sh i.sh && $HOME/y/uvx", "uvx"},
		{"curl -LsSfo j.sh https://astral.sh/uv/install.sh && UV_INSTALL_DIR=$HOME/z sh j.sh && $HOME/z/uvx", "uvx"},
		{"curl --output=k.sh https://astral.sh/uv/install.sh && head -c 9 k.sh", "#!/bin/sh"},
		{"curl -LO https://astral.sh/uv/install.sh && head -c 9 install.sh", "#!/bin/sh"},
		{"wget -qO- https://astral.sh/uv/install.sh | env XDG_BIN_HOME=$HOME/v sh && $HOME/v/uvx", "uvx"},
		{"wget -q https://astral.sh/uv/0.5.1/install.sh && head -c 9 install.sh", "#!/bin/sh"},
		{"wget -q -O l.sh https://astral.sh/uv/install.sh && head -c 9 l.sh", "#!/bin/sh"},
		{"curl -s https://example.test/uv/install.sh", "real -s https://example.test/uv/install.sh"},
		{"curl https://astral.sh/uv/install.sh.evil", "real https://astral.sh/uv/install.sh.evil"},
		{"curl https://astral.sh/uv/install.sh https://other.test", "real https://astral.sh/uv/install.sh https://other.test"},
		{"curl", "real"},
		{"wget -q https://other.test 2>&1; echo $?", "wget: this grader has no network, and wget here knows the installer of uv only: -q https://other.test\n6"},
	} {
		cmd := exec.Command("/bin/sh", "-c", c.script)
		cmd.Dir = t.TempDir()
		// Without the wget of this machine.
		tools := filepath.Join(t.TempDir(), "tools")
		if err := os.Mkdir(tools, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, tool := range []string{"sh", "cat", "ln", "mkdir", "rm", "head", "dirname", "env"} {
			p, err := exec.LookPath(tool)
			if err == nil {
				err = os.Symlink(p, filepath.Join(tools, tool))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		cmd.Env = []string{"HOME=" + home, "PATH=" + bin + ":" + real + ":" + tools}
		out, err := cmd.Output()
		if got := strings.TrimSpace(string(out)); got != c.want {
			t.Errorf("%s: %v, %q, want %q", c.script, err, got, c.want)
		}
	}
}

func TestInstall(t *testing.T) {
	python := t.TempDir()
	for _, d := range []string{"bin", "lib/python3.13/__pycache__", "include/python3.13", "share/other"} {
		if err := os.MkdirAll(filepath.Join(python, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"bin/python3.13": string(program[:1<<16]), "lib/python3.13/os.py": "", "lib/python3.13/__pycache__/x.pyc": "", "share/other/x": "",
		"include/python3.13/patchlevel.h": "#define PY_VERSION              \"3.13.5\"\n",
	} {
		if err := os.WriteFile(filepath.Join(python, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("python3.13", filepath.Join(python, "bin/python3")); err != nil {
		t.Fatal(err)
	}
	arch, err := wheel.Machine("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "python.tar.gz")
	if out, err := exec.Command("tar", "-C", filepath.Dir(python), "-czf", archive, "--transform", "s,^"+filepath.Base(python)+",python,", filepath.Base(python)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, from := range []string{python, archive} {
		h := &house{o: options(t.TempDir()), stage: t.TempDir()}
		h.o.Target.Arch = arch
		version, name, err := h.install(from)
		if want := "cpython-3.13.5-linux-" + arch + "-gnu"; err != nil || version != "3.13" || name != want {
			t.Fatalf("%s: %s %s, %v, want %s", from, version, name, err, want)
		}
		var got []string
		home := filepath.Join(h.o.Dir, "python", name)
		_ = filepath.WalkDir(home, func(p string, d os.DirEntry, _ error) error {
			if !d.IsDir() {
				rel, _ := filepath.Rel(home, p)
				got = append(got, rel)
			}
			return nil
		})
		if want := []string{"bin/python3", "bin/python3.13", "include/python3.13/patchlevel.h", "lib/python3.13/os.py"}; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", from, got, want)
		}
		h.o.Target.Arch, h.stage = "s390x", t.TempDir()
		if _, _, err := h.install(from); err == nil || !strings.Contains(err.Error(), "it is for "+arch+", not for s390x") {
			t.Errorf("%s for another machine: %v", from, err)
		}
	}
	h := &house{o: options(t.TempDir())}
	if _, _, err := h.install(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no bin/python3.N") {
		t.Errorf("an empty folder: %v", err)
	}
}
