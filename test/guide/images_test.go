package guide

import (
	"strings"
	"testing"

	"fence/pkg/status"
)

// The same two files run in every image: Debian, busybox, musl, and one that
// has nothing but a static program, no folder and no shell.
func TestImages_OneStaticBinary(t *testing.T) {
	p := newPlace(t)
	for _, tc := range []struct{ image, command, prints string }{
		{"debian", "python3 -c 'print(6*7)'", "42\n"},
		{"busybox", "sh -c 'echo $((6*7))'", "42\n"},
		{"musl", "/bin/hello", ""},
		{"static", "/static", ""},
		{"dockerenv", "tool", "tool from the image\n"},
	} {
		for _, form := range []string{"namespace", "bare"} {
			t.Run(tc.image+"/"+form, func(t *testing.T) {
				p := place{t, p.dir}
				p.image(tc.image)
				without := p.ok(p.sh(`eval "$(fence env)"; apptainer exec img.sif ` + tc.command))
				with := p.ok(p.sh(`eval "$(fence env)"; apptainer exec img.sif /.fence/fence --form ` + form + ` --status-fd 9 -- ` + tc.command + ` 9>status.json`))
				if with != without || tc.prints != "" && with.stdout != tc.prints {
					t.Errorf("behind the fence %q and %q, without it %q and %q", with.stdout, with.stderr, without.stdout, without.stderr)
				}
				if status := decoded[status.Status](t, p.read("status.json")); status.Form != form {
					t.Errorf("the form is %s", status.Form)
				}
				if form == "bare" && !full() {
					return
				}
				var r result
				for range 3 {
					r = p.sh(`eval "$(fence env)"
						apptainer exec img.sif /.fence/probe >before.json
						apptainer exec img.sif /.fence/fence --form ` + form + ` -- /.fence/probe >after.json
						probe gate after.json --before before.json --expect strict`)
					if !late(p.report("after.json")) && !late(p.report("before.json")) {
						break
					}
					t.Log("a check got no answer in time: again")
				}
				if r.code != 0 {
					t.Errorf("the gate ends with %d\n%s%s", r.code, r.stdout, r.stderr)
				}
			})
		}
	}
}

// Exit statuses and signals come through the container and the fence as they
// come through the container alone.
func TestExitStatuses(t *testing.T) {
	p := newPlace(t)
	for script, want := range map[string]int{
		"exit 0": 0, "exit 3": 3, "exit 125": 125, "kill -TERM $$": 143, "kill -KILL $$": 137, "no-such-command": 127, "exec /etc/passwd": 126,
	} {
		for _, fence := range []string{"", "/.fence/fence -- "} {
			r := p.sh(`eval "$(fence env)"; apptainer exec img.sif ` + fence + `bash -c '` + script + `'`)
			if r.code != want {
				t.Errorf("%q behind %q: exit status %d, want %d\n%s", script, fence, r.code, want, r.stderr)
			}
		}
	}
	for command, want := range map[string]int{"nosuch": 127, "/etc/passwd": 126} {
		if r := p.sh(`eval "$(fence env)"; apptainer exec img.sif /.fence/fence -- ` + command); r.code != want {
			t.Errorf("%s: exit status %d, want %d\n%s", command, r.code, want, r.stderr)
		}
	}
	if r := p.ok(p.sh(`eval "$(fence env)"; apptainer exec img.sif /.fence/fence -- env | grep -c ^PATH=`)); r.stdout != "1\n" {
		t.Errorf("fence -- env: %q", r.stdout)
	}
}

// An image may set any variable: those that mean nothing to probe stop it on the node, where they
// are a person's mistake, and not in a container.
func TestImage_VariablesOfProbe(t *testing.T) {
	p := newPlace(t)
	const probe = `PROBE_SKIP=cred,ctl,dev,fs,ipc,net,proc,slurm,sys,work `
	if r := p.ends(p.sh(`PROBE_DATA=/data `+probe+`probe`), 2); !strings.Contains(r.stderr, "the variable PROBE_DATA is not known") {
		t.Errorf("on the node: %s", r.stderr)
	}
	r := p.ends(p.sh(`eval "$(fence env)"; apptainer exec --env PROBE_DATA=/data img.sif sh -c 'echo $PROBE_DATA >&2; `+probe+`/.fence/probe'`), 0)
	if !strings.HasPrefix(r.stderr, "/data\n") {
		t.Errorf("the container has no such variable: %s", r.stderr)
	}
}
