// Package dockerfile reads a Dockerfile and says what building it means: which
// stages are needed, what each step runs or copies with which environment, and
// the configuration that the image ends up with. It runs nothing and changes
// nothing. The meaning is BuildKit's; docs/sifbuild.md lists what differs.
package dockerfile

import (
	"context"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/tree"
)

// Options are what a Dockerfile is read with; the zero value has no context
// folder, no build argument and no base image but scratch.
type Options struct {
	File     string            // the Dockerfile, opened by this name; errors begin with it
	Context  string            // the context folder; "" if there is none
	Contexts map[string]string // more folders by name, for COPY --from=NAME and FROM NAME
	Args     map[string]string // --build-arg
	Target   string            // name of the stage to build, in any case; "" is the last
	Platform v1.Platform       // of the image; its OS is always linux
	Build    v1.Platform       // of this node, for BUILDPLATFORM
	// Base finds an image by the name that the Dockerfile uses; its errors have that name.
	Base func(ctx context.Context, name string, platform v1.Platform) (Base, error)
}

// Base is an image that a stage begins with, or that COPY --from takes from.
type Base struct {
	Name     string      // as in the Dockerfile, after expansion
	Digest   string      // identifies the content: manifest digest, or the digest of a local tree
	Config   v1.Config   // empty for a root folder that has none
	Platform v1.Platform // as its configuration says; the zero Platform if it does not
	Warnings []string    // what a person who begins with it may want to know
}

// Plan is a Dockerfile, resolved.
type Plan struct {
	File     string    // the Dockerfile, as errors name it
	Stages   []Stage   // those that are needed, each after those that it needs; the last is the target
	Warnings []Warning // what docker build would accept and a person may want to know
	Inputs   []string  // every file of the context that counts, for watching; sorted, relative
}

// Warning is something that works and may not be meant.
type Warning struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Text string `json:"text"`
}

// Stage is one FROM and what follows it.
type Stage struct {
	Index    int // in the Dockerfile, from 0
	Name     string
	Line     int
	Platform v1.Platform // what its programs are for: RUN works if this node can run them
	From     From
	Matches  []tree.Match // the contents of From.Context, one Match
	Steps    []Step
	Config   v1.Config // of the image, after the last step
	Author   string
	// StartInterval belongs to Config.Healthcheck, which has no place for it.
	StartInterval time.Duration
}

// From is what a stage begins with or a copy takes from: exactly one of
// Scratch, Context, Stage and Base is set.
type From struct {
	Scratch bool     `json:"scratch,omitempty"` // an empty root folder
	Context string   `json:"context,omitempty"` // a folder of this machine (absolute)
	Ignore  []string `json:"ignore,omitempty"`  // patterns of .dockerignore: what of Context is not there
	Stage   *int     `json:"stage,omitempty"`   // Stage.Index of an earlier stage of the plan
	Base    *Base    `json:"base,omitempty"`
}

// Step is one instruction that changes files: exactly one of Run, Copy and
// Workdir is set. Everything in it is final: no variable is left to expand.
type Step struct {
	Line    int      `json:"line"`
	Text    string   `json:"text"` // the instruction as written, for people: one line, shortened
	Run     *Run     `json:"run,omitempty"`
	Copy    *Copy    `json:"copy,omitempty"`
	Workdir *Workdir `json:"workdir,omitempty"`
}

// Run is a RUN step.
type Run struct {
	Argv    []string `json:"argv"`            // the shell included
	Files   []Inline `json:"files,omitempty"` // scripts of heredocs (/dev/pipes/NAME), there while it runs
	Env     []string `json:"env"`             // KEY=VALUE: ENV and ARG, with PATH; HOME only if the Dockerfile sets it
	Proxy   []string `json:"proxy,omitempty"` // KEY=VALUE after Env: proxies given as build arguments, which do not tell steps apart
	Cwd     string   `json:"cwd"`             // absolute
	User    string   `json:"user,omitempty"`  // as written: name, uid, name:group, :group
	Network string   `json:"network"`         // "default", "none" or "host"
	Mounts  []Mount  `json:"mounts,omitempty"`
}

// Inline is a file whose bytes are in the Dockerfile.
type Inline struct {
	Path string `json:"path"` // for a copy: the name that follows a destination folder
	Data []byte `json:"data"`
	Mode uint32 `json:"mode"` // permission bits
}

// Mount is one --mount of a RUN step.
type Mount struct {
	Type     string       `json:"type"`              // bind, cache, tmpfs, secret or ssh
	Target   string       `json:"target,omitempty"`  // absolute and cleaned; "" for a secret that is a variable only
	From     *From        `json:"from,omitempty"`    // of a bind; of a cache, what it begins with, if anything
	Source   string       `json:"source,omitempty"`  // inside From, cleaned, without leading slash; "" is all of it
	Matches  []tree.Match `json:"matches,omitempty"` // what Source names, where From is a folder of this machine
	ReadOnly bool         `json:"read_only,omitempty"`
	ID       string       `json:"id,omitempty"`      // of a cache, secret or ssh: never ""
	Sharing  string       `json:"sharing,omitempty"` // of a cache: shared, private or locked
	Mode     *uint32      `json:"mode,omitempty"`    // nil: 0755 for a cache, 0400 for a secret, 0600 for ssh
	UID      int          `json:"uid,omitempty"`
	GID      int          `json:"gid,omitempty"`
	Size     int64        `json:"size,omitempty"`     // bytes, of a tmpfs; 0 is no limit
	Required bool         `json:"required,omitempty"` // of a secret or ssh: without it the step fails
	Env      string       `json:"env,omitempty"`      // variable that a secret is put into
}

// Copy is a COPY or ADD step.
type Copy struct {
	Add     bool     `json:"add,omitempty"`
	From    From     `json:"from"`              // zero without Sources
	Sources []string `json:"sources,omitempty"` // paths and patterns inside From, cleaned, without leading slash; "." is all of it; see tree.Selection
	// Matches are what the sources name, by content, where From is a folder of this machine; what
	// the sources of a stage or an image name is known when that exists.
	Matches  []tree.Match `json:"matches,omitempty"`
	Inline   []Inline     `json:"inline,omitempty"` // heredocs
	URLs     []URL        `json:"urls,omitempty"`   // ADD only
	Dest     string       `json:"dest"`             // absolute; a slash at the end means a folder
	Chown    string       `json:"chown,omitempty"`  // USER[:GROUP], names or numbers
	Chmod    string       `json:"chmod,omitempty"`  // octal, or symbolic as chmod(1)
	Parents  bool         `json:"parents,omitempty"`
	Link     bool         `json:"link,omitempty"` // onto an empty folder, which is then laid over what is there
	Exclude  []string     `json:"exclude,omitempty"`
	Unpack   *bool        `json:"unpack,omitempty"`   // ADD only: nil is the default, true for files and false for URLs
	Checksum string       `json:"checksum,omitempty"` // ALGORITHM:HEX of the one URL
}

// URL is a source of ADD that is fetched.
type URL struct {
	URL  string `json:"url"`
	Name string `json:"name"` // the file's, where the destination is a folder
}

// Workdir is a WORKDIR step: the folder is made if it is not there.
type Workdir struct {
	Path string `json:"path"` // absolute
	User string `json:"user,omitempty"`
}
