package build

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/dockerfile"
)

// stepVersion and imageVersion change when the same step, or the packing of
// the same layers, would give other bytes: what is cached is then not found.
const (
	stepVersion  = "step/2"
	imageVersion = "image/1"
)

// keys names everything in a plan by what goes into it. Two plans that begin
// alike have the same keys as far as they are alike.
type keys struct {
	Base  map[int]string   // by index of stage: what it begins with
	Steps map[int][]string // by index of stage: of the layers
	Image string
}

// last is the key of all of a stage.
func (k keys) last(stage int) string {
	if s := k.Steps[stage]; len(s) > 0 {
		return s[len(s)-1]
	}
	return k.Base[stage]
}

// newKeys names a plan. profile is what else the image depends on: what is
// required of it, how it is packed.
func newKeys(p *dockerfile.Plan, platform v1.Platform, profile any) keys {
	k := keys{Base: map[int]string{}, Steps: map[int][]string{}}
	for _, st := range p.Stages {
		key := k.from(st.From)
		if st.From.Context != "" {
			key = digest("folder", st.Matches)
		}
		k.Base[st.Index] = key
		for _, s := range st.Steps {
			key = digest(stepVersion, key, platform.String(), k.final(s))
			k.Steps[st.Index] = append(k.Steps[st.Index], key)
		}
	}
	if n := len(p.Stages); n > 0 {
		st := p.Stages[n-1]
		k.Image = digest(imageVersion, k.last(st.Index), platform.String(), st.Config, st.StartInterval, profile)
	}
	return k
}

// from names what a stage begins with, or a copy takes from. A folder of this
// machine is named by what is taken from it, where that stands.
func (k keys) from(f dockerfile.From) string {
	switch {
	case f.Stage != nil:
		return k.last(*f.Stage)
	case f.Base != nil:
		return digest("base", f.Base.Digest)
	case f.Context != "":
		return "folder"
	}
	return digest("scratch")
}

// final is a step without what does not count: where it stands and how it is written.
func (k keys) final(s dockerfile.Step) any {
	switch {
	case s.Run != nil:
		type mount struct {
			dockerfile.Mount
			From string
		}
		run := struct {
			Run    dockerfile.Run
			Mounts []mount
		}{Run: *s.Run}
		for _, m := range s.Run.Mounts {
			from := ""
			if m.From != nil {
				from = k.from(*m.From)
			}
			m.From = nil
			run.Mounts = append(run.Mounts, mount{m, from})
		}
		run.Run.Mounts, run.Run.Proxy = nil, nil
		return run
	case s.Copy != nil:
		c := *s.Copy
		from := k.from(c.From)
		c.From = dockerfile.From{}
		if c.Matches != nil {
			c.Sources = nil
		}
		return struct {
			Copy dockerfile.Copy
			From string
		}{c, from}
	}
	return struct{ Workdir dockerfile.Workdir }{*s.Workdir}
}

// digest is a name for values: the same for equal ones.
func digest(values ...any) string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	for _, v := range values {
		if err := enc.Encode(v); err != nil {
			panic(fmt.Sprintf("BUG: a key cannot be made of %T: %v", v, err))
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:40]
}
