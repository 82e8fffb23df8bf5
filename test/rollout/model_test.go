package rollout

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fence/test/bed"
	ms "fence/test/modelserver"
)

// reply holds a small model to the protocol: it chooses one of some commands.
const reply = `response_format={"type":"json_schema","json_schema":{"name":"turn","strict":true,"schema":{
	"type":"object","required":["analysis","plan","commands"],"additionalProperties":false,
	"properties":{
		"analysis":{"type":"string","maxLength":30},"plan":{"type":"string","maxLength":30},
		"commands":{"type":"array","minItems":1,"maxItems":1,"items":{"type":"object","required":["keystrokes","duration"],"additionalProperties":false,
			"properties":{"keystrokes":{"enum":["touch /it\n","ls /\n","cat /etc/hostname\n"]},"duration":{"enum":[0.1,0.5]}}}}}}}}`

// connects is a Python program that says whether a Unix socket lets it in.
const connects = `import socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b"GET /health HTTP/1.0\r\n\r\n")
print(s.recv(12).decode())`

// TestARealModel has SmolLM2-135M, behind llama.cpp's server under its own
// fence, play three tasks. That they are solved is not asked of it.
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
		filepath.Join(dir, "llama-server"), "-m", filepath.Join(dir, "model.gguf"), "--host", socket, "-t", "1", "-c", "4096", "--parallel", "1", "--jinja", "--metrics", "--alias", "smol")
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
	for i, what := range []string{"Create the empty file /it.", "Make a file with the name /it, then stop.", "List the root folder. Then create /it."} {
		p.task(fmt.Sprint("task-", i+1), "", rewards, "")
		p.write(filepath.Join("tasks", fmt.Sprint("task-", i+1), "instruction.md"), what+"\n")
	}
	r := p.run(p.command(p.args("run", "--agent", "terminus", "--api-base", "unix:"+socket, "--api-wait", "1m", "--max-turns", "2", "--max-output-tokens", "120",
		"--temperature", "0", "--model-seed", "1", "--no-summarize", "--body", reply, "-n", "2")...))
	if r.code != 0 || len(r.records) != 3 || !strings.Contains(r.stderr, "model smol, a context of 4096 tokens") {
		t.Fatalf("exit code %d, %d records\n%s", r.code, len(r.records), r.stderr)
	}
	in, out := 0, 0
	for name, rec := range r.records {
		if rec.Reward == nil || rec.Fault != nil || rec.Isolation == nil || rec.Isolation.Agent.Form == "" {
			t.Errorf("%s: %s %+v", name, word(rec), rec.Fault)
			continue
		}
		if rec.Agent.Stop != "turn_cap" || rec.AgentInfo.ModelInfo.Name != "smol" {
			t.Errorf("%s: %+v, %+v", name, rec.Agent, rec.AgentInfo)
		}
		ran := 0
		for _, turn := range p.turns(rec) {
			for _, c := range turn.Commands {
				if strings.Contains(turn.Output, strings.TrimSpace(c.Keystrokes)) {
					ran++
				}
			}
		}
		if ran == 0 {
			t.Errorf("%s: no command ran", name)
		}
		in, out = in+*rec.AgentResult.InputTokens-*rec.AgentResult.CacheTokens, out+*rec.AgentResult.OutputTokens
		t.Logf("%s: reward %s, %d commands, %d tokens in", name, word(rec), ran, *rec.AgentResult.InputTokens)
	}
	if prompt, predicted := (ms.Llama{Socket: socket}).Counted(t); in != prompt || out != predicted {
		t.Errorf("%d uncached tokens in and %d out; the server counted %d and %d", in, out, prompt, predicted)
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
	r = p.run(p.command("run", "tasks", "--include", "reach", "--image", bed.Image("debian"), "--agent", "oracle", "--out", "out/reach", "--scratch", p.path("scratch")))
	if rec := r.records["oracle reach"]; word(rec) != "1" {
		t.Errorf("a trial reaches the server, or it cannot be told: %s %+v\n%s", word(rec), rec.Fault, r.stderr)
	}
}
