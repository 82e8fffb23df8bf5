package rollout

import (
	"os"
	"slices"
	"strings"
	"testing"

	"fence/test/bed"
)

// What cost the guide's authors time ("Things that went wrong"), and is rollout's
// affair, either works or is named in the table: umask 0002, linked task
// folders, a full home folder; no tmux, a grader without its interpreter, a task
// that passes with no action.
func TestValidate_Symptoms(t *testing.T) {
	p := newPlace(t)
	p.task("modes", "touch /it; mkdir /folder\n", "[ \"$(stat -c %a /it /folder /tests/test.sh /tests | tr '\\n' ' ')\" = '644 755 755 755 ' ] || rm -f /it\n"+rewards, "")
	for _, name := range []string{"solution/solve.sh", "tests/test.sh"} { // of a checkout
		if err := os.Chmod(p.path("tasks/modes", name), 0o664); err != nil {
			t.Fatal(err)
		}
	}
	p.task("tmux", "tmux new-session -d 'touch /it'\n", rewards+"tmux ls\n", "")
	p.task("uv", "touch /it\n", "echo 'error: No interpreter found for Python 3.13 in managed installations or search path'\n", "")
	p.task("python", "touch /it\n", "", "")
	if err := os.WriteFile(p.path("tasks/python/tests/test.sh"), []byte("#!/usr/bin/python3.13\nprint(1)\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p.task("free", "touch /it\n", "echo 1 >/logs/verifier/reward.txt\n", "")
	// All are linked, each and together.
	if err := os.Rename(p.path("tasks"), p.path("elsewhere")); err != nil {
		t.Fatal(err)
	}
	p.mkdir("links")
	for _, name := range []string{"modes", "tmux", "uv", "python", "free"} {
		if err := os.Symlink("../elsewhere/"+name, p.path("links", name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("links", p.path("tasks")); err != nil {
		t.Fatal(err)
	}
	home := p.fullHome()
	cmd := p.command()
	cmd.Env = append(cmd.Env, "HOME="+home, "RUN="+bed.Bin(t, "rollout"))
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", `umask 0002; ! echo x >"$HOME/x" 2>/dev/null && rm "$HOME/x" || exit 9; exec "$RUN" "$@"`, "sh"}, p.args("validate")...)
	r := p.run(cmd)
	if r.code != 1 {
		t.Errorf("exit code %d", r.code)
	}
	for key, want := range map[string]string{
		"oracle modes": "1", "nop modes": "0",
		"oracle tmux": "0", "nop tmux": "0",
		"oracle uv": "reward_missing", "nop uv": "reward_missing",
		"oracle python": "reward_missing", "nop python": "reward_missing",
		"oracle free": "1", "nop free": "1",
	} {
		if got := word(r.records[key]); got != want {
			t.Errorf("%s: %s, want %s: %+v", key, got, want, r.records[key].Fault)
		}
	}
	said := strings.Join(strings.Fields(r.stderr), " ")
	for _, want := range []string{"images have no tmux", "graders need Python 3.13", "images lack what the first line of tests/test.sh names", "1 task passed with no action"} {
		if !strings.Contains(said, want) {
			t.Errorf("not said: %s", want)
		}
	}
	if left, err := os.ReadDir(home); err != nil || len(left) != 1 {
		t.Errorf("in the home folder is %v, %v", left, err)
	}
	if t.Failed() {
		t.Logf("%s", r.stderr)
	}
}

// fullHome is a home folder of the person's in which there is a file, and no room.
func (p *place) fullHome() string {
	p.t.Helper()
	home := p.smallDisk("home", "size=4k")
	if err := os.WriteFile(p.path("home/full"), slices.Repeat([]byte("x"), 4096), 0o644); err != nil {
		p.t.Fatal(err)
	}
	return home
}
