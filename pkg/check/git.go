package check

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"fence/pkg/internal/gitdir"
	"fence/pkg/sif"
)

// gitLimit is how long a file of a repository may be that is read, in bytes:
// packs are read whole.
const gitLimit = 512 << 20

// git looks in every repository of the image for commits that HEAD does not
// lead to: a task made from a repository's past often brings its future, and
// with it the solution.
func (r *Report) git(t tree) {
	for _, p := range t.sorted() {
		if path.Base(p) != "HEAD" || !t[p].Mode.IsRegular() {
			continue
		}
		dir := path.Dir(p)
		objects, ok := t.resolve(path.Join(dir, "objects"))
		if refs, ok2 := t.resolve(path.Join(dir, "refs")); !ok || !ok2 || !objects.Mode.IsDir() || !refs.Mode.IsDir() {
			continue
		}
		r.repository(t, dir)
	}
}

func (r *Report) repository(t tree, dir string) {
	files := map[string]sif.Entry{}
	for p, e := range t {
		if name, ok := strings.CutPrefix(p, dir+"/"); ok && e.Mode.IsRegular() {
			files[name] = e
		} else if dir == "." && e.Mode.IsRegular() {
			files[p] = e
		}
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	found, err := gitdir.Look(names, func(name string) ([]byte, error) {
		e, ok := files[name]
		if !ok {
			return nil, fmt.Errorf("%s is missing", name)
		}
		if e.Size > gitLimit {
			return nil, fmt.Errorf("%s is longer than %d MiB", name, gitLimit>>20)
		}
		c, err := e.Open()
		if err != nil {
			return nil, err
		}
		return io.ReadAll(c)
	})
	where := "/" + dir
	if err != nil {
		r.add("git", Warning, []string{dir}, "", "whether the repository %s holds more than HEAD leads to cannot be told: %v", where, err)
		return
	}
	const hint = "in the Dockerfile: git remote remove, git tag -d, git reflog expire --expire=now --all, git gc --prune=now, or rm -rf .git"
	if n := len(found.Refs); n > 0 {
		var list []string
		for _, ref := range found.Refs[:min(n, 5)] {
			list = append(list, ref.Name+" "+ref.ID[:min(12, len(ref.ID))])
		}
		r.add("git", Warning, []string{dir}, hint, "%d references of the repository %s lead to commits that HEAD does not: %s", n, where, strings.Join(list, ", "))
	}
	if n := len(found.Commits); n > 0 {
		r.add("git", Warning, []string{dir}, hint, "the repository %s holds %d commits that HEAD does not lead to, such as %s: an agent can read them with git", where, n, found.Commits[0])
	}
	for _, what := range found.NotRead {
		r.add("git", Warning, []string{dir}, "", "in the repository %s not all was looked at: %s", where, what)
	}
}
