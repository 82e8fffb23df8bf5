package guide

import (
	"os"
	"strings"
	"testing"

	"fence/test/bed"
)

// A job brings the variables of the container that it was sent from: a node
// is taken for no container because of them, and hides what it always hides.
func TestNode_VariablesOfAContainer(t *testing.T) {
	p := placeIn(t, bed.HomeDir)
	p.write("secret", "of home\n", 0o600)
	file := p.path("secret")
	if r := p.ok(p.sh("cat " + file)); r.stdout != "of home\n" {
		t.Fatalf("control: %q", r.stdout)
	}
	for _, variable := range []string{"APPTAINER_CONTAINER=/x.sif", "APPTAINER_NAME=x.sif", "SINGULARITY_CONTAINER=/x.sif", "CH_RUNNING=Weird Al Yankovic", "container=oci", "KUBERNETES_SERVICE_HOST=10.0.0.1"} {
		if r := p.sh("cd /; export '" + variable + "'; fence -- cat " + file); r.code != 1 || !strings.Contains(r.stderr, "No such file") {
			t.Errorf("%s: exit code %d, %q\n%s", variable, r.code, r.stdout, r.stderr)
		}
		// And FENCE_POLICY counts.
		if r := p.sh("cd /; export '" + variable + "'; FENCE_POLICY=nosuch fence -- true"); r.code != 2 {
			t.Errorf("%s: FENCE_POLICY was not read: exit code %d\n%s", variable, r.code, r.stderr)
		}
	}
}

// A file of the hidden home as standard input is there to be read, from where
// the caller has read it to, and no more.
func TestNode_InputFile(t *testing.T) {
	p := placeIn(t, bed.HomeDir)
	for name, c := range map[string]struct{ launch, want string }{
		"control":   {"", "two\nwritten\n600\n"},
		"namespace": {"fence --", "two\nno\n644\n"},
		"bare":      {"fence --form bare --accept landlock-hide --accept host-tmp --accept sockets --why x --", "two\nno\n600\n"},
	} {
		os.Remove(p.path("in")) // with the mode that another launch gave it
		p.write("in", "one\ntwo\n", 0o644)
		r := p.ok(p.sh(`exec <in; read -r first; ` + c.launch + ` sh -c 'cat; chmod 600 /proc/self/fd/0 2>/dev/null; (echo new >/proc/self/fd/0) 2>/dev/null && echo written || echo no'; stat -c %a in`))
		if r.stdout != c.want {
			t.Errorf("%s: %q, want %q", name, r.stdout, c.want)
		}
		want := "one\ntwo\n"
		if name == "control" {
			want = "new\n"
		}
		if got := p.ok(p.sh("cat in")); got.stdout != want {
			t.Errorf("%s: the file is %q, want %q", name, got.stdout, want)
		}
	}
}

// What is opened for reading inside a folder that may be changed is not moved
// away with what it lies in, for another to be put there.
func TestNode_ReadInWrite(t *testing.T) {
	p := placeIn(t, bed.HomeDir)
	for flags, want := range map[string]string{
		"--write $PWD/app":                           "fake\n", // the control
		"--write $PWD/app --read $PWD/app/sub/tests": "real\n",
	} {
		p.ok(p.sh("rm -rf app; mkdir -p app/sub/tests; echo real >app/sub/tests/t"))
		p.sh("fence " + flags + ` --why x -- sh -c "cd $PWD/app; mv sub moved; mkdir -p sub/tests; echo fake >sub/tests/t"`)
		if got := p.ok(p.sh("cat app/sub/tests/t")); got.stdout != want {
			t.Errorf("%s: %q, want %q", flags, got.stdout, want)
		}
	}
}

// Where the node has a program for cores, no limit of 0 keeps one from it, and
// a limit of 1 does: core(5).
func TestNode_Core(t *testing.T) {
	p := newPlace(t)
	r := p.ok(p.sh(`ulimit -Hc; fence -- sh -c 'grep "Max core" /proc/self/limits | tr -s " "'`))
	if r.stdout != "unlimited\nMax core file size 1 1 bytes \n" && r.stdout != "0\nMax core file size 0 0 bytes \n" { // none can raise it
		t.Errorf("%q", r.stdout)
	}
}

// Standard descriptors that are no file, pipe or terminal of the session.
func TestNode_Descriptors(t *testing.T) {
	p := newPlace(t)
	p.image("workloads")
	p.write("fds.py", `
import os, pty, socket, subprocess, sys
fence = sys.argv[1:] + ["--"]
def run(stdin, *cmd, **kw):
    r = subprocess.run(fence + list(cmd), stdin=stdin, capture_output=True, text=True, **kw)
    return r.returncode, r.stdout.strip(), r.stderr.split("\n")[0][-60:]
memory = os.memfd_create("x"); os.write(memory, b"in memory\n"); os.lseek(memory, 0, 0)
print("memfd", run(memory, "cat"))
for family, kind in ((socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_INET6, socket.SOCK_STREAM)):
    with socket.socket(family, kind) as s:
        print("socket", run(s.fileno(), "true")[0])
a, b = socket.socketpair(); b.send(b"by a pair\n"); b.close()
print("pair", run(a.fileno(), "cat"))
# The person's terminal controls the session, and standard input is another one.
pid, mine = pty.fork()
if pid == 0:
    master, other = pty.openpty()
    r = run(other, "sh", "-c", "echo typed </dev/tty >/dev/tty && echo reached || echo none")
    os.write(1, repr(r).encode()); os._exit(0)
out = b""
while True:
    try: data = os.read(mine, 1000)
    except OSError: break
    if not data: break
    out += data
os.waitpid(pid, 0)
print("other terminal", eval(out)[1])
`, 0o644)
	for name, start := range map[string]string{
		"node":      `python3 fds.py fence`,
		"container": `eval "$(fence env)"; apptainer exec --bind $PWD/fds.py:/fds.py img.sif python3 /fds.py /.fence/fence`,
	} {
		r := p.ends(p.sh(start), 0)
		if want := "memfd (0, 'in memory', '')\nsocket 125\nsocket 125\nsocket 125\npair (0, 'by a pair', '')\nother terminal none\n"; r.stdout != want {
			t.Errorf("%s:\n%s\nwant\n%s%s", name, r.stdout, want, r.stderr)
		}
	}
}

// A job that shields its steps from sbatch --signal=USR1@60, say.
func TestNode_IgnoredSignals(t *testing.T) {
	p := placeIn(t, bed.HomeDir)
	const line = `env --ignore-signal=HUP,USR1,PIPE --block-signal=TERM,CHLD,URG,40 `
	const show = ` grep 'Sig[BI]' /proc/self/status`
	want := p.ok(p.sh(line + show)).stdout
	if plain := p.ok(p.sh(show)).stdout; plain == want || plain != p.ok(p.sh("fence --"+show)).stdout {
		t.Fatalf("control: %q", plain)
	}
	for _, launch := range []string{"fence --", "fence --form bare --accept landlock-hide --accept host-tmp --accept sockets --why x --"} {
		if r := p.ok(p.sh(line + launch + show)); r.stdout != want {
			t.Errorf("%s:\n%swithout it\n%s", launch, r.stdout, want)
		}
	}
	if r := p.sh(`trap "" USR1; fence -- sh -c 'kill -USR1 $$; echo alive'`); r.stdout != "alive\n" {
		t.Errorf("exit code %d, %q", r.code, r.stdout)
	}
}
