package sifbuild

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"fence/test/bed"
)

// A mirror is a small Debian archive, a package index and a web server, some of
// whose answers are wrong.
type mirror struct {
	*httptest.Server
	debs map[string][]byte

	mu    sync.Mutex
	asked map[string]int
	stall map[string]bool // paths of which half an answer comes, and no more
}

func newMirror(t *testing.T) *mirror {
	t.Helper()
	m := &mirror{asked: map[string]int{}, stall: map[string]bool{"/slow.deb": true, "/slow": true}, debs: map[string][]byte{
		"good": deb(t, "good", "", ""), "slow": deb(t, "slow", "", ""), "changed": deb(t, "changed", "", ""), "away": deb(t, "away", "", ""),
		"broken": deb(t, "broken", "", "#!/bin/sh\necho its script fails >&2\nexit 3\n"), "asks": deb(t, "asks", "Depends: good\n", ""),
	}}
	m.Server = httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(m.Close)
	return m
}

// deb is a Debian package with nothing in it but a script.
func deb(t *testing.T, name, more, postinst string) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, name, "DEBIAN"), 0o755); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"control": "Package: " + name + "\nVersion: 1.0\nArchitecture: all\nMaintainer: a test <test@localhost>\n" + more + "Description: of a test\n"}
	if postinst != "" {
		files["postinst"] = postinst
	}
	for f, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name, "DEBIAN", f), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "x.deb")
	if said, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", filepath.Join(dir, name), out).CombinedOutput(); err != nil {
		bed.Missing(t, "dpkg-deb (%v: %s)", err, said)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// packages is the index of the archive: of one package it has another digest, one is not there.
func (m *mirror) packages() string {
	var b strings.Builder
	for name, data := range m.debs {
		sum := fmt.Sprintf("%x", sha256.Sum256(data))
		if name == "changed" {
			sum = strings.Repeat("0", 64)
		}
		depends := ""
		if name == "asks" {
			depends = "Depends: good\n"
		}
		fmt.Fprintf(&b, "Package: %s\nVersion: 1.0\nArchitecture: all\n%sFilename: ./%s.deb\nSize: %d\nSHA256: %s\nDescription: of a test\n\n", name, depends, name, len(data), sum)
	}
	return b.String()
}

func (m *mirror) serve(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	at := path.Clean(r.URL.Path) // apt writes /./
	m.asked[at]++
	nth, stall := m.asked[at], m.stall[at]
	m.mu.Unlock()
	name := strings.TrimSuffix(strings.TrimPrefix(at, "/"), ".deb")
	body := []byte(at + "\n")
	switch {
	case at == "/Packages":
		body = []byte(m.packages())
	case at == "/simple/hello-sif":
		body = []byte("<!DOCTYPE html>")
		w.Header().Set("Content-Type", "text/html")
	case at == "/hello-sif":
		w.Header().Set("Content-Type", "application/json")
		body = []byte(`{"name":"hello-sif","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"hello-sif","version":"1.0.0","dist":{"tarball":"` + m.URL + `/x.tgz"}}}}`)
	case at == "/429":
		w.WriteHeader(http.StatusTooManyRequests)
		return
	case at == "/503", at == "/flaky" && nth <= 2:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case strings.HasSuffix(at, ".deb") && m.debs[name] != nil && name != "away":
		body = m.debs[name]
	case at != "/slow" && at != "/flaky":
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	if stall {
		w.Write(body[:len(body)/2])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	w.Write(body)
}

func (m *mirror) count(path string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked[path]
}

func (m *mirror) mend(path string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stall[path] = false
}

// from begins a Dockerfile whose apt knows the mirror alone.
func (m *mirror) from(base string) string {
	return "FROM " + base + "\nRUN rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*; echo 'deb [trusted=yes] " + m.URL + " ./' > /etc/apt/sources.list; apt-get update\n"
}

// pip puts pip into the folder pip of the place, with what Debian's least
// Python lacks for it.
func pip(t *testing.T, p *place) {
	t.Helper()
	p.mkdir("pip")
	script := `cd "$(python3 -c 'import os, pip; print(os.path.dirname(os.path.dirname(pip.__file__)))')" && cp -r pip "$0" &&
cd "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" && tar c --exclude test --exclude tests --exclude __pycache__ --exclude '*-packages' --exclude 'config-*' . | tar x -C "$0"`
	if out, err := exec.Command("sh", "-c", script, p.path("pip")).CombinedOutput(); err != nil {
		bed.Missing(t, "python3 with pip (%v: %s)", err, out)
	}
}

// Each class of failures that a RUN line can be brought to, by what does it or
// by what a program that meets it prints; those that may pass and no others are
// worth another try.
func TestFaults_Classes(t *testing.T) {
	t.Parallel()
	bed.Require(t, "bullseye")
	p, m := newPlace(t), newMirror(t)
	p.bases = append(p.bases, "bookworm="+bed.Root("debian"), "bullseye="+bed.Root("bullseye"))
	pip(t, p)
	node, npm := nodejs(t)
	apt := m.from("bookworm")
	const busybox = "FROM busybox\n"
	withPip := "FROM bookworm\nCOPY --from=pip . /opt/pip\nCOPY <<EOF /usr/local/lib/python3.11/dist-packages/pip.pth\n/opt/pip\n/opt/pip/lib-dynload\nEOF\nRUN python3 -m pip install --retries 1 --break-system-packages --index-url "
	withNpm := "FROM bookworm\nCOPY --from=node " + filepath.Base(node) + " /usr/local/bin/node\nCOPY --from=npm . /opt/npm\nWORKDIR /app\nRUN node /opt/npm/bin/npm-cli.js install --registry " + m.URL + " "
	says := func(text string) string { return busybox + "RUN echo \"" + text + "\" >&2; exit 1\n" }
	faults := map[string]struct {
		dockerfile, class string
		retry             bool
	}{
		"libc":               {"FROM bullseye\nCOPY --from=bookworm /bin/ls /ls\nRUN /ls\n", "libc", false},
		"fakeroot":           {says("/bin/sh: faked: not found"), "users", false},
		"apt-user":           {says("E: setgroups 65534 failed - setgroups (1: Operation not permitted)"), "users", false},
		"chown":              {says("cpio: chown failed - Invalid argument"), "users", false},
		"unpack-owners":      {says("potentially insufficient UIDs or GIDs available in user namespace"), "users", false},
		"subuid":             {says("newuidmap: write to uid_map failed: Operation not permitted"), "users", false},
		"userns":             {busybox + "RUN unshare -U true\n", "privilege", false},
		"acl":                {says("setfacl: /x: Operation not supported"), "xattr", false},
		"groupadd":           {says("groupadd: failure while writing changes to /etc/group"), "users", false},
		"mount":              {busybox + "RUN mkdir /m; mount -t tmpfs none /m\n", "privilege", false},
		"killed":             {busybox + "RUN sh -c 'kill -9 $$'; exit $?\n", "memory", false},
		"memory":             {"FROM bookworm\nRUN ulimit -v 200000; python3 -c 'bytearray(10**9)'\n", "memory", false},
		"rate-limit":         {busybox + "RUN wget -O /x " + m.URL + "/429\n", "rate_limit", true},
		"unavailable":        {busybox + "RUN wget -O /x " + m.URL + "/503\n", "network", true},
		"no-server":          {busybox + "RUN wget -O /x http://127.0.0.1:1/\n", "network", true},
		"no-name":            {busybox + "RUN wget -O /x http://name.invalid/\n", "network", true},
		"apt-hash":           {apt + "RUN apt-get install -y changed\n", "network", true},
		"apt-404":            {apt + "RUN apt-get install -y away\n", "network", true},
		"apt-update":         {"FROM bookworm\nRUN echo 'deb [trusted=yes] http://127.0.0.1:1 ./' > /etc/apt/sources.list; rm -rf /etc/apt/sources.list.d/*; apt-get update; apt-get install -y good\n", "network", true},
		"apt-nosuch":         {apt + "RUN apt-get install -y nosuch\n", "not_found", false},
		"apt-version":        {apt + "RUN apt-get install -y good=2.0\n", "not_found", false},
		"apt-script":         {apt + "RUN apt-get install -y broken\n", "package", false},
		"apt-asks":           {apt + "RUN apt-get install asks\n", "prompt", false},
		"pip-nosuch":         {withPip + m.URL + "/simple hello-sif==9\n", "not_found", false},
		"pip-away":           {withPip + "http://127.0.0.1:1/simple hello-sif\n", "network", true},
		"npm-version":        {withNpm + "hello-sif@9\n", "not_found", false},
		"npm-nosuch":         {withNpm + "nosuch\n", "not_found", false},
		"wget-404":           {busybox + "RUN wget -O /x " + m.URL + "/nosuch\n", "not_found", false},
		"add-404":            {busybox + "ADD " + m.URL + "/nosuch /x\n", "not_found", false},
		"add-503":            {busybox + "ADD " + m.URL + "/503 /x\n", "network", true},
		"copy":               {busybox + "COPY nosuch /x\n", "dockerfile", false},
		"instruction":        {busybox + "RUNN true\n", "dockerfile", false},
		"disk":               {busybox + "RUN --mount=type=tmpfs,target=/t,size=1048576 dd if=/dev/zero of=/t/x bs=1M count=2\n", "disk", false},
		"other-architecture": {"FROM bookworm\nRUN printf '\\177ELF\\002\\001\\001\\000\\000\\000\\000\\000\\000\\000\\000\\000\\002\\000\\267\\000\\001\\000\\000\\000' > /x; head -c 100 /dev/zero >> /x; chmod 755 /x\nRUN bash -c /x\n", "architecture", false},
		"other-exec":         {"FROM bookworm\nRUN printf '\\177ELF\\002\\001\\001\\000\\000\\000\\000\\000\\000\\000\\000\\000\\002\\000\\267\\000\\001\\000\\000\\000' > /x; head -c 100 /dev/zero >> /x; chmod 755 /x\nRUN [\"/x\"]\n", "architecture", false},
		"interpreter":        {busybox + "RUN printf '#!/nosuch\\n' > /x; chmod 755 /x; /x\n", "command", false},
		"windows":            {"FROM bookworm\nRUN printf '#!/bin/sh\\r\\ntrue\\r\\n' > /x; chmod 755 /x; bash -c /x\n", "command", false},
		"no-command":         {busybox + "RUN nosuch\n", "command", false},
		"no-program":         {busybox + "RUN [\"/nosuch\"]\n", "command", false},
		"certificate":        {says("curl: (60) SSL certificate problem: unable to get local issuer certificate"), "certificate", false},
		"user":               {busybox + "USER nosuch\nRUN true\n", "user", false},
		"step":               {busybox + "RUN echo 'it failed' >&2; exit 3\n", "step", false},
	}
	for name, c := range faults {
		p.task(name, c.dockerfile)
	}
	r := p.run(p.command(nil, "-j", "3", "--retries", "0", "--no-smoke", "--no-downloads", "--context-add", "pip="+p.path("pip"),
		"--context-add", "node="+filepath.Dir(node), "--context-add", "npm="+npm))
	if r.code != 3 {
		t.Fatalf("exit code %d\n%s", r.code, r.stderr)
	}
	for name, want := range faults {
		one, ok := r.records[name]
		switch f := one.Fault; {
		case !ok:
			t.Errorf("%s: no record", name)
		case f == nil:
			t.Errorf("%s: was built", name)
		case f.Class != want.class || f.Retry != want.retry || f.Message == "" || strings.Contains(f.Message, "\n"):
			t.Errorf("%s: %s, retry %t: %q (%s), want %s, %t\n%s", name, f.Class, f.Retry, f.Message, f.Hint, want.class, want.retry, f.Detail)
		case f.Hint == "" && f.Class != "step" && f.Class != "user" && name != "instruction":
			t.Errorf("%s: what a person can do is not said: %q", name, f.Message)
		}
	}
	p.clean()
	p.whole()
}

// What may pass is tried again, each attempt in the record and all in the log;
// what will not is tried once.
func TestFaults_Retried(t *testing.T) {
	t.Parallel()
	p, m := newPlace(t), newMirror(t)
	p.task("flaky", "FROM busybox\nRUN echo before\nRUN wget -O /x "+m.URL+"/flaky\n")
	p.task("never", "FROM busybox\nRUN wget -O /x "+m.URL+"/503\n")
	p.task("nosuch", "FROM busybox\nRUN wget -O /x "+m.URL+"/nosuch\n")
	r := p.run(p.command(nil, "-j", "1", "--retries", "2", "--no-smoke", "--no-downloads"))
	flaky, never, nosuch := r.records["flaky"], r.records["never"], r.records["nosuch"]
	if flaky.Fault != nil || flaky.Attempts != 3 || len(flaky.Tries) != 2 || m.count("/flaky") != 3 {
		t.Errorf("flaky: %+v, asked %d times", flaky, m.count("/flaky"))
	}
	for _, try := range flaky.Tries {
		if try.Class != "network" || !strings.Contains(try.Message, "Dockerfile:3: RUN wget") || try.Pause < 0 || try.Pause > 30 {
			t.Errorf("an attempt: %+v", try)
		}
	}
	log, err := os.ReadFile(flaky.Log)
	if err != nil || strings.Count(string(log), "503 Service Unavailable") != 2 || !strings.Contains(string(log), "== attempt 3\n") || strings.Count(string(log), "\nbefore\n") != 1 {
		t.Errorf("the log of all attempts: %v\n%s", err, log)
	}
	if f := never.Fault; f == nil || f.Class != "network" || never.Attempts != 3 || len(never.Tries) != 2 || m.count("/503") != 3 || never.Image != "" {
		t.Errorf("never: %+v, %+v, asked %d times", never, f, m.count("/503"))
	}
	if f := nosuch.Fault; f == nil || f.Class != "not_found" || nosuch.Attempts != 1 || len(nosuch.Tries) != 0 || m.count("/nosuch") != 1 {
		t.Errorf("nosuch: %+v, %+v, asked %d times", nosuch, f, m.count("/nosuch"))
	}
	p.clean()
	p.whole()
}

// A server that is away is not asked once more by each image that has the step
// in common with one that was just refused.
func TestFaults_SharedStep(t *testing.T) {
	t.Parallel()
	p, m := newPlace(t), newMirror(t)
	const n = 8
	for i := range n {
		p.task(fmt.Sprint("task", i), "FROM busybox\nRUN wget -O /x "+m.URL+"/flaky\nRUN echo "+fmt.Sprint(i)+"\n")
	}
	all := p.build(nil, "-j", "2", "--retries", "3", "--no-smoke", "--no-downloads")
	if got := m.count("/flaky"); got != 3 || len(all) != n {
		t.Errorf("%d images, and the server was asked %d times, where the third answer was right", len(all), got)
	}
}

// A mirror that stands still inside a RUN line, or for ADD, does not hang a
// build: it is ended, and tried again.
func TestFaults_StalledMirror(t *testing.T) {
	t.Parallel()
	p, m := newPlace(t), newMirror(t)
	p.bases = append(p.bases, "bookworm="+bed.Root("debian"))
	p.task("apt", m.from("bookworm")+"RUN apt-get install -y slow\n")
	p.task("add", "FROM busybox\nADD "+m.URL+"/slow /x\n")
	flags := []string{"--idle-timeout", "4s", "--no-smoke", "--no-downloads", "-j", "2", "--retries"}
	r := p.run(p.command(nil, append(flags, "0")...))
	for _, name := range []string{"apt", "add"} {
		one := r.records[name]
		if f := one.Fault; f == nil || f.Class != "stalled" || !f.Retry || !strings.Contains(f.Message, "printed nothing for 4s (--idle-timeout)") && name == "apt" {
			t.Errorf("%s: %+v, %+v", name, one, f)
		}
	}
	if f := r.records["apt"].Fault; f != nil && !strings.Contains(f.Detail, "slow.deb") && !strings.Contains(f.Detail, "slow") {
		t.Errorf("what the command had said is not there: %q", f.Detail)
	}
	p.clean()
	p.whole()
	m.mend("/slow.deb")
	m.mend("/slow")
	p.built(p.run(p.command(nil, append(flags, "1")...)))
}

// A build that takes too long is ended with all of its processes.
func TestFaults_Timeout(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("a", "FROM busybox\nRUN while :; do echo busy; sleep 1; done\n")
	p.task("b", "FROM busybox\nRUN echo quick\n")
	r := p.run(p.command(nil, "--timeout", "5s", "--retries", "0", "--no-smoke", "-j", "2"))
	if f := r.records["a"].Fault; f == nil || f.Class != "timeout" || !f.Retry || !strings.HasSuffix(f.Message, "Dockerfile:2: RUN while :; do echo busy; sleep 1; done: the build took longer than --timeout allows") {
		t.Errorf("%+v", r.records["a"])
	}
	if r.records["b"].Fault != nil {
		t.Errorf("the other: %+v", r.records["b"].Fault)
	}
	p.clean()
	p.whole()
}

// A mksquashfs that is killed for want of memory is started once more, with as
// little as it can do with; one that is killed again fails the build as that.
func TestFaults_PackerIsKilled(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.task("a", "FROM busybox\n")
	p.mkdir("said")
	packer := func(until int) {
		p.write("bin/mksquashfs", fmt.Sprintf("#!/bin/sh\nexpr \"$*\" : '.*\\(-processors.*M\\)' >> %[1]s/said/args\n[ $(grep -c . %[1]s/said/args) -gt %[2]d ] || kill -9 $$\nexec /usr/bin/mksquashfs \"$@\"\n", p.dir, until), 0o755)
	}
	run := func() (result, []string) {
		os.Remove(p.path("said/args"))
		cmd := p.command(nil, "--no-smoke", "--retries", "1")
		for i, kv := range cmd.Env {
			if rest, ok := strings.CutPrefix(kv, "PATH="); ok {
				cmd.Env[i] = "PATH=" + p.path("bin") + ":" + rest
			}
		}
		r := p.run(cmd)
		said, err := os.ReadFile(p.path("said/args"))
		p.must(err)
		return r, strings.Split(strings.TrimSpace(string(said)), "\n")
	}
	packer(2)
	r, args := run()
	if f := r.records["a"].Fault; f == nil || f.Class != "memory" || f.Retry || len(args) != 2 || !strings.Contains(f.Message, "want of memory") {
		t.Errorf("killed twice: %+v, %q", f, args)
	}
	p.clean()
	p.whole()
	packer(1)
	r, args = run()
	if one := r.records["a"]; one.Fault != nil || one.Attempts != 1 || len(args) != 2 || args[0] == args[1] || args[1] != "-processors 1 -mem 64M" {
		t.Errorf("killed once: %+v, %q", one, args)
	}
	log, _ := os.ReadFile(r.records["a"].Log)
	if !strings.Contains(string(log), "once more with one processor and 64 MiB") {
		t.Errorf("the log: %s", log)
	}
	p.clean()
	p.whole()
}
