package build

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"fence/pkg/dockerfile"
	"fence/pkg/step"
	"fence/pkg/tree"
)

// aptConfig is there while a command runs. In a namespace of one user apt
// cannot become _apt; a mirror that stalls must not stall a build for ever.
var aptConfig = []step.File{{
	Path: "/etc/apt/apt.conf.d/zz-sifbuild",
	Mode: 0o644,
	Data: []byte(`APT::Sandbox::User "root";
Acquire::Retries "3";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
`),
}}

// installers are package managers, and how each installs packages as one
// step of sh.
var installers = []struct{ command, script string }{
	{"apt-get", "export DEBIAN_FRONTEND=noninteractive; apt-get update && apt-get install -y --no-install-recommends %s && rm -rf /var/lib/apt/lists/*"},
	{"apk", "apk add --no-cache %s"},
	{"dnf", "dnf install -y --setopt=install_weak_deps=False %s && dnf clean all"},
	{"microdnf", "microdnf install -y %s && microdnf clean all"},
	{"zypper", "zypper --non-interactive install --no-recommends %s && zypper clean -a"},
	{"pacman", "pacman -Sy --noconfirm %s"},
}

// require makes sure that the image has the commands that it must have, by
// one more step if it does not. A step that does not get there is an error.
func (o *one) require(ctx context.Context, c chain, st *dockerfile.Stage) (chain, error) {
	if len(o.o.Require) == 0 {
		return c, nil
	}
	missing, err := o.missing(ctx, c, st, o.o.Require)
	if err != nil || len(missing) == 0 {
		return c, err
	}
	var names []string
	for _, i := range installers {
		names = append(names, i.command)
	}
	absent, err := o.missing(ctx, c, st, names)
	if err != nil {
		return c, err
	}
	list := strings.Join(missing, " ")
	for _, i := range installers {
		if slices.Contains(absent, i.command) {
			continue
		}
		o.say("installing " + list)
		text := fmt.Sprintf("--require %s (%s)", strings.Join(missing, ","), i.command)
		o.note("== %s\n", text)
		s := dockerfile.Step{Text: text, Run: &dockerfile.Run{
			Argv: []string{"/bin/sh", "-c", fmt.Sprintf(i.script, list)}, Env: st.Config.Env, Cwd: "/", Network: "default",
		}}
		key := digest("require", c[len(c)-1].key, s.Run)
		la, _, err := o.layers.get(ctx, key, c, true, func(dir string) ([]tree.Special, error) { return o.step(ctx, c, s, dir) })
		o.report.rest = o.layers.rests(key)
		var status *StatusError
		if errors.As(err, &status) {
			return c, &RequireError{Missing: missing, Why: fmt.Sprintf("%s could not install %s (exit status %d)", i.command, list, status.Status), Status: status}
		} else if err != nil {
			return c, fmt.Errorf("%s: %w", text, err)
		}
		c = append(c[:len(c):len(c)], la)
		o.report.Installed = missing
		missing, err = o.missing(ctx, c, st, o.o.Require)
		if err == nil && len(missing) > 0 {
			err = &RequireError{Missing: missing, Why: fmt.Sprintf("the packages that %s installed do not have it", i.command)}
		}
		return c, err
	}
	return c, &RequireError{Missing: missing, Why: "no package manager that is known here is in it (" + strings.Join(names, ", ") + ")"}
}

// RequireError is an image that lacks what was required.
type RequireError struct {
	Missing []string
	Why     string
	Status  *StatusError // of the package manager; nil if it came to none
}

func (e *RequireError) Error() string {
	return fmt.Sprintf("the image has no %s, and %s; install it in the Dockerfile, or ask for less: --require none (the default, tmux, is what a model's terminal needs)", strings.Join(e.Missing, ", "), e.Why)
}

// missing are the commands that are not on the image's PATH.
func (o *one) missing(ctx context.Context, c chain, st *dockerfile.Stage, commands []string) ([]string, error) {
	work, err := o.scratch.work()
	if err != nil {
		return nil, err
	}
	defer remove(work)
	search := ""
	for _, kv := range st.Config.Env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			search = v
		}
	}
	r, err := o.scratch.engine.do(ctx, step.Spec{Lower: o.layers.lower(c), Dir: work, Look: &step.Look{Commands: commands, Path: search}}, o.log)
	return r.Missing, err
}
