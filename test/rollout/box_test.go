package rollout

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fence/pkg/box"
	"fence/pkg/session"
	"fence/test/bed"
)

// options are those of a box of the image, in a scratch folder of its own.
func options(t *testing.T, image string) box.Options {
	t.Helper()
	return box.Options{
		Apptainer: filepath.Join(bed.Dir(), "bin", "apptainer"), Fence: real(t, bed.Bin(t, "fence")), Probe: real(t, bed.Bin(t, "probe")),
		Image: bed.Image(image), Scratch: scratch(t), Network: "loopback",
	}
}

func real(t *testing.T, p string) string {
	t.Helper()
	p, err := filepath.EvalSymlinks(p)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// scratch is a folder for one box, which is to be gone when the test is over.
func scratch(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(bed.TempDir(t), "box")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

type running struct {
	*box.Box
	t *testing.T
	o box.Options
}

// start starts a box that is closed when the test is over, with nothing left.
func start(t *testing.T, o box.Options) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, err := box.Start(ctx, o)
	if err != nil {
		t.Fatalf("%v: %+v", err, err)
	}
	r := &running{b, t, o}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		nothingLeft(t, o.Scratch)
	})
	return r
}

// nothingLeft looks for processes, mounts and files of a box.
func nothingLeft(t *testing.T, scratch string) {
	t.Helper()
	if _, err := os.Lstat(scratch); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
	for _, pid := range processes(scratch) {
		t.Errorf("a process is left, or a mount: %d %s", pid, comm(pid))
	}
}

type output struct {
	session.Exit
	out, err string
}

func (r *running) try(c box.Command, in string) (output, error) {
	var out, errs bytes.Buffer
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	exit, err := r.Run(r.t.Context(), c, session.Streams{In: strings.NewReader(in), Out: &out, Err: &errs})
	return output{exit, out.String(), errs.String()}, err
}

// sh runs a script that must end with 0.
func (r *running) sh(domain, script string, args ...string) string {
	r.t.Helper()
	got, err := r.try(box.Command{Domain: domain, Argv: append([]string{"sh", "-c", script, "sh"}, args...)}, "")
	if err != nil || got.Code != 0 {
		r.t.Fatalf("%s: %s: %v %+v", domain, script, err, got)
	}
	return got.out
}

func archive(files map[string]string) io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range files {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))})
		_, _ = io.WriteString(w, text)
	}
	_ = w.Close()
	return &b
}

// A trial in short: files in, a solution, tests out of its reach, files out.
func TestBox(t *testing.T) {
	if !asUser(t) {
		return
	}
	r := start(t, options(t, "debian"))
	if err := r.Put(t.Context(), box.Agent, "/solution", archive(map[string]string{"solve.sh": "#!/bin/sh\necho done >/app.txt\nread x; echo got $x\n"})); err != nil {
		t.Fatal(err)
	}
	got, err := r.try(box.Command{Domain: box.Agent, Argv: []string{"/solution/solve.sh"}}, "some\n")
	if err != nil || got.out != "got some\n" || got.Code != 0 {
		t.Fatalf("%v %+v", err, got)
	}
	if err := r.Put(t.Context(), box.Verifier, "/tests", archive(map[string]string{"test.sh": "secret"})); err != nil {
		t.Fatal(err)
	}
	r.sh(box.Verifier, `cat /app.txt >/logs/verifier/reward.txt`)
	const look = `ls -A /tests /logs/verifier`
	if got, want := r.sh(box.Agent, look), "/logs/verifier:\n\n/tests:\n"; got != want {
		t.Errorf("the agent sees %q, want %q", got, want)
	}
	if got, want := r.sh(box.Verifier, look), "/logs/verifier:\nreward.txt\n\n/tests:\ntest.sh\n"; got != want {
		t.Errorf("the control: the verifier sees %q, want %q", got, want)
	}
	var stream bytes.Buffer
	if err := r.Get(t.Context(), box.Verifier, "/logs", []string{"verifier"}, &stream); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for tr := tar.NewReader(&stream); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(tr)
		files[h.Name] = string(data)
	}
	if files["verifier/reward.txt"] != "done\n" {
		t.Errorf("%v", files)
	}
	is := r.Isolation()
	if is.Below == noNetns() || is.Agent.Network != "loopback" || is.Verifier.Network != "loopback" || is.Agent.Form != "namespace" || len(is.Opened) != 0 {
		t.Errorf("%+v", is)
	}
	if data, err := os.ReadFile(filepath.Join(r.Upper(), "app.txt")); err != nil || string(data) != "done\n" {
		t.Errorf("%v %q", err, data)
	}
	if err := r.Close(); err != nil || r.Err() != nil {
		t.Errorf("%v %v", err, r.Err())
	}
	if u := r.Usage(); u.MemoryBytes < 10e6 || u.DiskBytes < 4096 || u.CPUSec <= 0 {
		t.Errorf("%+v", u)
	}
}

// class is that of a box's error.
func class(err error) string {
	var e *box.Error
	if errors.As(err, &e) {
		return e.Class
	}
	return fmt.Sprint(err)
}

// Nothing of the site is in a box, and what a task needs works.
func TestBox_Inside(t *testing.T) {
	if !asUser(t) {
		return
	}
	// The control: a container as it comes has the site's project.
	if out, err := bed.Apptainer(t, "-q", "exec", bed.Image("debian"), "ls", "-d", bed.Project).CombinedOutput(); err != nil {
		t.Fatalf("the control: %v\n%s", err, out)
	}
	node, _ := os.Hostname()
	o := options(t, "debian")
	o.Env = map[string]string{"OURS": "a b", "SECOND": "of the box"}
	r := start(t, o)
	for _, d := range []string{box.Agent, box.Verifier} {
		for script, want := range map[string]string{
			`ls -d ` + bed.Project + ` 2>&1 | sed 's/.*: //'`:                     "No such file or directory\n",
			`hostname; getent hosts localhost task | wc -l; cat /etc/resolv.conf`: "task\n2\n",
			`echo 1.2.3.4 $$other >>/etc/hosts; getent hosts $$other | wc -l`:     "1\n",
			`ls -A /root`: ".bashrc\n.profile\n",
			`id -u; echo $HOME; pwd; umask; echo $OURS; echo $SECOND`: "0\n/root\n/\n0022\na b\nof the box\n",
			`mkdir -p /output && echo x >/output/x && cat /output/x`:  "x\n",
			`df -P /tmp | awk 'NR==2 {print ($4 > 1000000)}'`:         "1\n",
			`echo x >/dev/shm/x; ls /dev/shm`:                         "x\n",
			`tty=$(script -qec tty /dev/null); echo "$tty"`:           "/dev/pts/0\r\n",
			`python3 - <<'E'
import socket
s = socket.create_server(("localhost", 0))
c = socket.create_connection(s.getsockname()); print("served")
E
`: "served\n",
			`touch /.fence/x 2>&1 | sed 's/.*: //'; echo $(ls /.fence)`: "Read-only file system\nfence probe\n",
		} {
			if got := r.sh(d, script); got != want {
				t.Errorf("%s: %s\n%q, want %q", d, script, got, want)
			}
		}
		for _, secret := range []string{node, bed.Dir(), o.Scratch} {
			if got := r.sh(d, `env; hostname; cat /proc/sys/kernel/hostname /etc/hosts /etc/hostname`); strings.Contains(got, secret) {
				t.Errorf("%s: %q is seen in\n%s", d, secret, got)
			}
		}
	}
	got, err := r.try(box.Command{Domain: box.Agent, Argv: []string{"sh", "-c", `echo $SECOND; pwd`}, Env: map[string]string{"SECOND": "of the command"}, Dir: "/usr"}, "")
	if err != nil || got.out != "of the command\n/usr\n" {
		t.Errorf("%v %+v", err, got)
	}
	got, err = r.try(box.Command{Domain: box.Agent, Argv: []string{"no-such-program"}}, "")
	var e *session.Error
	if !errors.As(err, &e) || e.Code != session.CodeNotFound {
		t.Errorf("%v %+v", err, got)
	}
	// What the agent left running is seen from the verifier's domain, and its server reached.
	r.sh(box.Agent, `mkfifo /tmp/ready; python3 -c 'if True:
		import socket
		s = socket.create_server(("localhost", 8000)); open("/tmp/ready", "w").close()
		while True: s.accept()[0].sendall(b"served")' & cat /tmp/ready`)
	if noNetns() { // the agent's domain stands beside
		got, err := r.try(box.Command{Domain: box.Verifier, Argv: []string{"python3", "-c", `import socket; socket.create_connection(("localhost", 8000))`}}, "")
		if err != nil || !strings.Contains(got.err, "ConnectionRefusedError") {
			t.Errorf("the agent's server, from a domain beside: %v %+v", err, got)
		}
	} else if got := r.sh(box.Verifier, `python3 -c 'import socket; print(socket.create_connection(("localhost", 8000)).recv(9))' && pkill -f "^python3 -c if"`); got != "b'served'\n" {
		t.Errorf("the agent's server: %q", got)
	}
	if err := r.End(t.Context(), box.Agent); err != nil {
		t.Error(err)
	}
	if _, err := r.try(box.Command{Domain: box.Agent, Argv: []string{"true"}}, ""); class(err) != "session_lost" {
		t.Errorf("after its end: %v", err)
	}
	r.sh(box.Verifier, "true")
}

// Images with next to nothing in them, and what a box adds.
func TestBox_Images(t *testing.T) {
	if !asUser(t) {
		return
	}
	for _, image := range []string{"busybox", "musl"} {
		r := start(t, options(t, image))
		if got := r.sh(box.Agent, `mkdir /output /app; echo x >/app/x; cat /app/x; cat /etc/hosts | grep -c localhost`); got != "x\n2\n" {
			t.Errorf("%s: %q", image, got)
		}
	}
	r := start(t, options(t, "static"))
	if err := r.Put(t.Context(), box.Agent, "/app/deep", archive(map[string]string{"x": "y"})); err != nil {
		t.Error(err)
	}
	got, err := r.try(box.Command{Domain: box.Verifier, Argv: []string{"/static", "cat", "/app/deep/x"}}, "")
	if err != nil || !strings.HasSuffix(got.out, "\ny") {
		t.Errorf("%v %+v", err, got)
	}
}

// What is bound or opened is there for both domains, to read.
func TestBox_Opens(t *testing.T) {
	if !asUser(t) {
		return
	}
	wheels := bed.TempDir(t)
	if err := os.WriteFile(filepath.Join(wheels, "w.whl"), []byte("wheel"), 0o644); err != nil {
		t.Fatal(err)
	}
	o := options(t, "debian")
	o.Binds = []box.Bind{{Source: wheels, Target: "/opt/wheels", Why: "a test"}}
	r := start(t, o)
	for _, d := range []string{box.Agent, box.Verifier} {
		if got := r.sh(d, `cat /opt/wheels/w.whl; touch /opt/wheels/x 2>/dev/null && echo wrote; true`); got != "wheel" {
			t.Errorf("%s: %q", d, got)
		}
	}
	if is := r.Isolation(); len(is.Opened) != 1 || is.Opened[0].What != "read /opt/wheels" || is.Opened[0].Why != "a test" {
		t.Errorf("%+v", is)
	}
	// System calls that are opened.
	const call = `perl -e 'print syscall(135, 0x0400000) < 0 ? "refused" : "done"'` // personality(READ_IMPLIES_EXEC)
	for _, open := range []bool{false, true} {
		o := options(t, "debian")
		want := "refused"
		if open {
			o.Opens, want = []box.Open{{Syscall: "personality", Why: "a test"}}, "done"
		}
		r := start(t, o)
		for _, d := range []string{box.Agent, box.Verifier} {
			if got := r.sh(d, call); got != want {
				t.Errorf("%s, opened %t: %q", d, open, got)
			}
		}
	}
}

// Many boxes at once do not know of each other.
func TestBox_Many(t *testing.T) {
	if !asUser(t) {
		return
	}
	for i := range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			r := start(t, options(t, "debian"))
			r.sh(box.Agent, `echo $1 >/tmp/x; echo $1 >/y; setsid sh -c 'while :; do echo $0 | nc -Nl 127.0.0.1 8000; done' $1 >/dev/null 2>&1 &`, fmt.Sprint(i))
			if got := r.sh(box.Verifier, `cat /tmp/x /y; until nc 127.0.0.1 8000; do :; done`); got != fmt.Sprintf("%d\n%[1]d\n%[1]d\n", i) {
				t.Errorf("%q", got)
			}
		})
	}
}

// BenchmarkBox says how long a box takes to start, to run a command, and to end.
func BenchmarkBox(b *testing.B) {
	if os.Geteuid() == 0 {
		b.Skip("as the bed's ordinary user: BED_BIN=... rollout.test -test.bench .")
	}
	var started, first, command, closed time.Duration
	for range b.N {
		dir, err := os.MkdirTemp("", "box-bench-")
		if err != nil {
			b.Fatal(err)
		}
		o := box.Options{
			Apptainer: filepath.Join(bed.Dir(), "bin", "apptainer"), Fence: bed.Bin(b, "fence"), Probe: bed.Bin(b, "probe"),
			Image: bed.Image("debian"), Scratch: dir, Network: "loopback", Limits: box.Limits{Memory: 2e9, Processes: 1000, Disk: 1e9},
		}
		begin := time.Now()
		lap := func(to *time.Duration) {
			*to += time.Since(begin)
			begin = time.Now()
		}
		r, err := box.Start(b.Context(), o)
		if err != nil {
			b.Fatal(err)
		}
		lap(&started)
		run := func() {
			if exit, err := r.Run(b.Context(), box.Command{Domain: box.Agent, Argv: []string{"true"}}, session.Streams{}); err != nil || exit.Code != 0 {
				b.Fatal(err, exit)
			}
		}
		run()
		lap(&first)
		for range 20 {
			run()
		}
		lap(&command)
		if err := r.Close(); err != nil {
			b.Fatal(err)
		}
		lap(&closed)
	}
	for name, d := range map[string]time.Duration{"start-ms": started, "first-ms": first, "command-ms": command / 20, "close-ms": closed} {
		b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), name)
	}
	b.ReportMetric(0, "ns/op")
}
