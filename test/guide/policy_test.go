package guide

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"fence/pkg/status"
	"fence/test/bed"
)

// The folder lies on shared storage and is bound at another place; the policy
// comes along beside the programs.
const wheelsExec = `eval "$(fence env)"
apptainer exec --bind $PWD/wheels:/wheels,$PWD/wheels.toml:/.fence/wheels.toml:ro img.sif `

func TestPolicy_OneFolder(t *testing.T) {
	p := newPlace(t)
	if err := os.Mkdir(p.path("wheels"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.own("wheels")
	const text = "canary: a wheel\n"
	p.write("wheels/a.whl", text, 0o644)
	wheels := example(t, "wheels.toml")
	p.write("wheels.toml", wheels, 0o644)
	const changes = `
cat /wheels/a.whl; ls /wheels
w() { if "$@" 2>/dev/null; then echo "$* WORKS"; fi; }
w sh -c 'echo x >>/wheels/a.whl'; w sh -c 'echo x >/wheels/new'; w mkdir /wheels/d; w rm /wheels/a.whl; w mv /wheels/a.whl /wheels/b.whl
w ln /wheels/a.whl /wheels/l; w truncate -s 1 /wheels/a.whl; cd /wheels; w sh -c 'echo x >relative'; w sh -c 'echo x >/proc/self/cwd/new'
ls -d /proj/* 2>/dev/null
`
	control := p.ok(p.sh(wheelsExec + `sh -c 'echo x >/wheels/control && rm /wheels/control && echo writable'`))
	if control.stdout != "writable\n" {
		t.Fatalf("control: %q", control.stdout)
	}
	for _, tc := range []struct {
		form   string
		limits []string
	}{{"namespace", nil}, {"namespace", noNetns}, {"bare", nested}} {
		t.Run(tc.form+fmt.Sprint(tc.limits), func(t *testing.T) {
			p := place{t, p.dir}
			r := p.on(tc.limits, wheelsExec+`/.fence/fence --policy /.fence/wheels.toml --status-fd 9 -- sh -c "$(cat <<'EOF'`+changes+"EOF\n)\" 9>status.json")
			if r.stdout != text+"a.whl\n" {
				t.Errorf("it prints\n%s", r.stdout)
			}
			if got := p.read("wheels/a.whl"); got != text {
				t.Errorf("the wheel is %q", got)
			}
			if files, _ := os.ReadDir(p.path("wheels")); len(files) != 1 {
				t.Errorf("the folder has %v", files)
			}
			status := decoded[status.Status](t, p.read("status.json"))
			if status.Form != tc.form || len(status.Opened) != 1 || status.Opened[0].What != "read /wheels" ||
				status.Opened[0].Why != "offline wheelhouse: no network, tasks pip install" || !strings.HasPrefix(status.Opened[0].From, "/.fence/wheels.toml:") {
				t.Errorf("the status line: %+v", status)
			}
			// The site's storage at its own place stays hidden, whatever is bound from it.
			r = p.on(tc.limits, wheelsExec+`/.fence/fence --policy /.fence/wheels.toml -- ls `+bed.Project)
			if r.code == 0 || strings.Contains(r.stdout, "fencer") {
				t.Errorf("the project: exit code %d, %q", r.code, r.stdout)
			}
			r = p.ok(p.on(tc.limits, wheelsExec+`/.fence/fence explain --policy /.fence/wheels.toml`))
			for _, want := range []string{"opened       read /wheels: offline wheelhouse: no network, tasks pip install\n", "private data: by policy (what lies in /wheels)"} {
				if !strings.Contains(r.stdout, want) {
					t.Errorf("explain does not say %q:\n%s", want, r.stdout)
				}
			}
		})
	}
	// The strict policy alone does not show it.
	if r := p.sh(wheelsExec + `/.fence/fence -- cat /wheels/a.whl`); r.code == 0 || strings.Contains(r.stdout, "canary") {
		t.Errorf("strict shows a bound folder: %q", r.stdout)
	}
	// Without a why nothing runs.
	before, _, _ := strings.Cut(wheels, "[[open]]")
	line := strings.Count(before, "\n") + 1
	p.write("wheels.toml", strings.ReplaceAll(wheels, "why = ", "# why = "), 0o644)
	for _, verb := range []string{"explain --policy /.fence/wheels.toml", "--policy /.fence/wheels.toml -- echo ran"} {
		r := p.sh(wheelsExec + `/.fence/fence ` + verb)
		if want := fmt.Sprintf("fence: /.fence/wheels.toml:%d: no reason is given\nhint: add why = \"...\"\n", line); r.code != 2 || r.stdout != "" || r.stderr != want {
			t.Errorf("%s without a why: exit code %d, %q, %q; want 2 and %q", verb, r.code, r.stdout, r.stderr, want)
		}
	}
}

// Inside a container only the command line says which policy: the image's
// scripts could set a variable.
// The kernel lets a named pipe be written on a read-only mount.
func TestPolicy_PipeOpenedForReading(t *testing.T) {
	p := newPlace(t)
	if err := os.Mkdir(p.path("in"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.own("in")
	p.ok(p.sh("mkfifo in/pipe"))
	reader, err := os.OpenFile(p.path("in/pipe"), os.O_RDWR, 0) // opening it waits for nobody
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	const exec, orders = `eval "$(fence env)"; apptainer exec --bind $PWD/in:/in`, ` sh -c 'echo orders >/in/pipe'`
	p.ok(p.sh(exec + ":ro img.sif" + orders))
	got := make([]byte, 100)
	if n, err := reader.Read(got); string(got[:n]) != "orders\n" {
		t.Fatalf("control: %q, %v", got[:n], err)
	}
	for _, tc := range []struct {
		where  string
		limits []string
		line   string
	}{
		{"container", nil, exec + " img.sif /.fence/fence --read /in --why w --" + orders},
		{"bare", nested, exec + " img.sif /.fence/fence --read /in --why w --" + orders},
		{"node", nil, `d=$(mktemp -d -p ~) && trap 'rm -r $d' EXIT && mkfifo $d/pipe && exec 9<>$d/pipe
			fence --read $d --why w -- sh -c "echo orders >$d/pipe"`},
	} {
		if r := p.on(tc.limits, tc.line); r.code == 0 || !strings.Contains(r.stderr, "Permission denied") {
			t.Errorf("%s: exit code %d, %s", tc.where, r.code, r.stderr)
		}
	}
	r := p.ok(p.sh(exec + " --writable-tmpfs img.sif /.fence/fence explain --read /in --why w"))
	if !strings.Contains(r.stdout, "named pipes") {
		t.Errorf("where the root can be written, nothing says so:\n%s", r.stdout)
	}
}

// Without a built-in policy below it, @root stands for the root alone, and a
// folder that is listed to be read cannot be changed.
func TestPolicy_FromNothing(t *testing.T) {
	p := newPlace(t)
	for _, dir := range []string{"data", "in"} {
		if err := os.Mkdir(p.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		p.own(dir)
	}
	const change = ` sh -c 'echo x >/data/new; echo x >/in/new; ls /data /in >&2; echo ran'`
	line := func(read, fence string) string {
		return `printf 'version = 1\n[filesystem]\nread = ["@root"` + read + `]\nwrite = ["@root", "@tmp"]\nwhy = "w"\n[environment]\nkeep = ["PATH"]\n' >q.toml
			eval "$(fence env)"; apptainer exec --bind $PWD/data:/data,$PWD/in:/in,$PWD/q.toml:/.fence/q.toml:ro img.sif ` + fence + change
	}
	const fence = "/.fence/fence --policy /.fence/q.toml --"
	left := func() string {
		var out string
		for _, dir := range []string{"data", "in"} {
			files, _ := os.ReadDir(p.path(dir))
			for _, f := range files {
				out += dir + "/" + f.Name() + " "
				os.Remove(p.path(dir + "/" + f.Name()))
			}
		}
		return out
	}
	if p.ok(p.sh(line("", ""))); left() != "data/new in/new " {
		t.Fatal("control: without the fence they cannot be changed")
	}
	for _, limits := range [][]string{nil, nested} {
		for _, read := range []string{"", `, "/data"`} {
			r := p.on(limits, line(read, fence))
			if r.code != 125 || r.stdout != "" || !strings.Contains(r.stderr, "is mounted here, and the policy neither hides nor opens it") {
				t.Errorf("read [@root%s]: exit code %d, %s%s", read, r.code, r.stdout, r.stderr)
			}
		}
		if r := p.on(limits, line(`, "/data", "/in"`, fence)); r.stdout != "ran\n" {
			t.Errorf("exit code %d, %s%s", r.code, r.stdout, r.stderr)
		}
		if got := left(); got != "" {
			t.Errorf("it made %s", got)
		}
	}
}

func TestPolicy_NotFromTheImage(t *testing.T) {
	p := newPlace(t)
	for _, v := range []string{"FENCE_POLICY=build", "FENCE_POLICY=nosuch", "FENCE_NONSENSE=1"} {
		r := p.ok(p.sh(`eval "$(fence env)"; apptainer exec --env ` + v + ` img.sif /.fence/fence explain`))
		if !strings.HasPrefix(r.stdout, "policy       strict (") {
			t.Errorf("%s: %.40s", v, r.stdout)
		}
	}
	// Outside it is read, and what is not known is refused.
	if r := p.sh(`fence explain`, "FENCE_POLICY=build"); r.code != 0 || !strings.HasPrefix(r.stdout, "policy       build (") {
		t.Errorf("outside: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := p.sh(`fence -- echo ran`, "FENCE_NONSENSE=1"); r.code != 2 || r.stdout != "" || r.stderr != "fence: the variable FENCE_NONSENSE is not known\nhint: the only one is FENCE_POLICY\n" {
		t.Errorf("an unknown variable: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// The site's file adds to what is hidden. A broken one stops everything.
func TestPolicy_SiteFile(t *testing.T) {
	p := newPlace(t)
	run := func(site, command string) result {
		p.write("site.toml", site, 0o644)
		return p.sh(`eval "$(fence env)"; apptainer exec --bind $PWD/site.toml:/etc/fence/site.toml:ro img.sif ` + command)
	}
	const good = "version = 1\n[filesystem]\nhide = [\"/usr/share/doc\"]\n"
	if r := run(good, `sh -c 'ls /usr/share/doc | grep -q . && echo seen'`); r.stdout != "seen\n" {
		t.Fatalf("control: %q", r.stdout)
	}
	if r := p.ends(run(good, `/.fence/fence -- sh -c 'ls /usr/share/doc | grep . || echo hidden'`), 0); r.stdout != "hidden\n" {
		t.Errorf("hidden by the site: %q", r.stdout)
	}
	if r := run(good, `/.fence/fence --read /usr/share/doc --why "I want it" -- ls /usr/share/doc`); r.code != 2 || r.stdout != "" || !strings.Contains(r.stderr, "/usr/share/doc") {
		t.Errorf("opened all the same: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	// The image's own file is what an earlier command of the task left there.
	p.write("own.toml", "hide = nothing that could be parsed", 0o644)
	own := p.sh(`eval "$(fence env)"; apptainer exec --fakeroot --writable-tmpfs --bind $PWD/own.toml:/own.toml:ro img.sif sh -c '
		mkdir -p /etc/fence && cp /own.toml /etc/fence/site.toml && cat /etc/fence/site.toml && exec /.fence/fence -- echo ran'`)
	if p.ends(own, 0); own.stdout != "hide = nothing that could be parsedran\n" {
		t.Errorf("with the image's own file: %q", own.stdout)
	}
	for _, tc := range []struct{ site, says string }{
		{"version = 1\n[filesystem]\nhide = [\"/usr/share/doc\"\n", "/etc/fence/site.toml:"},
		{"version = 1\n[filesystem]\nread = [\"/data\"]\n", "/etc/fence/site.toml:3: "},
		{"version = 1\n[filesystem]\nhide = [\"data\"]\n", "/etc/fence/site.toml:3: "},
		{"", "/etc/fence/site.toml:1: "},
	} {
		r := run(tc.site, `/.fence/fence -- echo ran`)
		if r.code != 2 || r.stdout != "" || !strings.HasPrefix(r.stderr, "fence: "+tc.says) {
			t.Errorf("%q: exit code %d, %q\n%s", tc.site, r.code, r.stdout, r.stderr)
		}
	}
	// One that cannot be read hides what nobody knows: not fenced. (What is one's own can be read in a user namespace.)
	if os.Geteuid() != 0 {
		bed.Missing(t, "root: only root can make a file that the person cannot read")
	}
	if err := errors.Join(os.Chown(p.path("site.toml"), 0, 0), os.Chmod(p.path("site.toml"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if r := p.sh(`eval "$(fence env)"; apptainer exec --bind $PWD/site.toml:/etc/fence/site.toml:ro img.sif /.fence/fence -- echo ran`); r.code != 125 || r.stdout != "" ||
		!strings.Contains(r.stderr, "/etc/fence/site.toml: permission denied") {
		t.Errorf("an unreadable site file: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}
