package wanted

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/task"
)

// taskFiles makes files in a folder.
func taskFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const taskDockerfile = `FROM base AS other
RUN pip install not-built
FROM base
ARG V=1.5
ENV PIP_INDEX_URL=https://index.test/simple
WORKDIR /app
COPY requirements/ reqs/
COPY one.txt two.txt /lists/
COPY one.txt renamed.txt
COPY <<EOF inline.txt
inline
EOF
RUN pip install -r reqs/base.txt
RUN pip install -r /lists/two.txt -r renamed.txt -r inline.txt
RUN --mount=type=bind,source=two.txt,target=/m/r.txt pip install -r /m/r.txt
RUN ["pip3.11", "install", "exec==$V"]
RUN ["pip3.11", "install", "exec"]
RUN <<EOF
set -e
pip install heredoc==$V
EOF
RUN pip install -r gone.txt
RUN pip install \
    --no-cache-dir \
    last
`

func TestTasks(t *testing.T) {
	dir := taskFiles(t, map[string]string{
		"a/task.toml":                         "version = \"1.0\"\n",
		"a/environment/Dockerfile":            taskDockerfile,
		"a/environment/requirements/base.txt": "-r more.txt\nbase\n",
		"a/environment/requirements/more.txt": "more\n",
		"a/environment/one.txt":               "one\n",
		"a/environment/two.txt":               "two\n",
		"a/tests/test.sh":                     "#!/bin/bash\npip install -r /tests/r.txt\npip install -r inline.txt\npip install -r /tests/link.txt\n",
		"a/tests/r.txt":                       "grade\n",
		"a/tests/run":                         "#!/usr/bin/env bash\npip install by-first-line\n",
		"a/tests/test_a.py":                   "'''pip install python'''\n",
		"a/tests/notes":                       "pip install text\n",
		"a/solution/lib/x.sh":                 "pip install -r /solution/../etc/passwd\n",
		"a/steps/s1/tests/test.sh":            "pip install -r /tests/r.txt\n",
		"a/steps/s1/tests/r.txt":              "step\n",
		"b/task.toml":                         "version = \"1.0\"\n",
		"b/environment/Dockerfile":            "FROM base\nRUNN x\n",
		"b/solution/solve.sh":                 "pip install grade\n",
	})
	outside := filepath.Join(t.TempDir(), "outside.txt")
	if err := os.WriteFile(outside, []byte("private\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "a/tests/link.txt")); err != nil {
		t.Fatal(err)
	}
	tasks, skipped, err := task.Find([]string{dir}, task.Selection{})
	if err != nil || len(tasks) != 2 || len(skipped) > 0 {
		t.Fatalf("%v, %v, %v", tasks, skipped, err)
	}
	sets, left := Tasks(context.Background(), tasks, v1.Platform{OS: "linux", Architecture: "amd64"})
	const index = " index:https://index.test/simple @ a Dockerfile:"
	same(t, "sets", lines(sets), []string{
		"more base" + index + "13",
		"two one inline" + index + "14",
		"two" + index + "15",
		"exec python:3.11" + index + "17",
		"heredoc==1.5" + index + "20",
		"last" + index + "23",
		"grade @ a tests/test.sh:2; b solution/solve.sh:1",
		"inline @ a tests/test.sh:3",
		"by-first-line @ a tests/run:2",
		"step @ a steps/s1/tests/test.sh:1",
	})
	var short []string
	for _, u := range unread(left) {
		short = append(short, strings.ReplaceAll(u, dir, ""))
	}
	same(t, "unread", short, []string{
		`a Dockerfile:16 | exec==$V | "exec==$V": "==$V" is no version specifier`,
		"a Dockerfile:22 | pip install -r gone.txt | /app/gone.txt is not a file of the task: what is in it is not known here",
		"a solution/lib/x.sh:1 | pip install -r /solution/../etc/passwd | /etc/passwd is not a file of the task: what is in it is not known here",
		"a tests/test.sh:4 | pip install -r /tests/link.txt | statat link.txt: path escapes from parent",
		"b Dockerfile |  | /b/environment/Dockerfile:2: RUNN: unknown instruction (did you mean RUN?)",
	})
}

func TestFileAndList(t *testing.T) {
	dir := taskFiles(t, map[string]string{
		"r.txt":     "-r sub/s.txt\n-c c.txt\nnumpy\n-r r.txt\n-r gone.txt\n",
		"sub/s.txt": "six\n",
		"c.txt":     "numpy<2\n",
		"list": "numpy-2.1.0-cp312-cp312-manylinux_2_17_aarch64.manylinux2014_aarch64.whl\nhttps://files.test/x/six-1.16.0-py2.py3-none-any.whl#sha256=00\n" +
			"00  *dir/six-1.17.0-py2.py3-none-any.whl # why\n\nnot a wheel\nsrc-1.tar.gz\ncrypto-1-cp37-abi3-manylinux1_x86_64.whl\n",
		"folder/a-1-py3-none-any.whl": "", "folder/README": "", "folder/b-2.zip": "", "empty/x": "",
	})
	sets, left, err := File(filepath.Join(dir, "r.txt"))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "file", lines(sets), []string{"six numpy (numpy<2) @ " + dir + "/r.txt"})
	if len(left) != 1 || !strings.Contains(left[0].Reason, "no such file") {
		t.Errorf("unread: %v", left)
	}
	sets, left, err = List(filepath.Join(dir, "list"))
	if err != nil {
		t.Fatal(err)
	}
	from := "no-deps @ " + dir + "/list"
	same(t, "list", lines(sets), []string{"crypto==1 six==1.16.0 " + from, "six==1.17.0 " + from, "numpy==2.1.0 python:3.12 " + from})
	same(t, "unread of the list", unread(left), []string{
		dir + `/list:5 | not a wheel | "wheel" is no name of a wheel (NAME-VERSION-PYTHON-ABI-PLATFORM.whl)`,
		dir + "/list:6 | src-1.tar.gz | it is a source distribution: only wheels are installed without a build",
	})
	sets, left, err = List(filepath.Join(dir, "folder"))
	if err != nil || len(sets) != 1 || len(left) != 1 {
		t.Errorf("folder: %v, %v, %v", lines(sets), left, err)
	}
	for _, name := range []string{"empty", "gone"} {
		if _, _, err := List(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is a list", name)
		}
		if _, _, err := File(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is a requirements file", name)
		}
	}
}
