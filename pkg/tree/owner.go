package tree

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"
)

// PathOwner is a path that does not belong to 0:0.
type PathOwner struct {
	Path  string `json:"path"` // relative to the root
	Owner Owner  `json:"owner"`
}

// Owned is one path of a tree and who owns it.
type Owned struct {
	Entry        // Path is relative to the root; "." is the root itself
	Owner        Owner
	Major, Minor uint32 // of char and block
}

// Walk goes through a tree as an image would have it, folders before what is
// in them, by name: with the owners that OwnerAttr and specials note, and the
// devices of specials. An error ends it.
//
// A special entry counts where it can be true only: a device where nothing is
// on disk (or a whiteout, in a layer), an owner where a link, FIFO or socket is.
func Walk(root string, specials []Special) iter.Seq2[Owned, error] {
	return func(yield func(Owned, error) bool) {
		r, err := openRoot(root)
		if err != nil {
			yield(Owned{}, err)
			return
		}
		defer r.Close()
		v, err := newView(r, nil, specials)
		if err != nil {
			yield(Owned{}, err)
			return
		}
		notes := map[string]Owner{}
		for _, s := range specials {
			notes[s.Path] = s.Owner
		}
		var visit func(p string) bool
		visit = func(p string) bool {
			o, err := v.owned(p, notes)
			if err != nil {
				yield(Owned{}, err)
				return false
			}
			if !yield(o, nil) {
				return false
			}
			if o.Type != "dir" {
				return true
			}
			names, err := v.names(p)
			if err != nil {
				yield(Owned{}, err)
				return false
			}
			for _, name := range names {
				if !visit(join(p, name)) {
					return false
				}
			}
			return true
		}
		visit(".")
	}
}

// owned describes one path.
func (v *view) owned(p string, notes map[string]Owner) (Owned, error) {
	e, err := v.entry(p)
	if err != nil {
		return Owned{}, err
	}
	o := Owned{Entry: e}
	switch e.Type {
	case "file", "dir":
		o.Owner, err = v.r.ownerAt(p)
	case "link", "fifo", "socket":
		o.Owner = notes[p]
	default:
		if s, ok := v.devices[p]; ok {
			o.Owner, o.Major, o.Minor = s.Owner, s.Major, s.Minor
			break
		}
		var st unix.Stat_t
		st, err = v.r.lstat(p)
		o.Major, o.Minor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
	}
	return o, err
}

// Owners lists every path of a tree that does not belong to 0:0, as Walk has
// them. A path that is too long to be opened from outside is an error
// (ENAMETOOLONG): whoever packs the tree could not.
func Owners(root string, specials []Special) ([]PathOwner, error) {
	var list []PathOwner
	for o, err := range Walk(root, specials) {
		if err != nil {
			return nil, err
		}
		if p := filepath.Join(root, o.Path); len(p) >= unix.PathMax {
			return nil, &fs.PathError{Op: "open", Path: "/" + o.Path, Err: unix.ENAMETOOLONG}
		}
		if o.Owner != (Owner{}) {
			list = append(list, PathOwner{o.Path, o.Owner})
		}
	}
	return list, nil
}

// SetOwner notes who owns the file or folder at path: OwnerAttr, or no
// attribute for 0:0. A link at the end is not followed; a link, FIFO, socket or
// device can carry no note and is an error.
func SetOwner(path string, o Owner) error {
	r, err := openRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer r.Close()
	name := filepath.Base(path)
	st, err := r.lstat(name)
	if err != nil {
		return err
	}
	if t := typeOf(st.Mode); t != "file" && t != "dir" {
		return fmt.Errorf("noting the owner of %s: a %s carries no note", path, t)
	}
	return r.setOwner(name, o)
}

// User is who runs a RUN step.
type User struct {
	UID    int
	GID    int
	Home   string // of the first line in /etc/passwd with that UID, as runc has it; "/" if there is none
	Groups []int  // supplementary, in the order of /etc/group; none where a group was named
}

// ResolveOwner reads the value of --chown, and of USER where WORKDIR makes a
// folder, with the user and group files of the root folder dst: "user",
// "user:group", numbers, or a mix. A number alone is its own group, a name
// alone brings its primary group. A name that is not there counts as 0, and ok
// is false: BuildKit says nothing of it. In a root folder that is empty it is
// an error, there as well.
func ResolveOwner(dst, spec string) (o Owner, ok bool, err error) {
	users, groups, err := accountFiles(dst)
	if err != nil {
		return Owner{}, false, err
	}
	name, group, _ := strings.Cut(spec, ":")
	for _, s := range []string{name, group} {
		if _, err := number(s); s == "" || err == nil {
			continue
		}
		if empty, err := isEmpty(dst); empty || err != nil {
			return Owner{}, false, cmp.Or(err, fmt.Errorf("%s: nothing is in the image yet that could say who %s is: use numbers", spec, s))
		}
	}
	ok = true
	if id, err := number(name); err == nil {
		o = Owner{id, id}
	} else if name != "" {
		found, err := user.ParsePasswdFilter(strings.NewReader(users), func(u user.User) bool { return u.Name == name })
		if err != nil {
			return Owner{}, false, fmt.Errorf("reading /etc/passwd of the image: %w", err)
		}
		if ok = len(found) > 0; ok {
			o = Owner{found[0].Uid, found[0].Gid}
		}
	}
	if group == "" {
		return o, ok, nil
	}
	if id, err := number(group); err == nil {
		o.GID = id
		return o, ok, nil
	}
	found, err := user.ParseGroupFilter(strings.NewReader(groups), func(g user.Group) bool { return g.Name == group })
	if err != nil {
		return Owner{}, false, fmt.Errorf("reading /etc/group of the image: %w", err)
	}
	if len(found) == 0 {
		return o, false, nil
	}
	o.GID = found[0].Gid
	return o, ok, nil
}

// isEmpty reports whether there is nothing in the root folder: FROM scratch, and
// no step since.
func isEmpty(dst string) (bool, error) {
	r, err := openRoot(dst)
	if err != nil {
		return false, err
	}
	defer r.Close()
	names, err := r.names(".")
	return len(names) == 0, err
}

// number reads an id as BuildKit does, for which root is a number.
func number(s string) (int, error) {
	if s == "root" {
		return 0, nil
	}
	id, err := strconv.ParseUint(s, 10, 31)
	return int(id), err
}

// ResolveUser reads the value of USER with the user and group files of the root
// folder dst: "" (root), name, number, name:group, :group. An unknown name is
// an error, an unknown number is not.
func ResolveUser(dst, spec string) (User, error) {
	users, groups, err := accountFiles(dst)
	if err != nil {
		return User{}, err
	}
	u := User{Home: "/"}
	if uid, gid, ok := bothNumbers(spec); ok {
		u.UID, u.GID = uid, gid
	} else {
		asked := spec
		if asked == "" {
			asked = "0"
		}
		found, err := user.GetExecUser(asked, nil, strings.NewReader(users), strings.NewReader(groups))
		if err != nil {
			return User{}, fmt.Errorf("USER %s: %w", spec, err)
		}
		u.UID, u.GID = found.Uid, found.Gid
		if len(found.Sgids) > 0 {
			u.Groups = found.Sgids
		}
	}
	same, err := user.ParsePasswdFilter(strings.NewReader(users), func(l user.User) bool { return l.Uid == u.UID })
	if err != nil {
		return User{}, fmt.Errorf("reading /etc/passwd of the image: %w", err)
	}
	if len(same) > 0 {
		u.Home = same[0].Home
	}
	return u, nil
}

// bothNumbers reads "UID:GID", which needs no file and brings no groups.
func bothNumbers(spec string) (uid, gid int, ok bool) {
	a, b, both := strings.Cut(spec, ":")
	uid, err1 := number(a)
	gid, err2 := number(b)
	return uid, gid, both && err1 == nil && err2 == nil
}

// accountFiles reads /etc/passwd and /etc/group of a root folder, links
// followed inside it; a file that is not there is empty.
func accountFiles(dst string) (users, groups string, err error) {
	r, err := openRoot(dst)
	if err != nil {
		return "", "", err
	}
	defer r.Close()
	if users, err = accountFile(r, "etc/passwd"); err == nil {
		groups, err = accountFile(r, "etc/group")
	}
	return users, groups, err
}

// accountsMax is how large BuildKit lets such a file be.
const accountsMax = 10 << 20

func accountFile(r *rooted, p string) (string, error) {
	at, format, err := resolve(r.look, p, true)
	if errors.Is(err, unix.ENOTDIR) || err == nil && format == 0 {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	f, err := r.openFile(at)
	if err != nil {
		return "", fmt.Errorf("reading /%s of the image: %w", p, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, accountsMax+1))
	if err != nil {
		return "", fmt.Errorf("reading /%s of the image: %w", p, err)
	}
	if len(text) > accountsMax {
		return "", fmt.Errorf("/%s of the image is larger than %d bytes", p, accountsMax)
	}
	return string(text), nil
}

func join(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}
