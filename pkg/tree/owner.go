package tree

import "errors"

// PathOwner is a path that does not belong to 0:0.
type PathOwner struct {
	Path  string `json:"path"` // relative to the root
	Owner Owner  `json:"owner"`
}

// User is who runs a RUN step, or owns what WORKDIR makes.
type User struct {
	UID    int
	GID    int
	Home   string // from /etc/passwd; "/" for a number that is not in it
	Groups []int  // supplementary; only where no group was named
}

// SetOwner notes who owns the file or folder at path: OwnerAttr, or no
// attribute for 0:0. A link at the end is not followed; a link, FIFO, socket or
// device can carry no note and is an error.
func SetOwner(path string, o Owner) error { return errors.ErrUnsupported }

// ResolveOwner reads the value of --chown with the user and group files of the
// root folder dst: "user", "user:group", numbers, or a mix. A number alone is
// its own group, a name alone brings its primary group. A name that is not
// there counts as 0, and ok is false: BuildKit goes on silently.
func ResolveOwner(dst, spec string) (o Owner, ok bool, err error) {
	return Owner{}, false, errors.ErrUnsupported
}

// ResolveUser reads the value of USER with the user and group files of the root
// folder dst: "", name, number, name:group, :group. An unknown name is an
// error, an unknown number is not.
func ResolveUser(dst, spec string) (User, error) { return User{}, errors.ErrUnsupported }

// Owners lists every path of a tree that does not belong to 0:0, sorted: what
// OwnerAttr notes and what specials say of what is there.
func Owners(root string, specials []Special) ([]PathOwner, error) {
	return nil, errors.ErrUnsupported
}
