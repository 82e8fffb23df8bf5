package probe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{"ssh-1/agent.5", "ssh-2/agent.7", "ssh-3/other", "plain", "b[1]"} {
		p := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := newSite(task{}, nil)
	for pattern, want := range map[string]string{
		"ssh-*/agent.*": "ssh-1/agent.5 ssh-2/agent.7", "ssh-*/none": "ssh-*/none", "plain": "plain", "gone": "gone", "none/*": "none/*", "pl?in": "plain", "ssh-[12]": "ssh-1 ssh-2",
	} {
		var got []string
		for _, p := range s.expand(filepath.Join(dir, pattern)) {
			got = append(got, strings.TrimPrefix(p, dir+"/"))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", pattern, got, want)
		}
	}
	if f := s.noMatch(filepath.Join(dir, "ssh-*/none")); f.Outcome != Absent {
		t.Errorf("nothing of that name: %+v", f)
	}
	if f := s.noMatch(filepath.Join(dir, "no-such-folder/*")); f.Outcome != Absent || f.Errno != "ENOENT" {
		t.Errorf("no such folder: %+v", f)
	}
	if f := tryDevice(s, filepath.Join(dir, "b[1]")); f.Outcome != Reachable {
		t.Errorf("a file that is called like a pattern: %+v", f)
	}
	s.dirs[dir].cut = true
	if f := s.noMatch(filepath.Join(dir, "x*")); f.Outcome != Error {
		t.Errorf("a folder that was not read to its end: %+v", f)
	}
}
