package gitdir

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// repo is a repository made by git: three commits on main, at the second.
type repo struct {
	t     testing.TB
	dir   string
	clock int
}

func (r *repo) git(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = r.dir
	r.clock++
	when := fmt.Sprintf("%d +0000", 1700000000+r.clock)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a@b", "GIT_AUTHOR_DATE="+when, "GIT_COMMITTER_DATE="+when)
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func newRepo(t testing.TB) (r *repo, ids []string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		if os.Getenv("TEST_REQUIRED") == "1" {
			t.Fatal("TEST_REQUIRED=1, but git is not installed")
		}
		t.Skip("SKIPPED, this is missing: git")
	}
	r = &repo{t: t, dir: t.TempDir()}
	r.git("init", "-q", "-b", "main")
	for i := range 3 {
		text := strings.Repeat("a line that is the same in each\n", 50) + fmt.Sprint(i)
		if err := os.WriteFile(filepath.Join(r.dir, "f"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		r.git("add", "f")
		r.git("commit", "-q", "-m", fmt.Sprintf("commit %d\n\n%s", i, strings.Repeat("a long message, for deltas. ", 40)))
		ids = append(ids, r.git("rev-parse", "HEAD"))
	}
	return r, ids
}

func (r *repo) look() (Found, error) {
	r.t.Helper()
	git := os.DirFS(filepath.Join(r.dir, ".git"))
	var names []string
	err := fs.WalkDir(git, ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			names = append(names, p)
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return Look(names, func(name string) ([]byte, error) { return fs.ReadFile(git, name) })
}

func TestLook(t *testing.T) {
	for _, c := range []struct {
		name    string
		do      func(r *repo, ids []string)
		refs    string // names
		commits int    // that HEAD does not lead to
	}{
		{"nothing beside HEAD", func(r *repo, ids []string) {}, "", 0},
		{"packed, nothing beside HEAD", func(r *repo, ids []string) { r.git("gc", "-q") }, "", 0},
		{"tags of the past", func(r *repo, ids []string) {
			r.git("tag", "old", ids[0])
			r.git("tag", "-a", "-m", "x", "older", ids[1])
			r.git("pack-refs", "--all")
		}, "", 0},
		{"a branch ahead", func(r *repo, ids []string) { r.git("checkout", "-q", "-b", "task", ids[0]) }, "logs/HEAD logs/refs/heads/main refs/heads/main", 2},
		{"a branch ahead, packed", func(r *repo, ids []string) { r.git("checkout", "-q", "-b", "task", ids[0]); r.git("gc", "-q") },
			"refs/heads/main", 2}, // gc drops reflog entries as old as these
		{"reset, reflog left", func(r *repo, ids []string) { r.git("reset", "-q", "--hard", ids[1]) }, "ORIG_HEAD logs/HEAD logs/refs/heads/main", 1},
		{"reset, objects left", func(r *repo, ids []string) {
			r.git("gc", "-q")
			r.git("reset", "-q", "--hard", ids[1])
			r.git("reflog", "expire", "--expire=now", "--all")
			r.git("update-ref", "-d", "ORIG_HEAD")
		}, "", 1},
		{"cleaned", func(r *repo, ids []string) {
			r.git("reset", "-q", "--hard", ids[1])
			r.git("reflog", "expire", "--expire=now", "--all")
			r.git("update-ref", "-d", "ORIG_HEAD")
			r.git("gc", "-q", "--prune=now")
		}, "", 0},
		{"an annotated tag of the future", func(r *repo, ids []string) {
			r.git("tag", "-a", "-m", "fix", "fix", ids[2])
			r.git("reset", "-q", "--hard", ids[0])
			r.git("reflog", "expire", "--expire=now", "--all")
			r.git("update-ref", "-d", "ORIG_HEAD")
			r.git("pack-refs", "--all")
		}, "refs/tags/fix", 2},
		{"a stash", func(r *repo, ids []string) {
			if err := os.WriteFile(filepath.Join(r.dir, "f"), []byte("stashed"), 0o644); err != nil {
				r.t.Fatal(err)
			}
			r.git("stash", "-q")
		}, "logs/refs/stash refs/stash", 2},
		{"detached", func(r *repo, ids []string) { r.git("checkout", "-q", "--detach", ids[2]) }, "", 0},
		{"a loose reference over a packed one", func(r *repo, ids []string) {
			r.git("pack-refs", "--all")
			r.git("commit", "-q", "--allow-empty", "-m", "next")
		}, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, ids := newRepo(t)
			c.do(r, ids)
			head := r.git("rev-parse", "HEAD")
			got, err := r.look()
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, ref := range got.Refs {
				names = append(names, ref.Name)
			}
			slices.Sort(names)
			if strings.Join(names, " ") != c.refs || len(got.Commits) != c.commits || got.Head != head || got.NotRead != nil {
				t.Errorf("%+v", got)
			}
			if c.commits > 1 && c.name != "a stash" && got.Commits[0] != ids[2] {
				t.Errorf("the newest is %s", got.Commits[0])
			}
		})
	}
}

// Many commits in a pack, deltas among them, are all read: as many as git counts.
func TestLook_Deltas(t *testing.T) {
	r, _ := newRepo(t)
	for i := range 60 {
		r.git("commit", "-q", "--allow-empty", "-m", fmt.Sprintf("%s %d", strings.Repeat("words that a delta can take from another. ", 60), i))
	}
	r.git("repack", "-q", "-a", "-d", "-f", "--depth=50", "--window=50")
	r.git("checkout", "-q", "--orphan", "new")
	r.git("commit", "-q", "-m", "alone")
	got, err := r.look()
	if err != nil || len(got.Commits) != 63 || got.NotRead != nil {
		t.Errorf("%d commits, %v, %v", len(got.Commits), got.NotRead, err)
	}
}

func TestLook_Damaged(t *testing.T) {
	r, ids := newRepo(t)
	r.git("gc", "-q")
	files, err := filepath.Glob(filepath.Join(r.dir, ".git/objects/pack/*.pack"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.Chmod(files[0], 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(files[0], 40); err != nil {
		t.Fatal(err)
	}
	got, err := r.look()
	if err != nil || len(got.NotRead) != 1 || !strings.Contains(got.NotRead[0], "cannot be read") {
		t.Errorf("%+v, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, ".git/HEAD"), []byte(strings.Repeat("a", 64)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := r.look(); err == nil || !strings.Contains(err.Error(), "SHA-256") {
		t.Error(err)
	}
	_ = ids
}

func FuzzPack(f *testing.F) {
	r, _ := newRepo(f)
	r.git("repack", "-q", "-a", "-d", "-f")
	files, _ := filepath.Glob(filepath.Join(r.dir, ".git/objects/pack/pack-*"))
	data := map[string][]byte{}
	for _, p := range files {
		b, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		data[filepath.Ext(p)] = b
	}
	f.Add(uint16(12), byte(0x90), uint16(1033), byte(1))
	f.Fuzz(func(t *testing.T, at uint16, x byte, at2 uint16, y byte) {
		idx, pack := slices.Clone(data[".idx"]), slices.Clone(data[".pack"])
		pack[int(at)%len(pack)] ^= x
		idx[int(at2)%len(idx)] ^= y
		_, _ = Look([]string{"HEAD", "objects/pack/a.idx", "objects/pack/a.pack"}, func(name string) ([]byte, error) {
			return map[string][]byte{"HEAD": []byte(strings.Repeat("a", 40)), "objects/pack/a.idx": idx, "objects/pack/a.pack": pack}[name], nil
		})
	})
}
