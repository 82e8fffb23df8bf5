// Package tree reads and writes root filesystems as an ordinary user: what COPY
// and ADD do, layers as tar files, and who owns what. Since everything on disk
// belongs to one person, an owner other than 0:0 is noted beside the file: as
// the extended attribute user.sifbuild.owner of files and folders, in a list
// for what can carry none. Nothing here leaves the root folder it was given,
// whatever links, names and devices it meets.
//
// It runs in a user namespace in which the caller is user 0: folders of any
// mode can be entered, and whiteouts of overlayfs can be made.
package tree

// OwnerAttr is the extended attribute that notes an owner, as "UID:GID".
const OwnerAttr = "user.sifbuild.owner"

// Owner is who would own a path, were there more than one user.
type Owner struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// Special is what a folder on disk cannot hold by itself: the owner of a link,
// FIFO or socket, or a device node.
type Special struct {
	Path  string `json:"path"` // relative to the root, without leading slash
	Owner Owner  `json:"owner"`
	// Device is "", "c" or "b"; a device is nowhere but in this list.
	Device string `json:"device,omitempty"`
	Mode   uint32 `json:"mode,omitempty"`
	Major  uint32 `json:"major,omitempty"`
	Minor  uint32 `json:"minor,omitempty"`
}

// Entry is one path of a tree: what there is to copy, by content.
type Entry struct {
	Path   string `json:"path"`             // see who holds it
	Type   string `json:"type"`             // file, dir, link, fifo, char, block, socket
	Mode   uint32 `json:"mode"`             // permission bits with setuid, setgid and sticky as in stat(2)
	Size   int64  `json:"size,omitempty"`   // bytes, of a file
	SHA256 string `json:"sha256,omitempty"` // hex, of a file, if asked for
	Link   string `json:"link,omitempty"`   // where a link leads, as written
	// Way says that a folder is here only because of what is below it: --exclude or --parents
	// passed it over. It changes less of a folder that is there already.
	Way bool `json:"way,omitempty"`
}

// Selection says what COPY or ADD take from a folder.
type Selection struct {
	// Sources are paths relative to the root, and patterns as of path/filepath.Match; a leading
	// slash and "." are nothing, ".." stops at the root. With Parents a source is as written:
	// cleaning it would lose the pivot point /./.
	Sources []string
	Parents bool      // keep the folders above, with the pivot point /./
	Exclude []string  // --exclude, matched against paths below a source; never hides a source itself
	Ignore  []string  // of .dockerignore, for a context folder
	Hash    bool      // fill in SHA256
	Devices []Special // of the tree: those with a Device can be selected, too
}

// Match is one path that a source names. With Parents it is the folder that the
// pattern begins at (the root, or what precedes the pivot point), and Below is
// what of it the pattern takes.
type Match struct {
	Source string  `json:"source"`          // the source that names it
	Path   string  `json:"path"`            // where it is, relative to the root, links followed; "." is the root
	Name   string  `json:"name"`            // what it is called in a destination folder, unless it is a folder itself
	Entry  Entry   `json:"entry"`           // what is at Path; never a link
	Below  []Entry `json:"below,omitempty"` // the contents of a folder, each folder before what is in it, sorted by name, paths relative to it; links are links
}
