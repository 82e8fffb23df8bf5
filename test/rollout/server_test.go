package rollout

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"fence/test/bed"
	ms "fence/test/modelserver"
)

// heard calls a function once, when a word was written.
type heard struct {
	word string
	do   func()
	once sync.Once
}

func (h *heard) Write(b []byte) (int, error) {
	if strings.Contains(string(b), h.word) {
		h.once.Do(h.do)
	}
	return len(b), nil
}

// A trial goes on where its server, which went away in the middle of an answer,
// is back: nobody listened in between.
func TestServer_GoneAndBack(t *testing.T) {
	p := newPlace(t)
	p.task("one", "", rewards, "")
	var s *ms.Server
	s = ms.Start(t, turn("touch /it\n"), func(http.ResponseWriter, ms.Request) { s.Stop() }, done)
	cmd := p.command(p.args("run", "--agent", "terminus", "--api-base", s.Base, "--model", "m", "--retries", "0")...)
	cmd.Stderr = &heard{word: "connection refused", do: s.Resume}
	r := p.run(cmd)
	rec := r.records["terminus one"]
	if word(rec) != "1" || rec.Agent.Stop != "done" || rec.Agent.Turns != 3 || rec.Tries != 1 {
		t.Fatalf("%s %+v %+v\n%s", word(rec), rec.Agent, rec.Fault, r.stderr)
	}
	if tries := p.turns(rec)[1].Tries; tries < 3 {
		t.Errorf("the second turn was asked for %d times\n%s", tries, r.stderr)
	}
}

// The key of a server is with rollout and in its requests, and nowhere else: in
// no argument, in no other process's environment, in nothing that is written.
func TestServer_Key(t *testing.T) {
	for name, c := range map[string]struct{ flag, value, holds string }{
		"file": {"--api-key-file", "key", ""},
		"env":  {"--api-key-env", "THE_KEY", "environ of rollout"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			key := "sk-secret-in-the-" + name
			look := "mkdir -p /logs/%[1]s; { env; cat /proc/*/environ /proc/*/cmdline; } >/logs/%[1]s/seen 2>/dev/null\n"
			p.task("one", "", rewards+fmt.Sprintf(look, "verifier"), "")
			p.write("key", key+"\n")
			with := make(chan []string, 1)
			broken := ms.Status(http.StatusInternalServerError, `{"error":{"message":"no `+key+`"}}`)
			s := ms.Start(t, ms.Say(ms.Turn("with "+key, false, fmt.Sprintf(look, "agent")+"touch /it\n")), broken, func(w http.ResponseWriter, r ms.Request) {
				with <- append(holding(t, key), written(p.path("scratch"), key)...)
				done(w, r)
			}, done)
			run := p.command(p.args("run", "--agent", "terminus", "--api-base", s.Base, "--model", "m", c.flag, c.value)...)
			if c.holds != "" {
				run.Env = append(run.Env, c.value+"="+key)
			}
			r := p.run(run)
			rec := r.records["terminus one"]
			if word(rec) != "1" || rec.Tries != 1 || !strings.Contains(r.stderr, "no [key]") {
				t.Errorf("%s %+v\n%s", word(rec), rec.Fault, r.stderr)
			}
			if open := strings.Contains(r.stderr, "chmod 600"); open != (name == "file") {
				t.Errorf("that others can read it is said: %v\n%s", open, r.stderr)
			}
			if got := s.Requests()[0].Header.Get("Authorization"); got != "Bearer "+key {
				t.Errorf("the control: sent is %q", got)
			}
			close(with)
			if found, ok := <-with; !ok || strings.Join(found, ", ") != c.holds {
				t.Errorf("while it runs the key is in: %s; want %q", found, c.holds)
			}
			if reply := p.turns(rec)[0].Reply; !strings.Contains(reply, "with [key]") {
				t.Errorf("the control: the reply is %s", reply)
			}
			if at := written(p.path("out"), key); len(at) > 0 || strings.Contains(r.stderr, key) {
				t.Errorf("the key is in %s, or in\n%s", at, r.stderr)
			}
			for _, file := range []string{"agent/seen", "verifier/seen"} {
				seen, err := os.ReadFile(p.path("out/run", rec.TrialName, file))
				if err != nil || !bytes.Contains(seen, []byte("PATH=")) {
					t.Errorf("the control: %s: %v, %q", file, err, seen)
				}
			}
		})
	}
}

// holding are the places in /proc that have a text: "environ of NAME".
func holding(t *testing.T, text string) []string {
	t.Helper()
	var found []string
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(dirs) < 3 {
		t.Error(err, dirs)
	}
	for _, dir := range dirs {
		for _, file := range []string{"environ", "cmdline"} {
			data, _ := os.ReadFile(filepath.Join(dir, file)) // it may have ended, or be another's
			if bytes.Contains(data, []byte(text)) {
				name, _ := os.ReadFile(filepath.Join(dir, "comm"))
				found = append(found, file+" of "+strings.TrimSpace(string(name)))
			}
		}
	}
	return found
}

// written are the files below a folder that have a text.
func written(dir, text string) (found []string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(text)) {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// Of two attempts one is solved: pass@k is what that makes.
func TestServer_Attempts(t *testing.T) {
	p := newPlace(t)
	p.task("one", "", rewards, "")
	s := ms.Start(t, turn("touch /it\n"), done, done, done)
	s.Models(`{"data":[{"id":"m","max_model_len":32000}]}`)
	r := p.model(s.Base, "--attempts", "2", "-n", "1")
	if r.code != 0 {
		t.Fatalf("exit code %d\n%s", r.code, r.stderr)
	}
	// What was used without being named is in the trial's record, and to name it
	// is to go on with the same.
	rec := r.records["terminus one"]
	for _, want := range []string{`"api_base":"` + s.Base + `"`, `"context":32000`, `"max_turns":"30"`, `"time_cap":"30m0s"`} {
		if !strings.Contains(string(rec.Config), want) {
			t.Errorf("the record does not say %s: %s", want, rec.Config)
		}
	}
	if h := rec.Isolation.Host; h == nil || h.Server != s.Base || h.User == "" || h.Kernel == "" || h.Apptainer == "" {
		t.Errorf("for the operators: %+v", h)
	}
	asked := len(s.Requests())
	if r := p.model(s.Base, "--attempts", "2", "--max-turns", "30", "--time-cap", "30m", "--net", "loopback", "--strict-verdict=false"); r.code != 0 || len(s.Requests()) != asked {
		t.Errorf("with the defaults named: exit code %d, %d requests more\n%s", r.code, len(s.Requests())-asked, r.stderr)
	}
	if r := p.model(s.Base, "--attempts", "2", "--max-turns", "0"); r.code != 2 || !strings.Contains(r.stderr, "--max-turns was 30 and is now 0") {
		t.Errorf("with another number of turns: exit code %d\n%s", r.code, r.stderr)
	}
	report := p.command("report", "out/run")
	out, err := report.Output()
	for _, want := range []string{"2 trials", "pass@1: 0.500 over 1 task", "pass@2: 1.000 over 1 task"} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v; the report does not say %q:\n%s", err, want, out)
		}
	}
}

// Where probe cannot tell that a container is shut, no model is asked anything:
// here on a node without network namespaces. With less to prove it is.
func TestServer_Gate(t *testing.T) {
	p := newPlace(t)
	p.task("one", "", rewards, "")
	s := ms.Start(t, turn("touch /it\n"), done)
	for _, c := range []struct {
		net, want   string
		code, asked int
	}{{"loopback", "gate_failed", 3, 0}, {"none", "1", 0, 3}} {
		plain := p.command(p.args("run", "--agent", "terminus", "--api-base", s.Base, "--model", "m", "--net", c.net, "--out", "out/"+c.net)...)
		cmd := bed.NoNetns(t, plain.Path, plain.Args[1:]...)
		cmd.Env, cmd.Dir = plain.Env, plain.Dir
		r := p.run(cmd)
		if rec := r.records["terminus one"]; r.code != c.code || word(rec) != c.want || len(s.Requests()) != c.asked {
			t.Errorf("--net %s: exit code %d, %s %+v, %d requests\n%s", c.net, r.code, word(rec), rec.Fault, len(s.Requests()), r.stderr)
		}
	}
}
