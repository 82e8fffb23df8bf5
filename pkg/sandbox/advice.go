package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"fence/pkg/policy"
)

func andSo(more []string) string {
	if len(more) == 0 {
		return ""
	}
	return "; the same goes for " + strings.Join(more, ", ")
}

// without is how to start the container so that there is nothing to hide: one
// line that can be typed as it is, whatever was typed before. -C gives it a
// /tmp of its own, and an empty home, which is a mount too.
func (r *resolver) without() string {
	n := r.rs.Node
	if n.Container == "" {
		if errors.Is(n.Namespaces.User, ErrNotTried) || n.Namespaces.User == nil {
			return `run the command in a container that does not mount it: eval "$(fence env)"; apptainer exec IMAGE /.fence/fence -- COMMAND`
		}
		return "run it on a node that allows user namespaces (fence check), or in a container that does not mount it, which Apptainer can start here only if it is installed set-user-ID"
	}
	var site, own, image []string
	for _, h := range r.rs.Hidden {
		mount := "/"
		for _, m := range n.Mounts {
			if within(h.Path, m.Path) && len(m.Path) > len(mount) {
				mount = m.Path
			}
		}
		switch {
		case slices.Contains(tmpDirs, mount), h.Set == policy.SetHome, mount == n.Home, mount == env(n.Env, "HOME"), slices.Contains(slices.Concat(site, own), mount):
		case mount == "/":
			image = append(image, h.Path)
		case n.boundByUser(mount):
			own = append(own, mount)
		default:
			site = append(site, mount)
		}
	}
	var do []string
	if len(own)+len(image) < len(r.rs.Hidden) || len(r.rs.Hidden) == 0 {
		do = append(do, fmt.Sprintf(`start the container without it: apptainer exec -C --no-mount %s (eval "$(fence env)" does it for the whole job)`,
			strings.Join(append(site, "home", "cwd"), ",")))
	}
	for _, p := range own {
		do = append(do, "leave out the --bind of "+p+", or open it with a reason: --read "+p+` --why "..."`)
	}
	if len(image) > 0 {
		do = append(do, "of the image itself, where only a user namespace can cover it: "+strings.Join(image, ", "))
	}
	return strings.Join(do, "\n")
}

// boundByUser reports whether a --bind of the person's own made a mount, which
// --no-mount does not undo: Apptainer lists them as SOURCE[:TARGET[:OPTIONS]].
func (n Node) boundByUser(mount string) bool {
	for bind := range strings.SplitSeq(env(n.Env, "APPTAINER_BIND"), ",") {
		if f := strings.Split(bind, ":"); f[min(1, len(f)-1)] == mount {
			return true
		}
	}
	return false
}
