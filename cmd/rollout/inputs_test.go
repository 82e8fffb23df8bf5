package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	urfave "github.com/urfave/cli/v2"

	"fence/pkg/harbor"
	"fence/pkg/spec"
	"fence/pkg/task"
	"fence/pkg/trial"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// Where an image is looked for: what a record says, then the cache's index, then
// the names of Harbor's workers; of other files than the task has, never.
func TestFinder(t *testing.T) {
	dir := t.TempDir()
	context := filepath.Join(dir, "tasks/one/environment")
	one := task.Task{Name: "one", Dir: filepath.Join(dir, "tasks/one"), Dockerfile: write(t, filepath.Join(context, "Dockerfile"), "FROM scratch\n"), Context: context}
	named, err := harbor.Name(one)
	if err != nil {
		t.Fatal(err)
	}
	cache := filepath.Join(dir, "cache")
	image := func(name string) string { return write(t, filepath.Join(cache, name), "") }
	index := func(environment string) harbor.Entry {
		return harbor.Entry{Task: "one", Dockerfile: named.Dockerfile, Environment: environment, Image: "sif/key.sif"}
	}
	for name, c := range map[string]struct {
		finder func() *finder
		want   string // the file, or a part of the message
	}{
		"one for all": {func() *finder { return &finder{one: "/all.sif"} }, "/all.sif"},
		"a record": {func() *finder {
			f := &finder{told: map[string]told{}}
			f.records([]byte("some text\n" + fmt.Sprintf(`{"schema":"sifbuild.image/v1","task":%q,"image":"/told.sif"}`, one.Dir) + "\n"))
			return f
		}, "/told.sif"},
		"a record of a failed build": {func() *finder {
			f := &finder{told: map[string]told{}}
			f.records([]byte(fmt.Sprintf(`{"task":%q,"image":"","fault":{"class":"step","message":"RUN false"}}`, one.Dir)))
			return f
		}, "sifbuild made no image: step: RUN false"},
		"the index": {func() *finder {
			image("sif/key.sif")
			return &finder{cache: cache, index: map[string][]harbor.Entry{"one": {index(named.Environment)}}}
		}, filepath.Join(cache, "sif/key.sif")},
		"the index, of other files": {func() *finder {
			image("sif/key.sif")
			return &finder{cache: cache, index: map[string][]harbor.Entry{"one": {index("other")}}}
		}, "its image is not in"},
		"a worker's name": {func() *finder { image(named.Files[1]); return &finder{cache: cache} }, filepath.Join(cache, named.Files[1])},
		"another worker's name": {func() *finder {
			image("x-" + named.Dockerfile[:12] + ".sif")
			return &finder{cache: cache}
		}, filepath.Join(cache, "x-"+named.Dockerfile[:12]+".sif")},
		"nothing":  {func() *finder { return &finder{cache: cache} }, "its image is not in " + cache},
		"no cache": {func() *finder { return &finder{} }, "no cache of images is named"},
	} {
		if err := os.RemoveAll(cache); err != nil {
			t.Fatal(err)
		}
		got, fault := c.finder().image(one)
		if fault != nil {
			got = fault.Message
			if fault.Phase != "build" || fault.Class != "image_missing" {
				t.Errorf("%s: %+v", name, fault)
			}
		}
		if got != c.want && !(fault != nil && strings.Contains(got, c.want)) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// Tasks that are missed in one place have one hint.
func TestSayMissing(t *testing.T) {
	missing := func(name, message string) item {
		return item{Spec: spec.Spec{Task: task.Task{Name: name}}, broken: noImage("image_missing", "infra", "build "+name, "%s", message)}
	}
	var said strings.Builder
	sayMissing(&said, []item{missing("a", "not in C"), {}, missing("b", "step: RUN false"), missing("c", "not in C"), missing("d", "not in C")})
	if want := "rollout: a and 2 more: not in C\nhint: build a\nrollout: b: step: RUN false\nhint: build b\n"; said.String() != want {
		t.Errorf("%q, want %q", said.String(), want)
	}
}

// A verifier of its own has the task's image, unless it names another, which
// --image does not stand for.
func TestFinder_Separate(t *testing.T) {
	f := &finder{one: "/all.sif", told: map[string]told{"/tasks/one/tests": {Image: "/tests.sif"}}}
	it := item{image: "/all.sif"}
	if got, fault := f.separate(it, &spec.Environment{}); fault != nil || got != "/all.sif" {
		t.Errorf("%s, %+v", got, fault)
	}
	if got, fault := f.separate(it, &spec.Environment{Context: "/tasks/one/tests"}); fault != nil || got != "/tests.sif" {
		t.Errorf("%s, %+v", got, fault)
	}
	// A prebuilt image is not the task's own, of which there is a record as well.
	f.told["/tasks/three"] = told{Image: "/three.sif"}
	if got, fault := f.separate(it, &spec.Environment{Context: "/tasks/three/tests", Image: "judge:1"}); fault == nil {
		t.Errorf("judge:1 is %s", got)
	}
	if _, fault := f.separate(it, &spec.Environment{Context: "/tasks/two/tests"}); fault == nil || !strings.HasPrefix(fault.Message, "of its verifier: ") {
		t.Errorf("%+v", fault)
	}
}

// An image that could not be fetched may be there the next time; one whose steps
// fail will not.
func TestFinder_Failed(t *testing.T) {
	for retry, want := range map[bool]string{true: "infra", false: "task"} {
		var record told
		if err := json.Unmarshal(fmt.Appendf(nil, `{"fault":{"class":"x","retry":%v}}`, retry), &record); err != nil {
			t.Fatal(err)
		}
		f := &finder{told: map[string]told{"/t": record}}
		if _, fault := f.image(task.Task{Dir: "/t"}); fault == nil || fault.Class != "image_missing" || fault.Cause != want {
			t.Errorf("that can be tried again, %v: %+v", retry, fault)
		}
	}
}

// with runs f as a command with these arguments.
func with(t *testing.T, f func(c *urfave.Context) error, args ...string) {
	t.Helper()
	app := &urfave.App{Name: "rollout", DisableSliceFlagSeparator: true, Flags: slices.Concat(selectFlags(), runFlags(), modelFlags(), fenceFlags()), Action: f}
	if err := app.Run(append([]string{"rollout"}, args...)); err != nil {
		t.Fatal(err)
	}
}

// What the folders of sifbuild wheelhouse are for trials: the tests alone have
// the grader's variables, and its programs come first in their PATH.
func TestBundles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "wheels/x.whl"), "")
	data, err := os.ReadFile("../../pkg/wheelhouse/grader.env")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "grader.env"), string(data))
	with(t, func(c *urfave.Context) error {
		o := trial.Options{Env: map[string]string{}, VerifierEnv: map[string]string{}}
		if err := bundles(c, &o); err != nil {
			return err
		}
		if o.Env["PIP_FIND_LINKS"] != "/.wheelhouse/wheels" || o.Env["PIP_NO_INDEX"] != "1" || o.Env["UV_OFFLINE"] != "1" {
			t.Errorf("of every command: %v", o.Env)
		}
		if o.VerifierEnv["UV_PYTHON_INSTALL_DIR"] != "/.grader/python" || o.VerifierEnv["PIP_FIND_LINKS"] != "/.grader/wheels" || !slices.Equal(o.VerifierPath, []string{"/.grader/bin"}) {
			t.Errorf("of the tests: %v, PATH %v", o.VerifierEnv, o.VerifierPath)
		}
		for name, value := range o.VerifierEnv {
			if strings.Contains(value, "$") || name == "PATH" {
				t.Errorf("%s=%s", name, value)
			}
		}
		if text, _ := json.Marshal(o.Box.Binds); len(o.Box.Binds) != 2 || o.Box.Binds[0].Why == "" || o.Box.Binds[1].Target != "/.grader" {
			t.Errorf("bound: %s", text)
		}
		return nil
	}, "--wheelhouse", dir, "--grader", dir)
}

func TestOpens(t *testing.T) {
	with(t, func(c *urfave.Context) error {
		got, err := opens(c)
		want := "[{/opt/a read  because: of this} {/opt/b write  they build there} {  ptrace gdb}]"
		if text := fmt.Sprint(got); err != nil || text != want {
			t.Errorf("%s, %v\nwant %s", text, err, want)
		}
		return nil
	}, "--open", "/opt/a:because: of this", "--open", "/opt/b:write:they build there", "--open", "syscall=ptrace:gdb")
}

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{"8G": 8 << 30, "1.5k": 1536, "100": 100, "0": 0} {
		with(t, func(c *urfave.Context) error {
			if got, err := size(c, "memory"); err != nil || got != want {
				t.Errorf("%s: %d, %v", text, got, err)
			}
			return nil
		}, "--memory", text)
	}
}

// What a flag names is read if it is a file, and not waited for: no signal ends
// an open of a FIFO.
func TestFilesOfFlagsAreFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"fifo", "grader.env", harbor.IndexFile} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, flag := range []string{"policy", "image", "grader", "sif-cache", "api-key-file"} {
		for _, value := range []string{filepath.Join(dir, "fifo"), "/dev/zero", dir} {
			with(t, func(c *urfave.Context) error {
				_, policy := opens(c)
				_, images := newFinder(c)
				_, key := key(c)
				err := errors.Join(policy, images, key, bundles(c, &trial.Options{Env: map[string]string{}, VerifierEnv: map[string]string{}}))
				if err == nil {
					t.Errorf("--%s %s: %v", flag, value, err)
				}
				return nil
			}, "--"+flag, value)
		}
	}
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	if _, err := readAll(t.Context(), zero); err == nil {
		t.Error("standard input has no end")
	}
}
