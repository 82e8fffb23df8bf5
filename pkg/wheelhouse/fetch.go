package wheelhouse

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"fence/pkg/wheel"
)

// fetch has pip get a set. What it cannot have is a fault with its reason, and
// the rest of the set is fetched without it. The error is ctx's.
func (h *house) fetch(ctx context.Context, s wheel.Set, t wheel.Target) (files []string, _ error) {
	for len(s.Requirements) > 0 {
		some, out, err := h.pip.download(ctx, s, t)
		switch {
		case err == nil:
			return append(files, some...), nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, errQuiet):
			h.fault(Fetch, join(s.Requirements), err.Error(), s.From)
			return files, nil
		}
		i, alone := h.blame(ctx, s, t, out)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if i < 0 {
			some, err := h.oneByOne(ctx, s, t, out, err)
			return append(files, some...), err
		}
		if alone { // its own wheel may be had
			one := s
			one.Requirements, one.NoDeps = s.Requirements[i:i+1], true
			if some, _, err := h.pip.download(ctx, one, t); err == nil {
				files = append(files, some...)
			}
		}
		s.Requirements = slices.Delete(slices.Clone(s.Requirements), i, i+1)
	}
	return files, nil
}

// blame finds in pip's output which requirement of a set cannot be had, and says
// why in a fault; -1 if it is not that. With alone, it is for something that
// the requirement's own wheel requires.
func (h *house) blame(ctx context.Context, s wheel.Set, t wheel.Target, out string) (i int, alone bool) {
	at := func(project string) int {
		return slices.IndexFunc(s.Requirements, func(r wheel.Requirement) bool { return r.Project == project })
	}
	if m := wrongHash.FindStringSubmatch(out); m != nil {
		file := path.Base(m[1])
		project, _, _, err := wheel.Name(file)
		if i = at(project); err != nil || i < 0 && len(s.Requirements) == 1 {
			i = 0
			alone = err == nil
		}
		if i >= 0 {
			h.fault(wheel.Corrupt, file, "its bytes are not what the index says they are", s.From)
		}
		return i, alone
	}
	m := noMatch.FindStringSubmatch(out)
	if m == nil {
		return -1, false
	}
	q, err := wheel.ParseRequirement(m[1])
	if err != nil {
		return -1, false
	}
	by := neededBy.FindStringSubmatch(out)
	if by == nil {
		if i = at(q.Project); i >= 0 {
			class, text := h.why(ctx, s, t, s.Requirements[i], out)
			h.fault(class, s.Requirements[i].String(), text, s.From)
		}
		return i, false
	}
	parent, err := wheel.ParseRequirement(by[1])
	if i = at(parent.Project); err != nil || i < 0 && len(s.Requirements) == 1 {
		i = 0
	}
	if i >= 0 {
		class, text := h.why(ctx, s, t, q, out)
		h.fault(class, q.String(), fmt.Sprintf("%s requires it, and %s", by[1], text), s.From)
	}
	return i, true
}

// oneByOne fetches the requirements of a set each by itself, since together they
// cannot be had. What one of them requires in vain does not keep it away.
func (h *house) oneByOne(ctx context.Context, s wheel.Set, t wheel.Target, out string, err error) (files []string, _ error) {
	class := Fetch
	if impossible.MatchString(out) {
		class = Conflict
	}
	if len(s.Requirements) == 1 {
		h.fault(class, s.Requirements[0].String(), lastError(out, err), s.From)
		return nil, nil
	}
	faults := len(h.r.Faults)
	for _, q := range s.Requirements {
		one := s
		one.Requirements = []wheel.Requirement{q}
		some, err := h.fetch(ctx, one, t)
		if err != nil {
			return nil, err
		}
		files = append(files, some...)
	}
	if len(h.r.Faults) == faults { // each is there, and not together
		h.fault(class, join(s.Requirements), "together: "+lastError(out, err), s.From)
	}
	return files, nil
}

func join(all []wheel.Requirement) string {
	var texts []string
	for _, q := range all {
		texts = append(texts, q.String())
	}
	return strings.Join(texts, " ")
}

// why says what there is instead of a requirement for which pip, by its output,
// found nothing.
func (h *house) why(ctx context.Context, s wheel.Set, t wheel.Target, q wheel.Requirement, out string) (class, text string) {
	var wheels []string
	if m := fromThese.FindStringSubmatch(out); m != nil && m[1] != "none" {
		wheels = strings.Split(m[1], ", ")
	}
	slices.Reverse(wheels)                         // the newest first
	all, _ := h.pip.versions(ctx, s, t, q.Project) // an old pip cannot say
	sources := slices.DeleteFunc(all, func(v string) bool { return slices.Contains(wheels, v) })
	if at := slices.IndexFunc(sources, q.Allows); at >= 0 {
		text = fmt.Sprintf("version %s has source and no wheel for %s", sources[at], t)
		if len(wheels) > 0 {
			text += "; there are wheels of " + some(wheels)
		}
		return SdistOnly, text + "; build it there, and put the wheel into wheels/"
	}
	if len(wheels) > 0 {
		return NoVersion, fmt.Sprintf("there is no such version; there are wheels for %s of %s", t, some(wheels))
	}
	if len(sources) > 0 {
		return NoVersion, fmt.Sprintf("there is no such version; there is source of %s", some(sources))
	}
	return NoPackage, fmt.Sprintf("the index has nothing of it for %s", t)
}

// some are a few of many versions.
func some(versions []string) string {
	const most = 5
	if len(versions) > most {
		return strings.Join(versions[:most], ", ") + fmt.Sprintf(" and %d more", len(versions)-most)
	}
	return strings.Join(versions, ", ")
}
