// Package gitdir reads a git repository's files as far as it takes to tell
// which commits HEAD does not lead to. It runs no git: the repository is
// somebody else's, and git does what a repository's configuration says.
//
// The formats are those of gitrepository-layout(5), gitformat-pack(5) and
// git's loose objects.
package gitdir

import (
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// commitLimit is how long a commit or tag may be, in bytes.
const commitLimit = 16 << 20

// Found is what a repository holds beside HEAD's history.
type Found struct {
	Head    string   // the commit, "" for none
	Refs    []Ref    // references, stashes and reflog entries that lead to such commits, each name once
	Commits []string // the commits, the newest first
	NotRead []string // what was not looked at, and why
}

// Ref is a name for a commit.
type Ref struct{ Name, ID string }

// object is what is known of a commit or a tag.
type object struct {
	next []string // a commit's parents, a tag's object
	time int64    // of a commit
	tag  bool
}

type repository struct {
	names   []string
	read    func(string) ([]byte, error)
	objects map[string]object
	found   Found
}

var (
	looseName = regexp.MustCompile(`^objects/([0-9a-f]{2})/([0-9a-f]{38})$`)
	idForm    = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// Look reads a repository: names are its files, relative to the folder that
// HEAD is in, and read gives the bytes of one. An error means that not even
// HEAD could be read.
func Look(names []string, read func(string) ([]byte, error)) (Found, error) {
	r := &repository{names: names, read: read, objects: map[string]object{}}
	refs, err := r.references()
	if err != nil {
		return Found{}, err
	}
	r.loose()
	r.packs()
	for _, name := range []string{"objects/info/alternates", "reftable/tables.list"} {
		if slices.Contains(names, name) {
			r.skip("%s leads to what is not read here", name)
		}
	}
	history := r.history(r.found.Head)
	for id, o := range r.objects {
		if !o.tag && !history[id] {
			r.found.Commits = append(r.found.Commits, id)
		}
	}
	slices.SortFunc(r.found.Commits, func(a, b string) int {
		if ta, tb := r.objects[a].time, r.objects[b].time; ta != tb {
			return int(max(-1, min(1, tb-ta)))
		}
		return strings.Compare(a, b)
	})
	seen := map[string]bool{}
	for _, ref := range refs {
		id := r.peel(ref.ID)
		if o, ok := r.objects[id]; ok && !o.tag && !history[id] && !seen[ref.Name] {
			seen[ref.Name] = true
			r.found.Refs = append(r.found.Refs, Ref{ref.Name, id})
		}
	}
	return r.found, nil
}

func (r *repository) skip(format string, args ...any) {
	r.found.NotRead = append(r.found.NotRead, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "))
}

// references are all names for objects. It also finds what HEAD is.
func (r *repository) references() ([]Ref, error) {
	head, err := r.read("HEAD")
	if err != nil {
		return nil, err
	}
	target, symbolic := strings.CutPrefix(strings.TrimSpace(string(head)), "ref: ")
	if !symbolic && !idForm.MatchString(target) {
		return nil, errors.New("its HEAD names no commit: a repository with SHA-256 names, or none")
	}
	loose := map[string]bool{}
	for _, name := range r.names {
		loose[name] = true
	}
	var all []Ref
	for _, name := range r.names {
		isRef := strings.HasPrefix(name, "refs/") || (strings.HasSuffix(name, "_HEAD") && !strings.Contains(name, "/"))
		if !isRef && name != "packed-refs" && !strings.HasPrefix(name, "logs/") {
			continue
		}
		data, err := r.read(name)
		if err != nil {
			r.skip("%v", err)
			continue
		}
		for line := range strings.Lines(string(data)) {
			words := strings.Fields(line)
			switch {
			case len(words) == 0 || strings.HasPrefix(line, "#"):
			case name == "packed-refs": // one with a file of its own is out of date; ^ID is what the tag before it leads to
				if len(words) == 2 && !loose[words[1]] {
					all = append(all, Ref{words[1], words[0]})
				}
			case strings.HasPrefix(name, "logs/") && len(words) >= 2:
				all = append(all, Ref{name, words[0]}, Ref{name, words[1]})
			case idForm.MatchString(words[0]):
				all = append(all, Ref{name, words[0]}) // FETCH_HEAD has several lines
			}
		}
	}
	r.found.Head = target
	if symbolic {
		r.found.Head = ""
		if at := slices.IndexFunc(all, func(ref Ref) bool { return ref.Name == target }); at >= 0 {
			r.found.Head = all[at].ID
		}
	}
	return all, nil
}

// history are the commits that id leads to, itself among them.
func (r *repository) history(id string) map[string]bool {
	seen := map[string]bool{}
	for left := []string{r.peel(id)}; len(left) > 0; {
		id, left = left[len(left)-1], left[:len(left)-1]
		if o, ok := r.objects[id]; ok && !seen[id] {
			seen[id] = true
			left = append(left, o.next...)
		}
	}
	return seen
}

// peel follows tags to what they are of.
func (r *repository) peel(id string) string {
	for range 20 {
		o, ok := r.objects[id]
		if !ok || !o.tag || len(o.next) == 0 {
			break
		}
		id = o.next[0]
	}
	return id
}

// loose reads the objects that are files of their own.
func (r *repository) loose() {
	for _, name := range r.names {
		m := looseName.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		data, err := r.read(name)
		if err == nil {
			err = r.looseObject(m[1]+m[2], data)
		}
		if err != nil {
			r.skip("%s: %v", name, err)
		}
	}
}

func (r *repository) looseObject(id string, data []byte) error {
	z, err := zlib.NewReader(bytes.NewReader(data))
	if err != nil {
		return err
	}
	defer z.Close()
	first := make([]byte, 8)
	if n, err := io.ReadFull(z, first); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	} else if !bytes.HasPrefix(first[:n], []byte("commit ")) && !bytes.HasPrefix(first[:n], []byte("tag ")) {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(z, commitLimit))
	if err != nil {
		return err
	}
	whole := append(first, body...)
	kind, _, _ := bytes.Cut(whole, []byte(" "))
	_, text, _ := bytes.Cut(whole, []byte{0})
	r.add(id, string(kind), text)
	return nil
}

// add notes a commit or a tag.
func (r *repository) add(id, kind string, text []byte) {
	o := object{tag: kind == "tag"}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			break // the message follows
		}
		word, value, _ := strings.Cut(line, " ")
		switch {
		case word == "parent" && !o.tag, word == "object" && o.tag:
			o.next = append(o.next, value)
		case word == "committer":
			if f := strings.Fields(value); len(f) >= 2 {
				o.time, _ = strconv.ParseInt(f[len(f)-2], 10, 64)
			}
		}
	}
	r.objects[id] = o
}
