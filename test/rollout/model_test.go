package rollout

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fence/test/bed"
	ms "fence/test/modelserver"
)

// narrow makes of the schema for replies one that a small model keeps to: it
// chooses one of two commands, each of which leaves in /it how its shell is
// held; the first prints it, too.
var narrow = strings.NewReplacer(
	`{"type":"string"},"duration":{"type":"number"}`, `{"enum":["tee -a /it </proc/$$/status\n","cat /proc/$$/status >>/it\n"]},"duration":{"enum":[0.1,0.5]}`,
	`"type":"array"`, `"type":"array","minItems":1,"maxItems":1`,
	`{"type":"boolean"}`, `{"enum":[false]}`,
	`{"type":"string"}`, `{"type":"string","maxLength":30}`,
)

// connects is a Python program that says whether a Unix socket lets it in.
const connects = `import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b"GET /health HTTP/1.0\r\n\r\n")
print(s.recv(12).decode())`

// TestARealModel has SmolLM2-135M, behind llama.cpp's server under its own
// fence, play three tasks, two of them until its context is full. That they
// are solved is not asked of it.
func TestARealModel(t *testing.T) {
	p := newPlace(t)
	bed.Require(t, "model")
	p.mkdir("server")
	if out, err := bed.Command(t, "chmod", "700", p.path("server")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	socket := p.path("server/model.sock")
	dir := filepath.Join(bed.Dir(), "model")
	ctx, stop := context.WithCancel(t.Context())
	server := bed.CommandContext(t, ctx, bed.Bin(t, "fence"), "--policy", "model-server", "--read", dir, "--write", p.path("server"), "--why", "the weights, and the socket's folder", "--",
		filepath.Join(dir, "llama-server"), "-m", filepath.Join(dir, "model.gguf"), "--host", socket, "-t", "1", "-c", "1280", "--parallel", "1", "--jinja", "--metrics", "--alias", "smol")
	var log strings.Builder
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stop()
		_ = server.Wait()
		if t.Failed() {
			t.Log(log.String()[max(0, log.Len()-3000):])
		}
	}()
	in, out := 0, 0
	for name, c := range map[string]struct {
		flags string
		stops []string
		hands bool
	}{
		"small":       {"--max-turns 2", []string{"turn_cap"}, false},
		"full":        {"--no-summarize", []string{"context"}, false},
		"handed-over": {"--max-turns 2 --context 1100", []string{"turn_cap", "context"}, true},
	} {
		p.task(name, "", "grep Seccomp: /it\n"+rewards, "")
		p.write(filepath.Join("tasks", name, "instruction.md"), "Write how the shell is held into the file /it.\n")
		body := narrow.Replace(ms.ReplyFormat(t))
		without := `,"cat /proc/$$/status >>/it\n"` // it prints, whatever it would choose
		if name == "small" {                        // and here it does not
			without = `"tee -a /it </proc/$$/status\n",`
		}
		if !strings.Contains(body, without) {
			t.Fatalf("no %s in %s", without, body)
		}
		body = strings.Replace(body, without, "", 1)
		r := p.run(p.command(p.args("run", append(strings.Fields(c.flags), "--agent", "terminus", "--api-base", "unix:"+socket, "--api-wait", "1m", "--max-output-tokens", "120",
			"--temperature", "0", "--model-seed", "1", "--body", body, "--include", name, "--out", "out/"+name)...)...))
		rec := r.records["terminus "+name]
		if r.code != 0 || rec.Reward == nil || rec.Isolation == nil || rec.Isolation.Agent.Form == "" || rec.AgentInfo.ModelInfo.Name != "smol" {
			t.Errorf("%s: exit code %d, %s %+v\n%s", name, r.code, word(rec), rec.Fault, r.stderr)
			continue
		}
		used := rec.AgentResult
		if hands := used.Metadata["hand_overs"] != 0.0; !slices.Contains(c.stops, rec.Agent.Stop) || hands != c.hands {
			t.Errorf("%s: %+v, %v", name, rec.Agent, used.Metadata)
		}
		if ran, err := os.ReadFile(p.path("out", name, rec.TrialName, "verifier/test-stdout.txt")); err != nil || !strings.HasPrefix(string(ran), "Seccomp:\t2\n") {
			t.Errorf("%s: no command ran behind a filter: %v, %q", name, err, ran)
		}
		in, out = in+*used.InputTokens-*used.CacheTokens, out+*used.OutputTokens
		t.Logf("%s: %+v, %d tokens in, %d of them cached, %d out", name, rec.Agent, *used.InputTokens, *used.CacheTokens, *used.OutputTokens)
	}
	if prompt, predicted := (ms.Llama{Socket: socket}).Counted(t); in != prompt || out != predicted {
		t.Errorf("%d uncached tokens in and %d out; the server counted %d and %d", in, out, prompt, predicted)
	}
	// The kernel's word for the server's fence.
	if name := comm(server.Process.Pid); name != "llama-server" {
		t.Errorf("fence has become %s", name)
	}
	if got := restricted(t, server.Process.Pid); got != "1 2" {
		t.Errorf("NoNewPrivs and Seccomp of the server are %s", got)
	}
	// The controls: this process is not restricted, and what Apptainer runs has no filter.
	if got := restricted(t, os.Getpid()); got == "1 2" {
		t.Error("the control: this process is restricted, too")
	}
	if got, err := bed.Apptainer(t, "exec", bed.Image("busybox"), "grep", "Seccomp:", "/proc/self/status").Output(); err != nil || string(got) != "Seccomp:\t0\n" {
		t.Errorf("the control: %v, %q", err, got)
	}
	// Who has the socket, and who has not.
	try := func(cmd *exec.Cmd) string {
		out, err := cmd.CombinedOutput()
		if err == nil {
			return strings.TrimSpace(string(out))
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return lines[len(lines)-1]
	}
	if got := try(bed.Command(t, "python3", "-c", connects, socket)); got != "HTTP/1.1 200" {
		t.Errorf("the control: its owner: %s", got)
	}
	if got := try(bed.Neighbour(t, "python3", "-c", connects, socket)); !strings.HasPrefix(got, "PermissionError") {
		t.Errorf("another user: %s", got)
	}
	reach := "cat >/tmp/c.py <<'E'\n" + connects + "\nE\npython3 /tmp/c.py " + socket + " 2>&1 | tail -1 >/from-$1\n"
	p.task("reach", "set agent\n"+reach, "set verifier\n"+reach+"cat /from-*\n[ $(cat /from-* | grep -c FileNotFoundError) = 2 ] && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt\n", "")
	r := p.run(p.command("run", "tasks", "--include", "reach", "--image", bed.Image("debian"), "--agent", "oracle", "--out", "out/reach", "--scratch", p.path("scratch")))
	if rec := r.records["oracle reach"]; word(rec) != "1" {
		t.Errorf("a trial reaches the server, or it cannot be told: %s %+v\n%s", word(rec), rec.Fault, r.stderr)
	}
}
