package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"fence/pkg/dockerfile"
	"fence/pkg/step"
	"fence/pkg/tree"
)

// step does one step on top of c, into dir.
func (o *one) step(ctx context.Context, c chain, s dockerfile.Step, dir string) ([]tree.Special, error) {
	spec := step.Spec{Lower: o.layers.lower(c), Upper: dir, Dir: filepath.Dir(dir)}
	var err error
	switch {
	case s.Run != nil:
		if spec.Run, err = o.run(ctx, s.Run, spec.Dir); err == nil {
			spec.Run.Specials, spec.Idle = c.specials(), o.o.Idle
		}
	case s.Copy != nil:
		if s.Copy.Link {
			// As if nothing was there: links and modes below do not count.
			empty, err := o.begin(ctx, dockerfile.From{Scratch: true}, digest("scratch"), nil)
			if err != nil {
				return nil, err
			}
			spec.Like, spec.Lower = spec.Lower[0], o.layers.lower(empty)
		}
		spec.Copy, err = o.copy(ctx, s.Copy, spec.Dir)
	case s.Workdir != nil:
		spec.Workdir = &step.Workdir{Path: s.Workdir.Path, User: s.Workdir.User}
	}
	if err != nil {
		return nil, err
	}
	from := end(o.log)
	r, err := o.scratch.engine.do(ctx, spec, o.log)
	for _, w := range r.Warnings {
		o.report.warn(o.plan, o.steps, w)
	}
	if err == nil && r.Exit != 0 {
		err = &StatusError{o.plan.File, s.Line, s.Text, r.Exit, o.report.Log, tail(o.report.Log, from)}
	}
	if errors.Is(err, step.ErrIdle) {
		err = &IdleError{o.o.Idle, tail(o.report.Log, from)}
	}
	if err == nil && s.Run != nil {
		err = o.scratch.room()
	}
	return r.Specials, err
}

// run is a RUN step, with what the Dockerfile mounts for it.
func (o *one) run(ctx context.Context, r *dockerfile.Run, work string) (*step.Run, error) {
	config := slices.Concat(aptConfig, o.o.Config)
	if len(r.Proxy) > 0 {
		config = aptConfig // what is told of a proxy asks that
	}
	out := &step.Run{Argv: r.Argv, Env: slices.Concat(r.Env, r.Proxy), Cwd: r.Cwd, User: r.User, Network: r.Network, Fence: o.o.Fence, Config: config}
	for _, f := range r.Files {
		out.Files = append(out.Files, step.File{Path: f.Path, Data: f.Data, Mode: f.Mode})
	}
	for _, m := range r.Mounts {
		sm, err := o.mount(ctx, m)
		if err != nil {
			return nil, err
		}
		if sm != nil {
			out.Mounts = append(out.Mounts, *sm)
		}
	}
	return out, nil
}

// mount is a --mount.
func (o *one) mount(ctx context.Context, m dockerfile.Mount) (*step.Mount, error) {
	out := &step.Mount{Target: m.Target, ReadOnly: m.ReadOnly, Source: m.Source}
	switch m.Type {
	case "tmpfs":
		out.Tmpfs, out.Size = true, m.Size
	case "cache":
		return out, o.cache(ctx, m, out)
	case "bind":
		if f := m.From; f != nil && f.Context != "" {
			out.Source, out.Matches = f.Context, m.Matches
			break
		}
		c, err := o.source(ctx, *m.From)
		if err != nil {
			return nil, err
		}
		out.Lower, out.Specials = o.layers.lower(c), c.specials()
	case "secret", "ssh":
		return o.secret(m)
	default:
		return nil, fmt.Errorf("--mount=type=%s is not known", m.Type)
	}
	return out, nil
}

// cache is a cache, kept for the other steps of this image: what a task writes
// there must not be what another task runs. As in BuildKit, one that begins with
// something else is another one, and mode and owner are what it begins with unless
// there is a source. The steps of an image run one after the other, so whatever
// the sharing, a step finds what the one before left.
func (o *one) cache(ctx context.Context, m dockerfile.Mount, out *step.Mount) error {
	key, mode := []any{m.ID}, os.FileMode(0o755)
	if m.From != nil {
		key = append(key, "from", o.keys.from(*m.From))
	}
	made := m.Source == "" && (m.Mode != nil || m.UID != 0 || m.GID != 0)
	if made {
		key = append(key, m.Mode, m.UID, m.GID)
		if m.Mode != nil {
			mode = os.FileMode(*m.Mode)
		}
	}
	dir := filepath.Join(o.scratch.caches(o.keys.Image), digest(key...))
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	switch err := os.Mkdir(dir, 0o755); {
	case err == nil:
		if err := os.Chmod(dir, mode); err != nil {
			return err
		}
		if o := (tree.Owner{UID: m.UID, GID: m.GID}); made && o != (tree.Owner{}) {
			if err := unix.Setxattr(dir, tree.OwnerAttr, fmt.Appendf(nil, "%d:%d", o.UID, o.GID), 0); err != nil {
				return fmt.Errorf("noting the owner of %s: %w", dir, err)
			}
		}
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	if m.From == nil || made {
		out.Source = dir
		return nil
	}
	c, err := o.source(ctx, *m.From)
	if err != nil {
		return err
	}
	out.Lower, out.Specials, out.Changes = o.layers.lower(c), c.specials(), dir
	return nil
}

// secret is a file that only the step sees. One that nobody gives is not there,
// and as a variable it is empty.
func (o *one) secret(m dockerfile.Mount) (*step.Mount, error) {
	file, given := o.o.Secrets[m.ID]
	if m.Type == "ssh" || !given {
		if m.Required {
			return nil, fmt.Errorf("--mount=type=%s,id=%s,required: it was not given (--secret %s=FILE)", m.Type, m.ID, m.ID)
		}
		if m.Env != "" {
			return &step.Mount{Env: m.Env}, nil
		}
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--secret %s: %w", m.ID, err)
	}
	out := &step.Mount{Target: m.Target, IsData: true, Data: data, Mode: 0o400, Owner: tree.Owner{UID: m.UID, GID: m.GID}, Env: m.Env}
	if m.Mode != nil {
		out.Mode = *m.Mode
	}
	return out, nil
}

// source is the layers of a stage or an image that something is taken from.
func (o *one) source(ctx context.Context, f dockerfile.From) (chain, error) {
	return o.begin(ctx, f, o.keys.from(f), nil)
}

// copy is a COPY or ADD step; what it fetches lies in work.
func (o *one) copy(ctx context.Context, c *dockerfile.Copy, work string) (*step.Copy, error) {
	out := &step.Copy{Chown: c.Chown}
	q := &out.Request
	q.Dest, q.Chmod, q.Matches = c.Dest, c.Chmod, c.Matches
	q.Unpack = c.Add && (c.Unpack == nil || *c.Unpack)
	for _, in := range c.Inline {
		q.Files = append(q.Files, tree.File{Name: in.Path, Data: in.Data, Mode: in.Mode})
	}
	if c.URLs != nil {
		q.Root = filepath.Join(work, "fetched")
		var err error
		if q.Matches, err = fetch(ctx, c.URLs, c.Checksum, q.Root, o.o.Idle); err != nil {
			return nil, err
		}
		q.Unpack = c.Unpack != nil && *c.Unpack // what is fetched is unpacked only if asked
		return out, nil
	}
	if c.From.Context != "" {
		q.Root = c.From.Context
		return out, nil
	}
	if c.From.Stage != nil || c.From.Base != nil || c.From.Scratch {
		from, err := o.source(ctx, c.From)
		if err != nil {
			return nil, err
		}
		out.From = o.layers.lower(from)
		q.KeepOwners, q.Specials = true, from.specials()
		out.Select = &tree.Selection{Sources: c.Sources, Parents: c.Parents, Exclude: c.Exclude, Devices: q.Specials}
	}
	return out, nil
}
