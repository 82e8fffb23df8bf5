package rollout

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/box"
	"fence/pkg/sif"
	"fence/test/bed"
)

// image is busybox with a configuration, and users of its own.
func image(t *testing.T, config v1.Config) string {
	t.Helper()
	dir := bed.TempDir(t)
	root, squashfs, path := filepath.Join(dir, "root"), filepath.Join(dir, "squashfs"), filepath.Join(dir, "image.sif")
	if out, err := exec.Command("cp", "-r", bed.Root("busybox"), root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, text := range map[string]string{
		"passwd": "root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\njudge:x:7:7::/var/judge:/bin/sh\n",
		"group":  "root:x:0:\nstaff:x:50:\n",
	} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "srv/work"), 0o755), os.Symlink("srv", filepath.Join(root, "linked"))); err != nil {
		t.Fatal(err)
	}
	if err := sif.Add(root, sif.Overlay(config, nil)); err != nil {
		t.Fatal(err)
	}
	if err := sif.Pack(t.Context(), root, squashfs, sif.PackOptions{Processors: 1, MemMiB: 128}); err != nil {
		t.Fatal(err)
	}
	if err := sif.Write(path, squashfs, sif.Meta{Arch: "amd64", Config: config}); err != nil {
		t.Fatal(err)
	}
	return path
}

// USER and WORKDIR are as the image has them, or as the task wants.
func TestBox_Config(t *testing.T) {
	if !asUser(t) {
		return
	}
	img := image(t, v1.Config{User: "app", WorkingDir: "/srv/work", Env: []string{"A=b c", "PATH=/opt/x:/bin"}})
	const who = `echo $(id -u):$(id -g) $HOME $PWD; echo $A; echo $PATH`
	for _, c := range []struct{ agent, verifier, workdir, wantAgent, wantVerifier string }{
		{"", "", "", "1000:1001 /home/app /srv/work", "1000:1001 /home/app /srv/work"},
		{"root", "judge:staff", "/app", "0:0 /root /app", "7:50 /var/judge /app"},
		{"1234", "0", "/", "1234:0 / /", "0:0 /root /"},
	} {
		o := options(t, "busybox")
		o.Image, o.AgentUser, o.VerifierUser, o.Workdir = img, c.agent, c.verifier, c.workdir
		o.Users = []string{"judge", "7:7", "app", c.agent}
		r := start(t, o)
		const rest = "\nb c\n/opt/x:/bin\n"
		if got := r.sh(box.Agent, who); got != c.wantAgent+rest {
			t.Errorf("%+v: the agent is %q", c, got)
		}
		if got := r.sh(box.Verifier, who); got != c.wantVerifier+rest {
			t.Errorf("%+v: the verifier is %q", c, got)
		}
		// Others of the agent's side: one domain for each that is another.
		other := r.Domain("judge")
		if got := r.sh(other, who); !strings.HasPrefix(got, "7:7 /var/judge ") || other == box.Agent || r.Domain("7:7") != other || r.Domain(c.agent) != box.Agent || (r.Domain("app") == box.Agent) != (c.agent == "") {
			t.Errorf("%+v: in %s judge is %q; app is in %s", c, other, got, r.Domain("app"))
		}
		if is := r.Isolation(); is.Below == noNetns() || (is.Beside == "") == noNetns() {
			t.Errorf("%+v: %+v", c, is)
		}
		// What belongs to one belongs to each; places of the verifier's are its own.
		r.sh(box.Agent, `mkdir /made; echo x >/made/x; chmod 600 /made/x; echo y >/etc/added`)
		if err := r.Put(t.Context(), box.Verifier, "/tests", archive(map[string]string{"test.sh": "t"})); err != nil {
			t.Error(err)
		}
		r.sh(box.Verifier, `test $(stat -c %u /made/x /tests/test.sh | uniq) = $(id -u); echo z >>/made/x; chmod 700 /made`)
		uid, _, _ := strings.Cut(c.wantAgent, ":")
		for domain, uid := range map[string]string{box.Agent: uid, other: "7"} {
			if got := r.sh(domain, `cat /made/x; ls -A /tests; stat -c %u /made`); got != "x\nz\n"+uid+"\n" {
				t.Errorf("%+v: %s: %q", c, domain, got)
			}
		}
		// The verifier's processes can end the agent's, whoever they are; not the other way round.
		for from, to := range map[string]string{box.Agent: box.Verifier, box.Verifier: box.Agent, other: box.Verifier} {
			mark := map[string]string{box.Agent: "86405", box.Verifier: "86406", other: "86407"}[from]
			r.sh(from, `sleep $1 >/dev/null 2>&1 & until grep -q "^sleep.$1" /proc/$!/cmdline; do :; done`, mark)
			const end = `for p in /proc/[0-9]*; do grep -q "^sleep.$1" $p/cmdline 2>/dev/null && kill ${p#/proc/} && echo ended; done; true`
			want := ""
			if to == box.Verifier && !noNetns() {
				want = "ended\n"
			}
			if got := r.sh(to, end, mark); got != want {
				t.Errorf("%+v: what the %s left, and the %s: %q", c, from, to, got)
			}
			if got := r.sh(from, end, mark); want == "" && got != "ended\n" {
				t.Errorf("%+v: the control: what the %s left itself: %q", c, from, got)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	// A folder behind a link, which is there.
	o := options(t, "busybox")
	o.Workdir = "/linked/work"
	o.Image = image(t, v1.Config{})
	if got := start(t, o).sh(box.Agent, "pwd"); got != "/linked/work\n" && got != "/srv/work\n" {
		t.Errorf("%q", got)
	}
	o = options(t, "busybox")
	o.Image, o.AgentUser = img, "nobody-of-that-name"
	if _, err := box.Start(t.Context(), o); class(err) != "start_failed" {
		t.Errorf("%v", err)
	}
}
