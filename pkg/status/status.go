// Package status says what a fence is, for people (Explain) and for programs
// (Status). It decides nothing: what it tells is in the sandbox.Ruleset.
package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"fence/pkg/policy"
	"fence/pkg/sandbox"
	"fence/pkg/seccomp"
)

// StatusSchema names the record that --status-fd gets.
const StatusSchema = "fence.status/v1"

// Status is one line that says what is in force, written when all of it is
// and the command has not started. It names things and holds no values.
type Status struct {
	Schema   string   `json:"schema"`
	Policy   string   `json:"policy"`
	Digest   string   `json:"policy_sha256"`  // of the resolved policy
	Form     string   `json:"form"`           // "bare" or "namespace"
	User     string   `json:"user,omitempty"` // who it is inside, UID or UID:GID, where that was asked for
	Network  string   `json:"network"`
	Landlock Landlock `json:"landlock"`
	Seccomp  Filter   `json:"seccomp"`

	Namespaces []string           `json:"namespaces"` // own or private: user, mount, ipc, net, pid
	Hidden     []sandbox.Hidden   `json:"hidden"`
	DroppedEnv []string           `json:"dropped_env"` // names that look like credentials
	Opened     []policy.Loosening `json:"opened"`      // everything loosened, with the reason
	Lost       []string           `json:"lost"`        // what this form or kernel cannot do
	Workdir    string             `json:"workdir"`
}

// Landlock is the layer in force; the masks are those of landlock(7).
type Landlock struct {
	ABI    int    `json:"abi"`
	FS     uint64 `json:"fs"`
	Net    uint64 `json:"net"`
	Scoped uint64 `json:"scoped"`
	Rules  int    `json:"rules"`
}

// Filter is the seccomp program in force.
type Filter struct {
	Digest  string   `json:"sha256"`
	Allowed []string `json:"allowed"` // system calls that the policy opened
}

// Of describes rs. It looks at the node once more, so it is asked for
// before Enforce.
func Of(rs sandbox.Ruleset) (Status, error) {
	prog, err := seccomp.Program(rs.Filter)
	if err != nil {
		return Status{}, err
	}
	opened := rs.Policy.Whys()
	for _, d := range rs.Node.Stdio {
		if d.KeptByRequest {
			opened = append(opened, policy.Loosening{What: fmt.Sprintf("descriptor %d (%s)", d.FD, d.Path), Why: rs.Node.KeepWhy, From: "--keep-fd"})
		}
	}
	return Status{
		Schema: StatusSchema, Policy: rs.Policy.Name, Digest: rs.Policy.Digest(), Form: rs.Form.String(),
		Network:  rs.Policy.Network.Mode.String(),
		Landlock: Landlock{rs.Node.Landlock.ABI, rs.Handled.FS, rs.Handled.Net, rs.Handled.Scoped, len(rs.Paths)},
		Seccomp:  Filter{seccomp.Digest(prog), list(rs.Filter.Allow)},

		Namespaces: names(rs.Node.Namespaces), Hidden: list(hidden(rs)), DroppedEnv: list(rs.Dropped),
		Opened: list(opened), Lost: list(slices.Concat(rs.Lost, Moved(rs))), Workdir: rs.Workdir,
	}, nil
}

// hidden is rs.Hidden with the paths that somebody named and that are not here:
// one of them may be mistyped.
func hidden(rs sandbox.Ruleset) []sandbox.Hidden {
	all := slices.Clone(rs.Hidden)
	for _, h := range rs.Policy.Filesystem.Hide {
		if !strings.HasPrefix(h, "@") && !rs.Node.Stat(h).Exists {
			all = append(all, sandbox.Hidden{Path: h, How: "absent"})
		}
	}
	return all
}

// Moved says that the command does not start where the fence was started, and
// nobody asked for that.
func Moved(rs sandbox.Ruleset) []string {
	if rs.Workdir == rs.Node.Workdir {
		return nil
	}
	return []string{"the working folder is " + rs.Workdir + ": " + cmp.Or(rs.Node.Workdir, "the caller's") + " is out of the command's reach"}
}

// list is never null in JSON.
func list[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func names(ns sandbox.Namespaces) []string {
	out := []string{}
	for _, n := range []struct {
		name string
		on   bool
	}{{"user", ns.User == nil}, {"mount", ns.Mount == nil}, {"ipc", ns.PrivateIPC}, {"net", ns.Net == nil}, {"pid", ns.PrivatePID}} {
		if n.on {
			out = append(out, n.name)
		}
	}
	return out
}
