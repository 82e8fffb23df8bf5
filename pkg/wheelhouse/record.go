// Package wheelhouse makes a folder of wheels from which pip and uv install
// without a network. The node's pip fetches, and only wheels, so that nothing
// of a package is run; what came is looked at here before it has its name in
// the folder.
//
// The folder:
//
//	wheels/           the wheels, for PIP_FIND_LINKS and UV_FIND_LINKS
//	simple/           the same as an index (PEP 503), with relative links
//	requirements.lock every project once, with hashes, for pip --require-hashes
//	locks/            the same for each set of requirements (ID.lock) and for
//	                  further Pythons (python3.N.lock)
//	wheelhouse.json   the record of the last run, which the next one begins from
//	bin/ python/ grader.env   what graders need, if asked for
//
// Files appear whole or not at all. Names that begin with a dot are half done.
package wheelhouse

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fence/pkg/internal/atomicfile"
	"fence/pkg/internal/readfile"
	"fence/pkg/wheel"
)

// Schema names the record.
const Schema = "sifbuild.wheelhouse/v1"

// Record is what a wheelhouse has, and what it lacks.
type Record struct {
	Schema  string         `json:"schema"`
	Dir     string         `json:"dir"`
	Target  Target         `json:"target"`
	Wheels  []Wheel        `json:"wheels"`
	Bytes   int64          `json:"bytes"`   // of all wheels
	Fetched int            `json:"fetched"` // wheels that came in this run
	Sets    []Set          `json:"sets"`
	Faults  []Fault        `json:"faults"`
	Unread  []wheel.Unread `json:"unread"` // what asks for packages and is not understood
	Notes   []string       `json:"notes"`
	Grader  *Grader        `json:"grader,omitempty"`
}

// OK says that everything that was asked for is there.
func (r *Record) OK() bool { return len(r.Faults) == 0 && len(r.Unread) == 0 }

// Target is wheel.Target as it is written down.
type Target struct {
	Arch   string `json:"arch"`
	Python string `json:"python"` // of sets that ask for no other
	Libc   string `json:"libc"`
}

// Wheel is one that is there.
type Wheel struct {
	File           string `json:"file"`
	Project        string `json:"project"`
	Version        string `json:"version"`
	Bytes          int64  `json:"bytes"`
	SHA256         string `json:"sha256"`
	RequiresPython string `json:"requires_python,omitempty"`
	Source         string `json:"source,omitempty"` // the addresses that a task named, with a space between; "" is what the node's pip is configured with
}

// Set is what is installed together.
type Set struct {
	ID           string   `json:"id"`
	Requirements []string `json:"requirements"`
	Python       string   `json:"python"`
	NoDeps       bool     `json:"no_deps"`
	From         []string `json:"from"`
	Files        []string `json:"files"`
	Complete     bool     `json:"complete"`
}

// Fault is something that was asked for and is not there, or must not be used.
type Fault struct {
	Class string   `json:"class"`
	What  string   `json:"what"` // a requirement, or the name of a file
	Text  string   `json:"text"`
	From  []string `json:"from"`
}

// Classes of faults, beside those of a wheel.
const (
	SdistOnly   = "sdist-only"  // there is source, and no wheel for the target
	NoVersion   = "no-version"  // wheels for the target, of other versions only
	NoPackage   = "no-package"  // nothing at all for the target
	Conflict    = "conflict"    // the requirements of a set exclude each other
	Dependency  = "dependency"  // a wheel that is there requires what is not
	Fetch       = "fetch"       // pip could not get it, and says why
	Offline     = "offline"     // it would have to be fetched
	Interpreter = "interpreter" // a Python for graders
)

// ErrTarget says that the folder is for another target.
var ErrTarget = errors.New("another target")

// ErrForeign says that the folder is one of something else.
var ErrForeign = errors.New("a folder of something else")

const recordName = "wheelhouse.json"

// own are the names in a wheelhouse, beside its record and what begins with a dot.
var own = []string{wheelsName, "rejected", "simple", "locks", "requirements.lock", "bin", "python", "grader.env"}

// foreign is an error for a folder that has no record, and files that no wheelhouse
// has: some of its own would be replaced and removed.
func foreign(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the wheelhouse: %w", err)
	}
	var other string
	for _, e := range entries {
		switch name := e.Name(); {
		case name == recordName:
			return nil // which load reads
		case slices.Contains(own, name), name == cacheName, strings.HasPrefix(name, lockName), strings.HasPrefix(name, stageName):
		default:
			other = name
		}
	}
	if other != "" {
		return fmt.Errorf("%w: %s has %q and no %s", ErrForeign, dir, other, recordName)
	}
	return nil
}

// load reads what an earlier run has left; nothing is no error.
func load(dir string, t Target) (*Record, error) {
	data, err := readfile.Regular(filepath.Join(dir, recordName), 256<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return &Record{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the wheelhouse: %w", err)
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil || r.Schema != Schema {
		return nil, fmt.Errorf("reading the wheelhouse: %s is no record of a wheelhouse: move it away, and the wheels are looked at anew", filepath.Join(dir, recordName))
	}
	if r.Target.Arch != t.Arch || r.Target.Libc != t.Libc {
		return nil, fmt.Errorf("%w: %s has wheels for %s with %s, not for %s with %s", ErrTarget, dir, r.Target.Arch, r.Target.Libc, t.Arch, t.Libc)
	}
	return &r, nil
}

func (r *Record) save() error {
	return put(filepath.Join(r.Dir, recordName), func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", " ")
		return e.Encode(r)
	})
}

// put writes a file, and the folder that it is in.
func put(name string, fill func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	return atomicfile.Write(name, fill)
}

func (r *Record) wheel(file string) *Wheel {
	i := slices.IndexFunc(r.Wheels, func(w Wheel) bool { return w.File == file })
	if i < 0 {
		return nil
	}
	return &r.Wheels[i]
}
