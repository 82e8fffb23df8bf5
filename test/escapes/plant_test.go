package escapes

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fence/test/bed"
	"fence/test/escapes/internal/wire"
)

// These tests are about the next command: what a fenced one leaves in a writable root must not run
// before, or instead of, the next one's fence.

// A root is a writable root of the ordinary user, as `apptainer exec` is told of it.
type root struct {
	kind  string
	dir   string // where its files lie on the node
	flags []string
	image string
}

// newRoot makes one. The kinds are:
//
//	links     a folder with Apptainer's own files, with links to them as images had until lately
//	nothing   a folder with nothing of Apptainer's
//	overlay   an image with a writable folder over it, as user 0
func newRoot(t *testing.T, b tools, kind string) root {
	t.Helper()
	dir, err := os.MkdirTemp(b.dir, kind+"-")
	if err != nil {
		t.Fatal(err)
	}
	r := root{kind: kind, dir: dir, image: dir, flags: []string{"--writable"}}
	script := `cp -r --no-preserve=ownership "$1/." "$2/"; cd "$2"; mkdir .fence; touch .fence/fence .fence/attempt .fence/arm etc/resolv.conf`
	switch kind {
	case "links":
		script += `; mkdir -p .singularity.d/env .singularity.d/actions; cd .singularity.d; echo export FROM_IMAGE=1 >env/90-environment.sh
			printf '#!/bin/sh\nexec "$@"\n' | tee actions/exec actions/run actions/shell >runscript; chmod 755 actions/* runscript; cd ..
			ln -s .singularity.d/env/90-environment.sh environment; ln -s .singularity.d/runscript singularity
			for a in exec run shell; do ln -s .singularity.d/actions/$a .$a; done`
	case "overlay":
		r.image = bed.Image("busybox")
		r.flags = append(slices.Clone(fakeroot), "--overlay", dir)
		script = `mkdir "$2/upper" "$2/work"`
	}
	if os.Geteuid() == 0 {
		uid, gid, _ := bed.User(t)
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := bed.Command(t, "sh", "-c", script, "sh", bed.Root("busybox"), dir).CombinedOutput(); err != nil {
		t.Fatalf("making a root: %v\n%s", err, out)
	}
	return r
}

// file is where a path of the root lies on the node.
func (r root) file(path string) string {
	if r.kind == "overlay" {
		return filepath.Join(r.dir, "upper", path)
	}
	return filepath.Join(r.dir, path)
}

// fenced is the prefix of an arm in a container, nil for none.
func fenced(arm int) []string {
	switch arm {
	case boxNamespace:
		return []string{"/.fence/fence", "--form", "namespace", "--"}
	case boxBare:
		return []string{"/.fence/fence", "--form", "bare", "--"}
	}
	return nil
}

// steps runs a row of the attempt program in the root, once for each of the paths, and returns the
// outcome of each step by path.
func (b tools) steps(t *testing.T, r root, arm int, row string, paths ...string) map[string]map[string]string {
	t.Helper()
	const script = `row=$1 paths=$2; shift 2; for what in $paths; do "$@" /.fence/attempt "$row" what="$what" || exit; done`
	argv := append([]string{"/bin/sh", "-c", script, "sh", row, strings.Join(paths, " ")}, fenced(arm)...)
	cmd := b.container(t, arm == boxBare, r.flags, r.image, argv...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd, err, out, stderr(err))
	}
	return byPath(t, string(out))
}

// byPath reads what the attempt program printed: outcomes by path and step.
func byPath(t *testing.T, out string) map[string]map[string]string {
	t.Helper()
	got := map[string]map[string]string{}
	for line := range strings.Lines(out) {
		var s wire.Step
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if got[s.What] == nil {
			got[s.What] = map[string]string{}
		}
		got[s.What][s.Step] = s.Outcome()
	}
	return got
}

func stderr(err error) string {
	if e, ok := err.(*exec.ExitError); ok {
		return string(e.Stderr)
	}
	return ""
}

// next is what the next command in the root prints, started by apptainer's exec or run, unfenced:
// whatever runs before it runs without a fence.
func (b tools) next(t *testing.T, r root, action string) string {
	t.Helper()
	script := `eval "$("$1" env)"; action=$2; shift 2; exec apptainer -q "$action" "$@"`
	args := append([]string{"-c", script, "sh", b.fence, action}, append(slices.Clone(r.flags), r.image)...)
	if action == "exec" {
		args = append(args, "/bin/sh")
	}
	out, err := bed.Command(t, "sh", append(args, "-c", "echo next")...).Output()
	if err != nil {
		t.Fatalf("the next %s: %v\n%s%s", action, err, out, stderr(err))
	}
	return string(out)
}

func TestPlantedInRoot(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	type planted struct {
		what, action    string // what is planted, and how it comes to run
		namespace, bare string // the exact error
	}
	for kind, list := range map[string][]planted{
		"links": {{"/.singularity.d/env/zz.sh", "exec", "EROFS", "EACCES"}},
		"overlay": {
			{"/.singularity.d/env/zz.sh", "exec", "EROFS", "EACCES"},
			{"/.singularity.d/runscript", "run", "EROFS", "EACCES"},
		},
		"nothing": {
			{"/environment", "exec", "EROFS", "EACCES"},
			{"/apptainer", "run", "EROFS", "EACCES"},
			// The namespace form makes the folder itself, and nobody can make one in it.
			{"/.singularity.d/env/zz.sh", "exec", "ENOENT", "ENOENT"},
			{"/.singularity.d/runscript", "run", "EROFS", "ENOENT"},
		},
	} {
		t.Run(kind, func(t *testing.T) {
			// The control, one by one: without a fence, what was planted runs.
			for _, p := range list {
				r := newRoot(t, b, kind)
				if got := b.steps(t, r, boxNone, "plant", p.what)[p.what]["plant"]; got != "OK" {
					t.Errorf("%s cannot be planted without a fence: %s", p.what, got)
				}
				if said := b.next(t, r, p.action); !strings.Contains(said, "planted") {
					t.Errorf("%s has no effect on the next %s without a fence: %q", p.what, p.action, said)
				}
			}
			for _, arm := range []int{boxNamespace, boxBare} {
				r := newRoot(t, b, kind)
				var paths []string
				for _, p := range list {
					paths = append(paths, p.what)
				}
				got := b.steps(t, r, arm, "plant", paths...)
				actions := map[string]bool{}
				for _, p := range list {
					want := p.namespace
					if arm == boxBare {
						want = p.bare
					}
					if got[p.what]["plant"] != want {
						t.Errorf("%s: planting %s: %s, want %s", armNames[arm], p.what, got[p.what]["plant"], want)
					}
					actions[p.action] = true
				}
				for action := range actions {
					said := b.next(t, r, action)
					if strings.Contains(said, "planted") || action == "exec" && said != "next\n" {
						t.Errorf("%s: the next %s said %q", armNames[arm], action, said)
					}
				}
			}
		})
	}
}

// What the runtime runs cannot be put aside, replaced or written by another name either.
func TestProtectedCannotBeReplaced(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	const (
		// chmod alone is open in the bare form: Landlock knows no such right.
		folder = `
			rename       OK | EBUSY | EACCES
			rename-away  OK | EBUSY | EACCES
			exchange     OK | EBUSY | EACCES
			replace      ENOTEMPTY | EBUSY | EACCES
			create       OK | EROFS | EACCES
			by-init      OK | EACCES | EACCES
			chmod        OK | EROFS | OK`
		file = `
			rename       OK | EBUSY | EACCES
			rename-away  OK | EBUSY | EACCES
			exchange     OK | EBUSY | EACCES
			replace      OK | EBUSY | EACCES
			remove       OK | EBUSY | EACCES
			link         OK | EXDEV | EXDEV
			open         OK | EROFS | EACCES
			truncate     OK | EROFS | EACCES
			by-init      OK | EACCES | EACCES
			chmod        OK | EROFS | OK`
		// Not there: the namespace form makes an empty one, the bare form lets
		// nobody make anything in "/".
		absent = `
			rename       ENOENT | EBUSY | ENOENT
			rename-away  ENOENT | EBUSY | ENOENT
			exchange     ENOENT | EBUSY | ENOENT
			replace      OK | EBUSY | EACCES
			remove       ENOENT | EBUSY | ENOENT
			link         ENOENT | EXDEV | ENOENT
			open         ENOENT | EROFS | ENOENT
			truncate     ENOENT | EROFS | ENOENT
			by-init      ENOENT | EACCES | EACCES
			chmod        ENOENT | EROFS | ENOENT`
	)
	// A folder of the image below cannot be moved in this overlay by anybody.
	overlay := strings.NewReplacer("rename       OK", "rename       EXDEV", "rename-away  OK", "rename-away  EXDEV", "exchange     OK", "exchange     EXDEV").Replace(folder)
	// Inside a pinned folder: one mount.
	within := strings.NewReplacer("rename       OK | EBUSY", "rename       OK | EROFS", "remove       OK | EBUSY", "remove       OK | EROFS", "EBUSY", "EXDEV").Replace(file)
	for kind, list := range map[string]map[string]string{
		"links":   {"/.singularity.d": folder, "/environment": file, "/singularity": file, "/.exec": file},
		"overlay": {"/.singularity.d": overlay, "/.singularity.d/env/90-environment.sh": within, "/.run": file},
		"nothing": {"/.fence": folder, "/environment": absent, "/.shell": absent, "/apptainer": absent},
	} {
		t.Run(kind, func(t *testing.T) {
			for i, arm := range []int{boxNone, boxNamespace, boxBare} {
				r := newRoot(t, b, kind)
				paths := slices.Sorted(maps.Keys(list))
				got := b.steps(t, r, arm, "replace", paths...)
				for _, what := range paths {
					expect(t, armNames[arm]+": "+what, got[what], list[what], i)
				}
			}
		})
	}
}

// An image's script may call a program of the image. That one runs unfenced, before the next
// command, and is the task's to replace: known to remain, for who starts several commands on one
// writable root.
func TestImageScriptRunsPrograms(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	for _, arm := range []int{boxNone, boxNamespace, boxBare} {
		r := newRoot(t, b, "links")
		script := `export NAME=$(/usr/local/bin/name); test -z "$NAME" || echo "$NAME"`
		if err := os.WriteFile(r.file(".singularity.d/env/90-environment.sh"), []byte(script), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := b.steps(t, r, arm, "plant", "/usr/local/bin/name")["/usr/local/bin/name"]["plant"]; got != "OK" {
			t.Errorf("%s: planting it: %s", armNames[arm], got)
		}
		if said := b.next(t, r, "exec"); !strings.Contains(said, "planted") {
			t.Errorf("%s: the next exec said %q", armNames[arm], said)
		}
	}
}

// A careless person mounts the tools without ":ro", in an image that is read-only itself.
func TestLauncherCannotBeReplaced(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	for i, arm := range []int{boxNone, boxNamespace, boxBare} {
		tools := filepath.Join(b.dir, fmt.Sprint("tools", arm))
		if out, err := bed.Command(t, "sh", "-c", `mkdir "$3" && cp "$1" "$2" "$3"`, "sh", b.fence, b.attempt, tools).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		before := tree(t, tools)
		const script = `apptainer -q exec -C --no-mount bind-paths,home,cwd,hostfs,tmp --bind "$1:/.fence" "$2" sh -c "$3" sh "$4"`
		const inside = `for what in /.fence/fence /.fence; do $1 /.fence/attempt replace what=$what; done; $1 /.fence/attempt plant what=/.fence/new`
		args := []string{"-c", script, "sh", tools, bed.Image("debian"), inside, strings.Join(fenced(arm), " ")}
		cmd := bed.Command(t, "sh", args...)
		if arm == boxBare {
			cmd = bed.Limited(t, []string{"max_user_namespaces=1"}, "sh", args...)
		}
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s%s", cmd, err, out, stderr(err))
		}
		got := byPath(t, string(out))
		// Nothing can be moved or linked out or in by anybody: it is a mount of its
		// own, in an image that cannot be written.
		expect(t, armNames[arm]+": /.fence/fence", got["/.fence/fence"], `
			rename       OK | EROFS | EACCES
			rename-away  EXDEV | EXDEV | EXDEV
			exchange     EXDEV | EXDEV | EXDEV
			replace      EXDEV | EXDEV | EXDEV
			link         EROFS | EROFS | EROFS
			remove       OK | EROFS | EACCES
			open         OK | EROFS | EACCES
			truncate     OK | EROFS | EACCES
			by-init      OK | EACCES | EACCES
			chmod        OK | EROFS | OK`, i)
		expect(t, armNames[arm]+": /.fence/new", got["/.fence/new"], `
			plant  OK | EROFS | EACCES
			write  OK | - | -`, i)
		if changed := tree(t, tools) != before; changed != (arm == boxNone) {
			t.Errorf("%s: the tools were changed: %v", armNames[arm], changed)
		}
	}
}

// A program called fence that a command leaves in a writable root is what its name finds first;
// the launcher is called by its whole path.
func TestPlantedInPath(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	r := newRoot(t, b, "links")
	if got := b.steps(t, r, boxNamespace, "plant", "/usr/local/sbin/fence", "/usr/local/bin/fence"); got["/usr/local/bin/fence"]["plant"] != "OK" {
		t.Fatalf("a program cannot be put into the root: %v", got)
	}
	run := func(argv ...string) string {
		t.Helper()
		cmd := b.container(t, false, r.flags, r.image, argv...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s%s", cmd, err, out, stderr(err))
		}
		return string(out)
	}
	if got := run("fence", "--", "/.fence/attempt", "13"); got != "planted\n" {
		t.Errorf("by its name, the control: %q", got)
	}
	if got := byPath(t, run("/.fence/fence", "--", "/.fence/attempt", "13"))[""]["socketpair"]; got != "EAFNOSUPPORT" {
		t.Errorf("by its path: socketpair gave %s", got)
	}
}

// What an image's own script says about policies is not heard; outside, what is not known is an
// error.
func TestImageCannotChoosePolicy(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	open := filepath.Join(b.dir, "open.toml")
	const text = "version = 1\nextends = \"strict\"\n[network]\nmode = \"host\"\nwhy = \"a test\"\n"
	if err := os.WriteFile(open, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r := newRoot(t, b, "links")
	for name, content := range map[string]string{
		"open.toml": text, ".singularity.d/env/90-environment.sh": "export FENCE_POLICY=/open.toml FENCE_UNKNOWN=1 BASH_ENV=/evil LD_PRELOAD=/evil.so\n",
	} {
		if err := os.WriteFile(r.file(name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	policyOf := func(cmd *exec.Cmd) string {
		t.Helper()
		out, err := cmd.Output()
		var status struct{ Policy, Network string }
		if err == nil {
			err = json.Unmarshal([]byte(strings.SplitN(string(out), "\n", 2)[0]), &status)
		}
		if err != nil {
			t.Fatalf("%v: %v\n%s%s", cmd, err, out, stderr(err))
		}
		return status.Policy + " " + status.Network
	}
	status := []string{"--status-fd", "1", "--", "/bin/true"}
	// The control: the script is run, and the same variable is heard outside.
	if out, err := b.container(t, false, r.flags, r.image, "/bin/sh", "-c", "echo $FENCE_POLICY").Output(); err != nil || string(out) != "/open.toml\n" {
		t.Errorf("the image's script sets FENCE_POLICY: %q %v", out, err)
	}
	outside := bed.Command(t, b.fence, status...)
	outside.Env = append(outside.Env, "FENCE_POLICY="+open)
	if got := policyOf(outside); got != open+" host" {
		t.Errorf("FENCE_POLICY outside: %q", got)
	}

	if got := policyOf(b.container(t, false, r.flags, r.image, append([]string{"/.fence/fence"}, status...)...)); got != "strict none" {
		t.Errorf("FENCE_POLICY of the image: %q", got)
	}
	outside = bed.Command(t, b.fence, status...)
	outside.Env = append(outside.Env, "FENCE_UNKNOWN=1")
	out, err := outside.CombinedOutput()
	if outside.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "FENCE_UNKNOWN") {
		t.Errorf("an unknown FENCE_ variable outside: %v\n%s", err, out)
	}
}

// tree is all files of a folder with their contents.
func tree(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", `cd "$1" && find . -exec stat -c "%n %F %s %i" {} + && find . -type f -exec sha256sum {} +`, "sh", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(out), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// expect compares outcomes with a column of lines such as "open OK | EROFS | EACCES".
func expect(t *testing.T, where string, got map[string]string, want string, column int) {
	t.Helper()
	got = maps.Clone(got)
	for line := range strings.Lines(strings.TrimSpace(want)) {
		name, cells, _ := strings.Cut(strings.TrimSpace(line), " ")
		cell := strings.TrimSpace(strings.Split(cells, "|")[column])
		outcome, ok := got[name]
		if !ok {
			outcome = "-"
		}
		if !matches(cell, outcome, 0) {
			t.Errorf("%s: %s: %s, want %s", where, name, outcome, cell)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("%s: not expected: %v", where, got)
	}
}
