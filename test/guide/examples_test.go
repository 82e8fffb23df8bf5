package guide

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"fence/pkg/status"
	"fence/test/bed"
)

// withExamples is a place with the files of examples/, and scripts as a model
// might write them.
func withExamples(t *testing.T) place {
	t.Helper()
	return newPlace(t).examples()
}

func (p place) examples() place {
	t := p.t
	t.Helper()
	bed.Require(t, "slurm")
	files, err := filepath.Glob("../../examples/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, f := range files {
		p.write(filepath.Base(f), example(t, filepath.Base(f)), 0o644)
	}
	return p
}

func example(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile("../../examples/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// wheelhouse makes wheels.toml, and wheels with one small wheel in it.
func (p place) wheelhouse() place {
	p.t.Helper()
	p.write("wheels.toml", example(p.t, "wheels.toml"), 0o644)
	if err := os.Mkdir(p.path("wheels"), 0o755); err != nil {
		p.t.Fatal(err)
	}
	p.own("wheels")
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	const info = "requests-1.0.dist-info/"
	for _, f := range [][2]string{
		{"requests.py", "print('a wheel of a test')\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: requests\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "RECORD", "requests.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n"},
	} {
		w, err := z.Create(f[0])
		if err == nil {
			_, err = w.Write([]byte(f[1]))
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		p.t.Fatal(err)
	}
	p.write("wheels/requests-1.0-py3-none-any.whl", wheel.String(), 0o644)
	return p
}

func (p place) submit(args ...string) result {
	p.t.Helper()
	return p.run(p.here(bed.Command(p.t, "sbatch", slices.Concat([]string{"--wait"}, args)...)))
}

// log is the one file of that pattern.
func (p place) log(pattern string) string {
	p.t.Helper()
	files, _ := filepath.Glob(p.path(pattern))
	if len(files) != 1 {
		p.t.Fatalf("%s: %q", pattern, files)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		p.t.Fatal(err)
	}
	return string(data)
}

// In the shared project, as in folders that the fenced container knows nothing
// of or has others in place of.
func TestExamples_Reach(t *testing.T) {
	for name, dir := range map[string]func(testing.TB) string{"project": bed.SharedDir, "home": bed.HomeDir, "the node's /tmp": bed.TempDir} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := placeIn(t, dir).examples()
			r := p.submit("reach.sbatch", "img.sif")
			log := p.log("reach-*.log")
			if r.code != 0 || !strings.Contains(log, "\nok  Shared project filesystem                  visible  visible  not mounted\n") || strings.Count(log, "\nanswer: yes") != 2 {
				t.Errorf("exit code %d\n%s%s", r.code, r.stderr, log)
			}
			if page := p.log("reach-*/isolation.md"); !strings.Contains(page, "| Shared project filesystem | visible | visible | not mounted |") {
				t.Errorf("the page for operators:\n%s", page)
			}
		})
	}
}

func TestExamples_Task(t *testing.T) {
	t.Parallel()
	p := withExamples(t)
	p.write("solve.sh", `
echo working in $(pwd), 2>&1
echo 42 >/out/answer
ls /proj/team /proj/users; cat `+bed.ProjectToken+`; python3 -c 'import socket; socket.socket()'
exit 5
`, 0o644)
	r := p.submit("task.sbatch", "img.sif", "solve.sh")
	log := p.log("task-*.log")
	if r.code != 5 || strings.Contains(log, "canary") || !strings.Contains(log, "Address family not supported by protocol") || !strings.Contains(log, "cannot access '/proj/team'") {
		t.Errorf("exit code %d, want 5\n%s%s", r.code, r.stderr, log)
	}
	if got := p.log("task-*/answer"); got != "42\n" {
		t.Errorf("the answer is %q", got)
	}
	status := decoded[status.Status](t, p.log("task-*.status.json"))
	if len(status.Opened) != 1 || status.Opened[0].What != "write /out" || status.Opened[0].Why != "the task's results" {
		t.Errorf("opened: %+v", status.Opened)
	}
}

// The second script meets the server that the first left running.
func TestExamples_Session(t *testing.T) {
	t.Parallel()
	p := withExamples(t)
	p.write("one.sh", `
python3 -c '
import socket
s = socket.create_server(("127.0.0.1", 8080))
print("listening", flush=True)
while True: s.accept()[0].send(b"from the first")' >/tmp/log 2>&1 &
until grep -q listening /tmp/log; do :; done
cat `+bed.ProjectToken+` || exit 4
`, 0o644)
	p.write("two.sh", `python3 -c 'import socket; print(socket.create_connection(("127.0.0.1", 8080)).recv(100).decode())' >/tmp/out/answer
pkill -f create_server; cat /tmp/out/answer`, 0o644)
	r := p.submit("session.sbatch", "img.sif", "one.sh", "two.sh")
	log := p.log("session-*.log")
	if r.code != 0 || strings.Contains(log, "canary") || !strings.Contains(log, "one.sh ended with 4\n") || !strings.Contains(log, "from the first\n") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stderr, log)
	}
	if got := p.ok(p.sh("tar xf session-*.tar && cat out/answer")); got.stdout != "from the first\n" {
		t.Errorf("the answer is %q", got.stdout)
	}
}

// The script's server is asked by the tests, and its own reward counts nothing.
func TestExamples_Graded(t *testing.T) {
	t.Parallel()
	p := withExamples(t)
	p.write("solve.sh", `
setsid python3 -c '
import socket
s = socket.create_server(("127.0.0.1", 8080))
open("/tmp/up", "w").close()
while True: s.accept()[0].send(b"42")' >/dev/null 2>&1 &
until [ -e /tmp/up ]; do :; done
site=$HOME/.local/lib/$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages
mkdir -p $site; echo 'print("planted")' >$site/usercustomize.py
echo 1 >/logs/verifier/reward.txt || echo "exit 0" >/tests/test.sh || exit 3
`, 0o644)
	if err := os.Mkdir(p.path("tests"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.own("tests")
	// The agent's home is read by who asks for it, the control, and by nobody else.
	p.write("tests/test.sh", `home=$(getent passwd $(id -u) | cut -d: -f6)
echo "$(env -u PYTHONNOUSERSITE HOME=$home python3 -c 'print(1)' | tr '\n' ' ')/ $(python3 -c 'print(2)')"
ls /logs/verifier; python3 -c 'import socket; print(socket.create_connection(("127.0.0.1", 8080)).recv(100).decode())' >/logs/verifier/answer
echo 0.5 >/logs/verifier/reward.txt`, 0o644)
	r := p.submit("graded.sbatch", "img.sif", "solve.sh", "tests")
	log := p.log("graded-*.log")
	if r.code != 0 || strings.Count(log, "Read-only file system") != 2 || !strings.Contains(log, "the script ended with 3\n") || strings.Contains(log, "the tests ended") || !strings.Contains(log, "\nplanted 1 / 2\n") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stderr, log)
	}
	if got := p.ok(p.sh("tar xf graded-*.tar && cat verifier/reward.txt verifier/answer")); got.stdout != "0.5\n42\n" {
		t.Errorf("the reward and the answer are %q", got.stdout)
	}
	if status := p.log("graded-*.status.json"); !strings.Contains(status, `"below": "verifier"`) {
		t.Errorf("%s", status)
	}
}

func TestExamples_Array(t *testing.T) {
	t.Parallel()
	p := withExamples(t)
	for _, dir := range []string{"tasks", "wheels"} {
		if err := os.Mkdir(p.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		p.own(dir)
	}
	p.write("wheels/a.whl", "a wheel\n", 0o644)
	p.write("tasks/a.sh", `test "$PIP_FIND_LINKS" = /wheels && grep -q wheel /wheels/a.whl && dd if=/dev/zero of=/tmp/big bs=1M count=80 2>/dev/null`, 0o644) // more than Apptainer's own /tmp holds
	p.write("tasks/b.sh", `echo x >/wheels/b.whl || exit 4`, 0o644)
	p.write("tasks/c.sh", `cat </dev/tcp/127.0.0.1/22 || cat `+bed.ProjectReadme+` || exit 6`, 0o644)
	r := p.submit("array.sbatch", "img.sif", "tasks", "wheels")
	logs, _ := filepath.Glob(p.path("array-*.log"))
	var text strings.Builder
	for _, f := range logs {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "%s:\n%s", filepath.Base(f), data)
	}
	results, err := os.ReadFile(p.path("results.tsv"))
	if err != nil {
		t.Fatalf("%v, exit code %d\n%s%s", err, r.code, r.stderr, text.String())
	}
	lines := strings.Split(strings.TrimSpace(string(results)), "\n")
	slices.Sort(lines)
	if want := []string{"a.sh\t0", "b.sh\t4", "c.sh\t6"}; r.code != 0 || !slices.Equal(lines, want) || len(logs) != 3 {
		t.Errorf("exit code %d, results %q, want %q\n%s%s", r.code, lines, want, r.stderr, text.String())
	}
	if files, _ := os.ReadDir(p.path("wheels")); len(files) != 1 {
		t.Errorf("the wheelhouse has %v", files)
	}
}

// The second job finds what the first has made.
func TestExamples_Build(t *testing.T) {
	t.Parallel()
	p := withExamples(t).tasks()
	p.ok(p.submit("build.sbatch", "tasks", "--base", "debian:12=img.sif"))
	first := p.log("build-*.jsonl")
	if strings.Count(first, `"cached":false`) != 2 || strings.Count(first, `"smoke":"ok"`) != 2 || strings.Contains(p.log("build-*.log"), "heavy work") {
		t.Errorf("%s%s", first, p.log("build-*.log"))
	}
	p.ok(p.sh("rm build-*"))
	p.ok(p.submit("build.sbatch", "tasks", "--base", "debian:12=img.sif"))
	if again := p.log("build-*.jsonl"); strings.Count(again, `"cached":true`) != 2 {
		t.Errorf("the second time:\n%s", again)
	}
}

// From task folders to the table, in a job; the second one runs nothing again.
func TestExamples_Validate(t *testing.T) {
	t.Parallel()
	p := withExamples(t).tasks()
	for _, again := range []bool{false, true} {
		p.ok(p.submit("validate.sbatch", "tasks", "--base", "debian:12=img.sif"))
		log, records := p.log("validate-*.log"), p.log("validate-*.jsonl")
		if !regexp.MustCompile(`tasks +1/1 +1/1 +1/1`).MatchString(log) || !strings.Contains(log, "leaky: it has no tests/test.sh") {
			t.Errorf("the table is not there:\n%s", log)
		}
		if strings.Count(records, `"reward":1,`) != 1 || strings.Count(records, `"reward":0,`) != 1 || strings.Count(records, "\n") != 2 {
			t.Errorf("the records:\n%s", records)
		}
		if again && strings.Contains(log, "rollout: 1/1") {
			t.Errorf("it was run again:\n%s", log)
		}
		p.ok(p.sh("rm validate-*"))
	}
	// A model plays what was found fit, its server in the same job. Without that
	// the job ends.
	bed.Require(t, "model")
	at := filepath.Join(bed.Dir(), "model")
	play := func(server string) (log string, r result) {
		r = p.sh("sbatch --wait terminus.sbatch "+filepath.Join(at, "model.gguf")+" tasks", "LLAMA="+server, "N=1", "CONTEXT=2048", "FLAGS=--max-turns 1 --max-output-tokens 30")
		return p.log("terminus-*.log"), r
	}
	p.write("no-server", "#!/bin/sh\nsleep 3; exit 1\n", 0o755)
	if log, r := play("no-server"); r.code != 3 || !strings.Contains(log, "the server has ended with ") || !strings.Contains(log, "nothing was run") {
		t.Errorf("without a server: exit code %d\n%s%s", r.code, r.stderr, log)
	}
	p.ok(p.sh("rm terminus-* server-*"))
	log, r := play(filepath.Join(at, "llama-server"))
	record := p.log("terminus-*.jsonl")
	if r.code != 0 || strings.Count(record, "\n") != 1 || !strings.Contains(record, `"model_info":{"name":"model"}`) || !strings.Contains(record, `"agent":{"stop":"turn_cap","turns":1}`) {
		t.Errorf("exit code %d\n%s%s\n%s", r.code, r.stderr, log, record)
	}
}

// The jobs of an array share the work: each image is built by one of them, and
// all of them have all of it in the end.
func TestExamples_BuildArray(t *testing.T) {
	t.Parallel()
	const tasks, jobs = 6, 3
	p := withExamples(t).tasks()
	for i := range tasks {
		dir := fmt.Sprintf("tasks/more%d", i)
		if err := os.Mkdir(p.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
		p.write(dir+"/Dockerfile", fmt.Sprintf("FROM busybox\nRUN echo %d >/n\n", i), 0o644)
	}
	r := p.submit(fmt.Sprintf("--array=1-%d", jobs), "build.sbatch", "tasks", "--include", "more*", "--base", "busybox="+bed.Root("busybox"), "--require", "none")
	p.ok(r)
	files, _ := filepath.Glob(p.path("build-*.jsonl"))
	if len(files) != jobs {
		t.Fatalf("%d files of records: %v", len(files), files)
	}
	built := map[string]int{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		records := 0
		for line := range strings.Lines(string(data)) {
			var one struct {
				Name, Image string
				Cached      bool
			}
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(one.Image); err != nil {
				t.Errorf("%s: %v", one.Name, err)
			}
			if records++; !one.Cached {
				built[one.Name]++
			}
		}
		if records != tasks {
			t.Errorf("%s has %d records, of %d tasks", filepath.Base(f), records, tasks)
		}
	}
	for i := range tasks {
		if name := fmt.Sprintf("more%d", i); built[name] != 1 {
			t.Errorf("%s was built %d times", name, built[name])
		}
	}
}
