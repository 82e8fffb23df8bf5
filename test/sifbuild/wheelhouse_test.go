package sifbuild

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fence/pkg/wheelhouse"
	"fence/test/bed"
	"fence/test/clitest"
)

// house runs sifbuild wheelhouse as the person, and gives its record.
func (p *place) house(code int, env []string, args ...string) *wheelhouse.Record {
	p.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := bed.Command(p.t, bed.Bin(p.t, "sifbuild"), append([]string{"wheelhouse", "--out", p.path("w"), "--arch", "x86_64"}, args...)...)
	if exec.Command("/usr/bin/python3", "-m", "pip", "--version").Run() != nil {
		bed.Missing(p.t, "pip, which comes with the Debian package python3-pip")
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, &stdout, &stderr
	cmd.Env = append(cmd.Env, append(env, "TMPDIR="+p.path("scratch"))...)
	_ = cmd.Run()
	if cmd.ProcessState.ExitCode() != code {
		p.t.Fatalf("sifbuild wheelhouse %q: %v, want %d\n%s", args, cmd.ProcessState, code, stderr.String())
	}
	p.t.Log(stderr.String())
	if code == 2 {
		return nil
	}
	line := bytes.TrimSpace(stdout.Bytes())
	if err := clitest.Validate(p.t, "sifbuild.wheelhouse", line); err != nil {
		p.t.Errorf("its record: %v\n%s", err, line)
	}
	var r wheelhouse.Record
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		p.t.Fatalf("%v\n%s", err, line)
	}
	return &r
}

func wheelFiles(r *wheelhouse.Record) []string {
	names := []string{}
	for _, w := range r.Wheels {
		names = append(names, w.File)
	}
	slices.Sort(names)
	return names
}

func faults(r *wheelhouse.Record) map[string]string {
	all := map[string]string{}
	for _, f := range r.Faults {
		all[f.What] = f.Class
	}
	return all
}

const machine = "cp311-cp311-manylinux2014_x86_64"

// packages fills an index with what works.
func packages(t *testing.T) (*wheelIndex, []string) {
	x := newIndex(t)
	return x, []string{
		x.wheel(t, "hello-sif", "1.0", "py3-none-any", nil, "helper>=1", "later; python_version >= '3.11'", "never; python_version < '3.11'"),
		x.wheel(t, "helper", "1.5", "py3-none-any", nil),
		x.wheel(t, "later", "3.0", "py3-none-any", nil),
		x.wheel(t, "native", "2.0", machine, map[string]string{"native/_core.cpython-311-x86_64-linux-gnu.so": library(elf.EM_X86_64)}),
	}
}

// What is wrong with a wheel is named, and the rest is kept; when it is put
// right, only what was missing is fetched.
func TestWheelhouse_Names(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	x, good := packages(t)
	slices.Sort(good)
	x.wheel(t, "foreign", "1.0", machine, map[string]string{"foreign/_core.cpython-311-x86_64-linux-gnu.so": library(elf.EM_AARCH64)})
	flipped := x.wheel(t, "flipped", "1.0", "py3-none-any", map[string]string{"flipped/data": strings.Repeat("a", 1000)})
	whole := x.files[flipped]
	x.files[flipped] = bytes.Replace(whole, []byte("aaaaaaaa"), []byte("aaaabaaa"), 1)
	x.sums[flipped] = "" // an index without digests
	denied := x.wheel(t, "denied", "1.0", "py3-none-any", nil)
	x.sums[denied] = "#sha256=" + strings.Repeat("0", 64)
	x.wheel(t, "old", "1.0", "py3-none-any", nil)
	x.wheel(t, "windows", "1.0", "cp311-cp311-win_amd64", nil)
	x.set("source-1.0.tar.gz", []byte("not opened"))
	x.wheel(t, "needy", "1.0", "py3-none-any", nil, "source>=1")

	p.task("a", "FROM busybox\nCOPY r.txt /app/\nWORKDIR /app\nRUN pip install -r r.txt\nRUN pip install foreign flipped denied old==9 windows source needy nowhere\n")
	p.write("tasks/a/environment/r.txt", "hello-sif==1.0\nnative\n", 0o644)
	env := []string{"PIP_INDEX_URL=" + x.URL, "PIP_RETRIES=0"}
	r := p.house(3, env, "tasks", "--python", "3.11")
	want := map[string]string{
		"foreign-1.0-" + machine + ".whl": "wrong-arch", flipped: "corrupt", denied: "corrupt",
		"old==9": "no-version", "windows": "no-package", "source": "sdist-only", "source>=1": "sdist-only", "nowhere": "no-package",
	}
	got := faults(r)
	for what, class := range want {
		if got[what] != class {
			t.Errorf("%s is %q, want %q", what, got[what], class)
		}
	}
	if len(got) != len(want) {
		t.Errorf("faults: %v", got)
	}
	if have, want := wheelFiles(r), slices.Sorted(slices.Values(append([]string{"needy-1.0-py3-none-any.whl"}, good...))); !slices.Equal(have, want) {
		t.Errorf("wheels: %q, want %q", have, want)
	}
	entries, err := os.ReadDir(p.path("w/wheels"))
	if err != nil || len(entries) != len(good)+1 {
		t.Errorf("wheels/: %v, %v", entries, err)
	}

	// Put right: what is there already is not fetched again.
	x.wheel(t, "foreign", "1.0", machine, map[string]string{"foreign/_core.cpython-311-x86_64-linux-gnu.so": library(elf.EM_X86_64)})
	x.set(flipped, whole)
	delete(x.sums, denied)
	x.wheel(t, "old", "9", "py3-none-any", nil)
	x.wheel(t, "windows", "1.0", machine, nil)
	x.wheel(t, "source", "1.0", "py3-none-any", nil)
	x.wheel(t, "nowhere", "1.0", "py3-none-any", nil)
	r = p.house(0, env, "tasks", "--python", "3.11")
	if len(r.Faults) > 0 || len(r.Wheels) != len(good)+8 || r.Fetched != 7 {
		t.Errorf("put right: %v, %d wheels, %d fetched", r.Faults, len(r.Wheels), r.Fetched)
	}
	for _, name := range good {
		if n := x.fetched(name); n != 1 {
			t.Errorf("%s was fetched %d times", name, n)
		}
	}
	before := 0
	for _, n := range x.got {
		before += n
	}
	r = p.house(0, append(env, "PIP_INDEX_URL=http://127.0.0.1:9/"), "tasks", "--python", "3.11")
	if r.Fetched != 0 || len(r.Wheels) != len(good)+8 {
		t.Errorf("again: %d wheels, %d fetched", len(r.Wheels), r.Fetched)
	}

	// A byte that flips in the folder is seen, though size and time are the same.
	file := p.path("w/wheels/" + flipped)
	st, err := os.Stat(file)
	p.must(err)
	p.must(os.WriteFile(file, bytes.Replace(whole, []byte("aaaaaaaa"), []byte("aaaabaaa"), 1), 0o644))
	p.must(os.Chtimes(file, st.ModTime(), st.ModTime()))
	if r = p.house(3, env, "tasks", "--python", "3.11", "--offline"); faults(r)[flipped] != "corrupt" {
		t.Errorf("a flipped byte, offline: %v", r.Faults)
	}
	if r = p.house(0, env, "tasks", "--python", "3.11"); r.Fetched != 1 || len(r.Faults) > 0 {
		t.Errorf("a flipped byte: %v, %d fetched", r.Faults, r.Fetched)
	}
	if data, err := os.ReadFile(file); err != nil || !bytes.Equal(data, whole) {
		t.Errorf("it was not fetched again: %v", err)
	}
	// One folder is for one machine.
	p.house(2, env, "tasks", "--python", "3.11", "--libc", "musl1.2")
}

// A run that is killed in the middle of a wheel leaves none of it, and the same
// command goes on from what was there.
func TestWheelhouse_Killed(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	x := newIndex(t)
	first, second := x.wheel(t, "aaa", "1.0", "py3-none-any", nil), x.wheel(t, "bbb", "1.0", "py3-none-any", nil)
	halfway := make(chan bool)
	x.hold[second] = halfway
	p.task("t", "FROM busybox\nRUN pip install aaa\nRUN pip install bbb\n")
	env := []string{"PIP_INDEX_URL=" + x.URL, "PIP_RETRIES=0"}
	cmd := bed.Command(t, bed.Bin(t, "sifbuild"), "wheelhouse", "tasks", "--out", p.path("w"), "--arch", "x86_64")
	cmd.Dir, cmd.Env = p.dir, append(cmd.Env, env...)
	p.must(cmd.Start())
	<-halfway
	p.must(cmd.Process.Kill())
	_ = cmd.Wait()
	entries, err := os.ReadDir(p.path("w/wheels"))
	if err != nil || len(entries) != 1 || entries[0].Name() != first {
		t.Errorf("after the kill: %v, %v", entries, err)
	}
	x.mu.Lock()
	delete(x.hold, second)
	x.mu.Unlock()
	r := p.house(0, env, "tasks")
	if got := wheelFiles(r); !slices.Equal(got, []string{first, second}) || r.Fetched != 1 || x.fetched(first) != 1 {
		t.Errorf("%q, %d fetched, the first %d times", got, r.Fetched, x.fetched(first))
	}
	left, _ := filepath.Glob(p.path("w/.*"))
	if len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// Whether a requirement counts is judged for the target's Python, not for the
// one that pip runs on (which is Debian 12's 3.11).
func TestWheelhouse_Markers(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	x := newIndex(t)
	want := []string{
		x.wheel(t, "asks", "1.0", "py3-none-any", nil, "newer[more]; python_version >= '3.13'", "older; python_version < '3.13'"),
		x.wheel(t, "deep", "1.0", "py3-none-any", nil),
		x.wheel(t, "newer", "1.0", "py3-none-any", nil, "deep; extra == 'more' and python_version >= '3.13'"),
	}
	older := x.wheel(t, "older", "1.0", "py3-none-any", nil)
	p.write("r.txt", "asks\n", 0o644)
	env := []string{"PIP_INDEX_URL=" + x.URL, "PIP_RETRIES=0"}
	r := p.house(0, env, "--requirements", "r.txt", "--python", "3.13")
	for _, file := range want {
		if !slices.Contains(wheelFiles(r), file) {
			t.Errorf("%s is not there: %q", file, wheelFiles(r))
		}
	}
	if slices.Contains(r.Sets[0].Files, older) != slices.Contains(wheelFiles(r), older) {
		t.Errorf("%s: %q", older, r.Sets[0].Files)
	}
	x.mu.Lock()
	delete(x.files, want[1])
	x.mu.Unlock()
	p.must(os.RemoveAll(p.path("w")))
	if r = p.house(3, env, "--requirements", "r.txt", "--python", "3.13"); faults(r)["deep"] != "no-package" || r.Sets[0].Complete {
		t.Errorf("without it: %v", r.Faults)
	}
}

// A dataset's list for one machine is the same versions for another.
func TestWheelhouse_List(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	x, _ := packages(t)
	x.wheel(t, "native", "2.1", machine, nil)
	x.wheel(t, "helper", "1.4", "py3-none-any", nil)
	p.write("wheels.txt", "# of the dataset\nnative-2.0-cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64.whl\n"+
		strings.Repeat("0", 64)+"  wheels/hello_sif-1.0-py3-none-any.whl\nhelper-1.4-py3-none-any.whl\nhelper-1.5-py3-none-any.whl\nsource-1.0.tar.gz\n", 0o644)
	env := []string{"PIP_INDEX_URL=" + x.URL, "PIP_RETRIES=0"}
	r := p.house(3, env, "--wheels", "wheels.txt")
	want := []string{"hello_sif-1.0-py3-none-any.whl", "helper-1.4-py3-none-any.whl", "helper-1.5-py3-none-any.whl", "native-2.0-" + machine + ".whl"}
	if got := wheelFiles(r); !slices.Equal(got, want) || len(r.Faults) > 0 {
		t.Errorf("%q, %v; want %q", got, r.Faults, want)
	}
	if len(r.Unread) != 1 || !strings.Contains(r.Unread[0].Reason, "source distribution") {
		t.Errorf("unread: %v", r.Unread)
	}
	lock, err := os.ReadFile(p.path("w/requirements.lock"))
	if err != nil || !strings.Contains(string(lock), "\nhelper==1.5 \\\n    --hash=sha256:") || !strings.Contains(string(lock), "\n# helper==1.4 --hash=sha256:") {
		t.Errorf("%s, %v", lock, err)
	}
}

// inFence is a command of a trial in the image, behind the strict fence, with
// the wheelhouse at /w.
func (p *place) inFence(image, script string) *exec.Cmd {
	p.t.Helper()
	args := []string{"-c", `eval "$("$0" env)" && exec apptainer -q exec --fakeroot --ignore-subuid --ignore-fakeroot-command -C -B "$1:/w:ro" --overlay "$2" "$3" /.fence/fence --read /w --why "the wheelhouse" -- bash -c "$4"`,
		bed.Bin(p.t, "fence"), p.path("w"), bed.TempDir(p.t), image, script}
	return bed.Command(p.t, "sh", args...)
}

// grader is a test.sh as Harbor's own: it fetches uv, which fetches a Python.
const grader = `#!/bin/bash
apt-get update && apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
source $HOME/.local/bin/env
uvx -p 3.13 -w pytest==8.4.1 -w pytest-json-ctrf==0.3.5 pytest -q -p no:cacheprovider --ctrf /tmp/ctrf.json /w/test_outputs.py
if [ $? -eq 0 ]; then echo 1; else echo 0; fi
`

// other is one that makes a project, and fetches uv in the other ways.
const other = `cd /root
wget -qO- https://astral.sh/uv/install.sh | sh
curl --proto '=https' --tlsv1.2 -fo i.sh https://github.com/astral-sh/uv/releases/download/0.9.5/uv-installer.sh && UV_INSTALL_DIR=/opt/uv sh i.sh
/opt/uv/uv init -q --python 3.13 p && cd p && uv add -q pytest==8.4.1 && uv run python -c "import pytest; print(pytest.__version__)"
curl -sS https://astral.sh/other; echo curl $?
`

// What a task's own index gives is for those who asked there: it is not run here,
// and no other set gets it, whatever its version.
func TestWheelhouse_StrangersIndex(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	marker := p.path("scratch/ran")
	uv := func(says string) map[string]string {
		return map[string]string{"uv-1.0.data/scripts/uv": "#!/bin/sh\necho " + says + " >>" + marker + "\n", "uv-99.0.data/scripts/uv": "#!/bin/sh\necho " + says + " >>" + marker + "\n"}
	}
	x, _ := packages(t)
	for _, name := range []string{"pytest", "pytest-json-ctrf", "pytest-timeout", "requests", "numpy"} {
		x.wheel(t, name, "1.0", "py3-none-any", nil)
	}
	x.wheel(t, "uv", "1.0", "py3-none-any", uv("ours"))
	evil := newIndex(t)
	evil.wheel(t, "uv", "99.0", "py3-none-any", uv("strangers"))
	evil.wheel(t, "helper", "99.0", "py3-none-any", nil)
	twin := evil.wheel(t, "later", "3.0", "py3-none-any", map[string]string{"evil.py": ""})
	p.task("a", "FROM busybox\nRUN pip install --index-url "+evil.URL+" uv helper later\n")
	p.task("b", "FROM busybox\nRUN pip install hello-sif\n")
	env := []string{"PIP_INDEX_URL=" + x.URL, "PIP_RETRIES=0"}
	for range 2 {
		r := p.house(3, env, "tasks", "--python", "3.11", "--grader") // no Python comes of this uv
		if got := faults(r); got[twin] != "corrupt" || got["Python 3.11"] != "interpreter" || len(got) != 2 {
			t.Errorf("%v", got)
		}
		if out, err := os.ReadFile(marker); err != nil || strings.Contains(string(out), "strangers") || r.Grader.UV != "1.0" {
			t.Errorf("uv %s, what was run: %s, %v", r.Grader.UV, out, err)
		}
		for _, s := range r.Sets {
			strangers := slices.Contains(s.Requirements, "helper")
			if slices.ContainsFunc(s.Files, func(f string) bool { return strings.Contains(f, "-99.0-") }) != strangers {
				t.Errorf("%q has %q", s.Requirements, s.Files)
			}
		}
	}
}

// The wheelhouse of a task set installs without a network, behind the fence,
// and its graders run there.
func TestWheelhouse_Installs(t *testing.T) {
	t.Parallel()
	long(t)
	bed.Require(t, "workloads", "wheels")
	p := newPlace(t)
	x, _ := packages(t)
	p.task("a", "FROM busybox\nRUN pip install hello-sif\n")
	p.write("tasks/a/solution/solve.sh", "#!/bin/sh\npip install native==2.0\n", 0o755)
	p.write("tasks/a/tests/test.sh", grader, 0o755)
	p.write("tasks/a/tests/other.sh", other, 0o755)
	r := p.house(0, []string{"PIP_INDEX_URL=" + x.URL, "PIP_FIND_LINKS=" + filepath.Join(bed.Dir(), "wheels"), "PIP_RETRIES=0"},
		"tasks", "--python", "3.11", "--grader", "--interpreter", filepath.Join(bed.Dir(), "python-3.13"))
	if r.Grader == nil || r.Grader.UV == "" || len(r.Grader.Interpreters) != 1 {
		t.Fatalf("for graders: %+v", r.Grader)
	}
	p.write("w/test_outputs.py", "import sys\n\ndef test_python():\n    assert sys.version_info[:2] == (3, 13)\n", 0o644)
	lock := ""
	for _, s := range r.Sets {
		if slices.Contains(s.Requirements, "hello-sif") {
			lock = "/w/locks/" + s.ID + ".lock"
		}
	}
	const begin = "cd /root; export HOME=/root PIP_DISABLE_PIP_VERSION_CHECK=1; python3 -m venv v >/dev/null && "
	const show = ` && v/bin/python -c "import hello_sif, helper, later; print(hello_sif.version)"`
	const uv = "export UV_CACHE_DIR=/tmp/uv VIRTUAL_ENV=/root/v; /w/bin/uv -q pip install --link-mode copy "
	image := bed.Image("workloads")
	for name, script := range map[string]string{
		"pip":                "PIP_NO_INDEX=1 PIP_FIND_LINKS=/w/wheels v/bin/pip install -q hello-sif native==2.0",
		"pip, simple":        "PIP_INDEX_URL=file:///w/simple v/bin/pip install -q hello-sif native==2.0",
		"pip, lock":          "v/bin/pip install -q --no-index --find-links /w/wheels --require-hashes -r " + lock,
		"pip, whole lock":    "v/bin/pip install -q --no-index --find-links /w/wheels --no-deps --require-hashes -r /w/requirements.lock",
		"uv":                 uv + "--no-index --find-links /w/wheels hello-sif native==2.0",
		"uv, by environment": "export UV_OFFLINE=1 UV_FIND_LINKS=/w/wheels; " + uv + "hello-sif native==2.0",
		"uv, simple":         uv + "--default-index file:///w/simple hello-sif native==2.0",
		"uv, lock":           uv + "--no-index --find-links /w/wheels --require-hashes -r " + lock,
	} {
		t.Run(name, func(t *testing.T) { says(t, p.inFence(image, begin+script+show), "1.0\n") })
	}
	for name, script := range map[string]string{
		"pip": "v/bin/pip install -q --retries 0 hello-sif", "uv": uv + "hello-sif", "uvx": "/w/bin/uvx -p 3.13 pytest --version",
	} {
		t.Run("control, "+name, func(t *testing.T) {
			if out, err := p.inFence(image, begin+script).CombinedOutput(); err == nil {
				t.Errorf("it works without the wheelhouse\n%s", out)
			}
		})
	}

	p.write("w/test.sh", grader, 0o755)
	p.write("w/other.sh", other, 0o755)
	const env = "GRADER=/w; set -a; . /w/grader.env; set +a; export HOME=/root; "
	for _, name := range []string{"debian", "workloads"} { // without a curl, and with
		t.Run("grader, "+name, func(t *testing.T) {
			for script, want := range map[string][]string{
				env + "/w/test.sh": {"\n1 passed in ", "\n1\n"},
				env + "cat /w/other.sh | PATH=/root/.local/bin:$PATH bash": {"\n8.4.1\n", "curl 6\n"},
			} {
				out, err := p.inFence(bed.Image(name), script).CombinedOutput()
				for _, text := range want {
					if err != nil || !strings.Contains("\n"+string(out), text) {
						t.Errorf("%v, no %q in\n%s", err, text, out)
					}
				}
			}
		})
	}
	t.Run("control, grader", func(t *testing.T) {
		out, err := p.inFence(bed.Image("debian"), "export HOME=/root; /w/test.sh").CombinedOutput()
		if err != nil || !strings.HasSuffix(string(out), "\n0\n") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
