package guide

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"fence/pkg/probe"
	"fence/pkg/sandbox"
	"fence/pkg/status"
	"fence/test/bed"
)

// bind shows the programs in a container as `fence env` does, and leaves all
// else as the site has it.
const bind = `--bind $PWD/bin/fence:/.fence/fence:ro,$PWD/bin/probe:/.fence/probe:ro`

// nested is a node on which Apptainer works and nothing in its containers may
// have a user namespace, as with a setuid Apptainer: fence takes the bare form.
var nested = []string{"max_user_namespaces=1"}

var noNetns = []string{"max_net_namespaces=0"}

// The guide's table. Before is the site's default container, without the
// fence and without `fence env`; after, the same command behind the fence.
func TestTable(t *testing.T) {
	p := newPlace(t)
	p.listener()
	unfenced := func(p place, limits []string) {
		p.t.Helper()
		p.ends(p.on(limits, `apptainer exec `+bind+` img.sif /.fence/probe --canary - <c.json >before.json`), 0, 3)
	}
	p.ends(p.sh(`probe --canary c.json >host.json`), 0, 3)
	for _, tc := range []struct {
		name, form string
		limits     []string
		script     string // makes after.json
		shared     string // the word of the first row
	}{
		{"fence env", "namespace", nil, `eval "$(fence env)"; apptainer exec img.sif /.fence/fence --status-fd 9 -- /.fence/probe --canary -`, "not mounted"},
		{"the site's mounts stay", "namespace", nil, `apptainer exec ` + bind + ` img.sif /.fence/fence --status-fd 9 -- /.fence/probe --canary -`, "masked"},
		{"fence env, no network namespaces", "namespace", noNetns, `eval "$(fence env)"; apptainer exec img.sif /.fence/fence --status-fd 9 -- /.fence/probe --canary -`, "not mounted"},
		{"the site's mounts stay, no network namespaces", "namespace", noNetns, `apptainer exec ` + bind + ` img.sif /.fence/fence --status-fd 9 -- /.fence/probe --canary -`, "masked"},
		{"fence env, bare form", "bare", nested, `eval "$(fence env)"; apptainer exec img.sif /.fence/fence --status-fd 9 -- /.fence/probe --canary -`, "not mounted"},
		// With a /tmp of its own: in the host's, with others' sockets to hide in it, nothing new could be made.
		{"the guide's own level", "bare", nested, `apptainer exec ` + bind + ` --no-mount tmp --scratch /tmp,/var/tmp img.sif /.fence/fence ` + accept + ` --status-fd 9 -- /.fence/probe --canary -`, "denied"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := place{t, p.dir}
			var after probe.Report
			var gate result
			for range 3 {
				unfenced(p, tc.limits)
				p.ends(p.on(tc.limits, tc.script+` <c.json >after.json 9>status.json`), 0, 3)
				after = p.report("after.json")
				gate = p.sh(`probe gate after.json --before before.json --expect strict`)
				if !late(after) && !late(p.report("before.json")) {
					break
				}
				t.Log("a check got no answer in time: again")
			}
			status := decoded[status.Status](t, p.read("status.json"))
			if status.Form != tc.form {
				t.Errorf("the form is %s, want %s", status.Form, tc.form)
			}
			r := p.sh(`probe diff --json host.json before.json after.json`)
			d := decoded[probe.Comparison](t, r.stdout)
			var got []string
			for _, row := range d.Rows {
				got = append(got, fmt.Sprintf("%s: %s, %s, %s", row.Name, row.Host.Word, row.Before.Word, row.After.Word))
			}
			want := []string{
				"Shared project filesystem: visible, visible, " + tc.shared,
				"TCP connection to an outside host: open, open, denied",
				"UDP socket (DNS): allowed, allowed, denied",
				"System-call filter: none, none, active",
				"Writing inside the task's own directories: works, works, works",
			}
			if !slices.Equal(got, want) {
				t.Errorf("the table says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if r.code != 0 || d.Answer != probe.Yes {
				t.Errorf("the comparison says %s (exit code %d): %q", d.Answer, r.code, d.Reasons)
			}
			// The rows rest on attempts at what is known to be there.
			rests := fmt.Sprint(d.Rows[0].After.RestsOn, d.Rows[1].After.RestsOn)
			for _, target := range []string{bed.Project, "canary:127.0.0.1"} {
				if !strings.Contains(rests, target) {
					t.Errorf("the rows do not rest on %s: %s", target, rests)
				}
			}
			if level := tc.shared == "denied"; level && (gate.code != 1 || !strings.Contains(gate.stdout, "fs.shared.stat["+bed.Project+"]: reachable")) {
				t.Errorf("strict takes what can be stat'ed (exit code %d)\n%s", gate.code, gate.stdout)
			} else if !level && gate.code != 0 {
				t.Errorf("the gate says\n%s", gate.stdout)
			}
		})
	}
}

// accept is all that a person takes who has no user namespaces and leaves the
// site's mounts as they are.
const accept = `--accept landlock-hide --accept host-tmp --accept sockets --why "no user namespaces on this cluster"`

// attempts tries a folder of shared storage with plain programs, each attempt
// on a line: what, and whether it got what it wanted. $C is a folder there.
const attempts = `
try() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo "$name works"; else echo "$name no"; fi; }
sees() { test -n "$(ls -A "$1")"; }
has() { grep -q canary "$1"; }
try "list the project" sees /proj/team
try "list a folder" sees $C
try "list through find" sh -c 'find /proj/team -name canary.txt | grep -q .'
try "read another's file" has /proj/team/README
try "read the team's file" has /proj/team/neighbour/notes.txt
try "read my token" has /proj/team/fencer/token
try "read my file" has $C/canary.txt
try "read through a link" sh -c 'ln -s $0/canary.txt /tmp/way-$$ && grep -q canary /tmp/way-$$' $C
try "read through /proc" has /proc/self/root$C/canary.txt
try "append" sh -c 'echo more >>$0/canary.txt' $C
try "truncate" truncate -s 5 $C/other.txt
try "create" sh -c 'echo new >$0/new' $C
try "make a folder" mkdir $C/folder
try "remove" rm $C/remove-me
try "rename" mv $C/rename-me $C/renamed
try "hard link" ln $C/canary.txt $C/hard
try "stat a file" stat $C/canary.txt
try "stat the token" test -e /proj/team/fencer/token
try "enter" sh -c 'cd $0' $C
`

// Every way in that plain programs know, in every form: works in the site's
// default container, is shut behind the fence. Nothing on the storage changed.
func TestSharedStorage_PlainPrograms(t *testing.T) {
	p := newPlace(t)
	fresh := func() {
		t.Helper()
		os.RemoveAll(p.path("data"))
		if err := os.Mkdir(p.path("data"), 0o755); err != nil {
			t.Fatal(err)
		}
		p.own("data")
		p.write("data/canary.txt", "canary: of this test\n", 0o644)
		for _, name := range []string{"other.txt", "remove-me", "rename-me"} {
			p.write("data/"+name, "canary: "+name+"\n", 0o644)
		}
	}
	snapshot := func() string {
		r := p.sh(`cd data && ls -lA --time-style=full-iso && cat *`)
		return r.stdout
	}
	p.write("attempts.sh", attempts, 0o644)
	run := func(p place, limits []string, before, flags string) map[string]string {
		p.t.Helper()
		// The script comes by stdin: nothing of the place is mounted for it.
		r := p.ok(p.on(limits, before+`apptainer exec --env C=`+p.path("data")+` `+flags+` 9>status.json <attempts.sh`))
		got := map[string]string{}
		for line := range strings.Lines(r.stdout) {
			i := strings.LastIndexByte(strings.TrimSpace(line), ' ')
			got[line[:i]] = strings.TrimSpace(line[i:])
		}
		return got
	}

	fresh()
	control := run(p, nil, "", bind+` img.sif sh`)
	if len(control) != strings.Count(attempts, "\ntry \"") {
		t.Fatalf("the control made %d attempts:\n%v", len(control), control)
	}
	for name, how := range control {
		if how != "works" {
			t.Errorf("control: %s: %s", name, how)
		}
	}

	const fence = ` img.sif /.fence/fence --env C --why "the place of a test" --status-fd 9 `
	for _, tc := range []struct {
		name           string
		limits         []string
		before, flags  string
		form, how      string
		stillPossible  []string
		stillInStatus  string
		stillInExplain string
	}{
		{"site's mounts, masked", nil, "", bind + fence, "namespace", "masked", nil, "", ""},
		{"site's mounts, no network namespaces", noNetns, "", bind + fence, "namespace", "masked", nil, "", ""},
		{"fence env", nil, `eval "$(fence env)"; `, fence, "namespace", "", nil, "", ""},
		{"fence env, bare form", nested, `eval "$(fence env)"; `, fence, "bare", "", nil, "", ""},
		{"accepted", nested, "", bind + fence + accept, "bare", "landlock",
			// To look a name up is no right that Landlock knows, so one may also stand in a folder of that name.
			[]string{"stat a file", "stat the token", "enter"},
			"closed by Landlock alone, to opening, listing, reading and writing: names can still be seen (stat, inotify), ",
			"hidden paths are closed by Landlock alone: names and sizes can be seen"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := place{t, p.dir}
			fresh()
			before := snapshot()
			got := run(p, tc.limits, tc.before, tc.flags+` -- sh`)
			for name := range control {
				want := "no"
				if slices.Contains(tc.stillPossible, name) {
					want = "works"
				}
				if got[name] != want {
					t.Errorf("%s: %q, want %q", name, got[name], want)
				}
			}
			if after := snapshot(); after != before {
				t.Errorf("the storage changed:\n%s\nwas\n%s", after, before)
			}
			status := decoded[status.Status](t, p.read("status.json"))
			if status.Form != tc.form {
				t.Errorf("form %s, want %s", status.Form, tc.form)
			}
			i := slices.IndexFunc(status.Hidden, func(h sandbox.Hidden) bool { return h.Path == bed.Project })
			switch {
			case tc.how == "" && i >= 0:
				t.Errorf("%s is there: %+v", bed.Project, status.Hidden[i])
			case tc.how != "" && (i < 0 || status.Hidden[i].How != tc.how):
				t.Errorf("hidden: %+v, want %s %s", status.Hidden, bed.Project, tc.how)
			}
			if tc.stillInStatus == "" {
				return
			}
			if !slices.ContainsFunc(status.Lost, func(s string) bool { return strings.HasPrefix(s, tc.stillInStatus) }) {
				t.Errorf("the status line does not say what is lost: %q", status.Lost)
			}
			explain := p.ok(p.on(tc.limits, tc.before+`apptainer exec `+bind+` img.sif /.fence/fence explain `+accept)).stdout
			for _, want := range []string{tc.stillInStatus, tc.stillInExplain, bed.Project + " (@shared, landlock)", "accept landlock-hide: no user namespaces on this cluster"} {
				if !strings.Contains(explain, want) {
					t.Errorf("explain does not say %q:\n%s", want, explain)
				}
			}
		})
	}
}
