package rollout

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"fence/pkg/result"
	"fence/test/bed"
)

// greedy are tasks whose solutions take all that they get, and what is to come
// of them. What a solution ends with has no fork: none may be had.
var greedy = map[string]struct{ solve, want string }{
	"forks": {"echo 'while :; do sh /tmp/b & sh /tmp/b & done' >/tmp/b; sh /tmp/b 2>/dev/null & exec sleep 1000\n", "process_limit in agent by task, try 1"},
	"eats":  {"python3 -c 'x = b\"x\" * (10 << 30)'\n", "memory_limit in agent by task, try 1"},
	"fills": {"dd if=/dev/zero of=/full bs=1M; exec sleep 1000\n", "disk_limit in agent by task, try 1"},
}

// A trial that takes too much is ended alone, with the cause, and the others come
// out as they do without it, down to their files.
func TestRun_Limits(t *testing.T) {
	p := newPlace(t)
	const work = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; done | md5sum; python3 -c 'print(len(bytearray(50 << 20)))'\n"
	good := []string{"a", "b", "c", "d", "e", "half", "none"}
	for _, name := range good {
		p.task(name, work+"touch /it\n", work+rewards, "")
	}
	p.task("half", work, work+"echo 0.5 >/logs/verifier/reward.txt\n", "")
	p.task("none", work+"exit 3\n", work, "")
	p.task("b", work+"exit 4\n", work+rewards, "")
	n := 0
	run := func(names ...string) (map[string]string, map[string]map[string]string) {
		t.Helper()
		n++
		out := "out/run" + string(rune('0'+n))
		args := []string{"run"}
		for _, name := range names {
			args = append(args, "tasks/"+name)
		}
		r := p.run(p.command(append(args, "--image", bed.Image("debian"), "--out", out, "--scratch", p.path("scratch"), "--agent", "oracle", "-n", "8",
			"--memory", "300M", "--processes", "150", "--disk", "128M")...))
		files := map[string]map[string]string{}
		for key, rec := range r.records {
			files[key] = p.texts(filepath.Join(out, rec.TrialName))
		}
		if r.code != 3 || len(r.records) != len(names) { // none has no verdict
			t.Errorf("exit code %d, %d records\n%s", r.code, len(r.records), r.stderr)
		}
		return outcomes(r.records), files
	}
	want, wantFiles := run(good...)
	bad := [][]string{slices.Sorted(maps.Keys(greedy))}
	if full() {
		bad = [][]string{{"forks"}, {"eats"}, {"fills"}}
	}
	for name, b := range greedy {
		p.task(name, b.solve, rewards, "")
	}
	for _, bad := range bad {
		got, files := run(append(bad, good[len(bad)-1:]...)...)
		for _, name := range bad {
			if is := got["oracle "+name]; is != greedy[name].want {
				t.Errorf("%s: %s, want %s", name, is, greedy[name].want)
			}
		}
		for _, name := range good[len(bad)-1:] {
			key := "oracle " + name
			if got[key] != want[key] {
				t.Errorf("%s beside %s: %s, undisturbed %s", name, bad, got[key], want[key])
			}
			if !maps.Equal(files[key], wantFiles[key]) {
				t.Errorf("%s beside %s left\n%q\nundisturbed\n%q", name, bad, files[key], wantFiles[key])
			}
		}
	}
}

// texts are the files of a trial but for those that have times in them.
func (p *place) texts(trial string) map[string]string {
	p.t.Helper()
	all, root := map[string]string{}, p.path(trial)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		if err != nil || d.IsDir() || slices.Contains([]string{result.ResultFile, result.ConfigFile, "trial.log"}, rel) {
			return err
		}
		data, err := os.ReadFile(path)
		all[rel] = string(data)
		return err
	})
	if err != nil || len(all) == 0 {
		p.t.Fatal(err, all)
	}
	return all
}
