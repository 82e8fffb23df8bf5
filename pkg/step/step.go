// Package step does one step of an image build in namespaces of its own: a RUN
// command, a COPY, or what goes with them (unpacking a layer, packing the
// image). It begins as the caller's own binary, started again: Main takes over
// where the process was started by Do.
//
// What a step sees is an overlay of folders (overlayfs(5), mounted in a user
// namespace with "userxattr"): those below are never changed, what the step
// changes is in the one on top. A RUN command comes under fence, with nothing of
// the node in its root folder but devices, /sys, the network, and what this
// package binds there for as long as it runs. All of a step dies with it, and
// with the process that called Do.
package step

import (
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/tree"
)

// Spec is one step. Lower folders and the rest are paths on this node.
type Spec struct {
	Lower []string `json:"lower,omitempty"` // layer folders, highest first
	Upper string   `json:"upper,omitempty"` // the folder for what changes; "" mounts read-only
	Like  string   `json:"like,omitempty"`  // whose mode and owner the top of Upper gets; "": of the highest Lower
	Dir   string   `json:"dir"`             // an empty folder of the caller's own, on the filesystem of Upper

	// Idle is how long the step may print nothing, before Do ends it with
	// ErrIdle; 0: for ever.
	Idle time.Duration `json:"-"`

	// One of these is set.
	Run     *Run     `json:"run,omitempty"`
	Copy    *Copy    `json:"copy,omitempty"`
	Workdir *Workdir `json:"workdir,omitempty"`
	Squash  *Squash  `json:"squash,omitempty"`
	Unpack  *Unpack  `json:"unpack,omitempty"`
	Tar     *Tar     `json:"tar,omitempty"`
	Merge   *Merge   `json:"merge,omitempty"`
	Look    *Look    `json:"look,omitempty"`
}

// Run is a command in the root folder.
type Run struct {
	Argv     []string       `json:"argv"`
	Env      []string       `json:"env"`
	Cwd      string         `json:"cwd"`
	User     string         `json:"user,omitempty"`    // as written in USER
	Network  string         `json:"network,omitempty"` // "none": only a loopback of its own
	Mounts   []Mount        `json:"mounts,omitempty"`
	Files    []File         `json:"files,omitempty"`    // scripts, below /dev/pipes
	Fence    string         `json:"fence"`              // the fence binary
	Self     string         `json:"self"`               // this binary; Do knows it
	Specials []tree.Special `json:"specials,omitempty"` // of the layers below
	Config   []File         `json:"config,omitempty"`
}

// File is a file that is there while a command runs.
type File struct {
	Path string `json:"path"` // absolute
	Data []byte `json:"data"`
	Mode uint32 `json:"mode"`
	Make bool   `json:"make,omitempty"` // also where there is no folder for it
}

// Mount is something that the command sees at Target: one of Tmpfs, Data,
// Matches and Source.
type Mount struct {
	Target string `json:"target"` // absolute; "" if Env is all there is
	Tmpfs  bool   `json:"tmpfs,omitempty"`
	Size   int64  `json:"size,omitempty"` // bytes, of a tmpfs; 0 is the kernel's half of memory

	IsData bool       `json:"is_data,omitempty"`
	Data   []byte     `json:"data,omitempty"` // a file's content, of a secret
	Mode   uint32     `json:"mode,omitempty"`
	Owner  tree.Owner `json:"owner"`         // of Data
	Env    string     `json:"env,omitempty"` // a variable that holds Data

	Matches []tree.Match `json:"matches,omitempty"` // files of the folder Source, to be copied
	Source  string       `json:"source,omitempty"`  // a folder of this node, or a path in the view of Lower
	Lower   []string     `json:"lower,omitempty"`   // layers, highest first
	// Specials are of Lower.
	Specials []tree.Special `json:"specials,omitempty"`

	ReadOnly bool   `json:"read_only,omitempty"`
	Changes  string `json:"changes,omitempty"` // folder for what is written over Source; "": it is not kept
}

// Copy is a COPY or ADD step; the request's Src is a path on this node, or
// inside the view of From.
type Copy struct {
	Request tree.CopyRequest `json:"request"`
	From    []string         `json:"from,omitempty"`   // layers that Src lies in, highest first
	Select  *tree.Selection  `json:"select,omitempty"` // to be resolved there
	Chown   string           `json:"chown,omitempty"`
}

// Workdir makes a folder.
type Workdir struct {
	Path string `json:"path"`
	User string `json:"user,omitempty"`
}

// Unpack makes a layer folder from the streams of Do, the lowest first.
type Unpack struct {
	Streams int    `json:"streams"`
	Out     string `json:"out"`
	Apply   bool   `json:"apply,omitempty"` // whiteouts remove instead of hide: Out is a whole root
	// Below is what Out will lie on, lowest first: whiteouts hide what is there.
	Below []string `json:"below,omitempty"`
}

// Tar makes a tar of a layer folder.
type Tar struct {
	Layer    string         `json:"layer"`
	Specials []tree.Special `json:"specials,omitempty"`
	Out      string         `json:"out"`
}

// Merge makes one layer folder of several.
type Merge struct {
	Below  []string `json:"below"`  // what Out will lie on, lowest first
	Layers []string `json:"layers"` // lowest first
	Out    string   `json:"out"`
}

// Look answers questions about the view.
type Look struct {
	Commands []string `json:"commands"` // by name, to be found in Path
	Path     string   `json:"path"`
}

// Result is what a step says when it has ended.
type Result struct {
	Exit     int              `json:"exit"`            // of a command: its status, 128+N of a signal
	Error    string           `json:"error,omitempty"` // why the step itself failed
	Kind     string           `json:"kind,omitempty"`  // what failed: setup, copy, user, isolation
	Specials []tree.Special   `json:"specials,omitempty"`
	Warnings []string         `json:"warnings,omitempty"`
	Missing  []string         `json:"missing,omitempty"` // of Look
	Owners   []tree.PathOwner `json:"owners,omitempty"`  // of Squash
}

// Squash packs the view into a squashfs for Apptainer.
type Squash struct {
	Config   v1.Config         `json:"config"`
	Labels   map[string]string `json:"labels,omitempty"`
	Specials []tree.Special    `json:"specials,omitempty"`
	Out      string            `json:"out"`
	CPUs     int               `json:"cpus"`
	MemMiB   int               `json:"mem_mib"`
}
