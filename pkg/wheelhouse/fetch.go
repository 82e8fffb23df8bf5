package wheelhouse

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"fence/pkg/wheel"
)

// fetch has pip get a set. What it cannot have is a fault with its reason, and
// the rest of the set is fetched without it. The error is ctx's.
func (h *house) fetch(ctx context.Context, s wheel.Set, t wheel.Target) ([]string, error) {
	for len(s.Requirements) > 0 {
		files, out, err := h.pip.download(ctx, s, t)
		switch {
		case err == nil:
			return files, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		i := culprit(s, out)
		if i < 0 {
			return h.oneByOne(ctx, s, t, out, err)
		}
		h.missing(ctx, s, t, s.Requirements[i])
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.Requirements = slices.Delete(slices.Clone(s.Requirements), i, i+1)
	}
	return nil, nil
}

// culprit is the requirement of a set for which pip found nothing, -1 if it says
// something else.
func culprit(s wheel.Set, out string) int {
	m := noMatch.FindStringSubmatch(out)
	if m == nil || neededBy.MatchString(out) {
		return -1
	}
	q, err := wheel.ParseRequirement(m[1])
	if err != nil {
		return -1
	}
	return slices.IndexFunc(s.Requirements, func(r wheel.Requirement) bool { return r.Project == q.Project })
}

// oneByOne fetches the requirements of a set each by itself, since together they
// cannot be had. What one of them requires in vain does not keep it away.
func (h *house) oneByOne(ctx context.Context, s wheel.Set, t wheel.Target, out string, err error) (files []string, _ error) {
	if len(s.Requirements) > 1 {
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
			class := Fetch
			if impossible.MatchString(out) {
				class = Conflict
			}
			h.fault(class, join(s.Requirements), "together: "+lastError(out, err), s.From)
		}
		return files, nil
	}
	q := s.Requirements[0]
	if m := wrongHash.FindStringSubmatch(out); m != nil {
		h.fault(wheel.Corrupt, m[2][strings.LastIndex(m[2], "/")+1:], "its bytes are not what the index says they are", s.From)
	} else if m, by := noMatch.FindStringSubmatch(out), neededBy.FindStringSubmatch(out); m != nil && by != nil {
		if d, err := wheel.ParseRequirement(m[1]); err == nil {
			class, text := h.why(ctx, s, t, d)
			h.fault(class, d.String(), fmt.Sprintf("%s requires it, and %s", by[1], text), s.From)
		} else {
			h.fault(Dependency, m[1], by[1]+" requires it, and no wheel of it is there", s.From)
		}
	} else if impossible.MatchString(out) {
		h.fault(Conflict, q.String(), lastError(out, err), s.From)
	} else {
		h.fault(Fetch, q.String(), lastError(out, err), s.From)
	}
	if s.NoDeps || ctx.Err() != nil {
		return nil, ctx.Err()
	}
	s.NoDeps = true // its own wheel may be had
	some, _, err := h.pip.download(ctx, s, t)
	if err != nil {
		return nil, ctx.Err()
	}
	return some, nil
}

func join(all []wheel.Requirement) string {
	var texts []string
	for _, q := range all {
		texts = append(texts, q.String())
	}
	return strings.Join(texts, " ")
}

// missing names a requirement that pip found nothing for.
func (h *house) missing(ctx context.Context, s wheel.Set, t wheel.Target, q wheel.Requirement) {
	class, text := h.why(ctx, s, t, q)
	h.fault(class, q.String(), text, s.From)
}

// why asks the index what there is instead.
func (h *house) why(ctx context.Context, s wheel.Set, t wheel.Target, q wheel.Requirement) (class, text string) {
	wheels, err := h.pip.versions(ctx, s, t, q.Project, true)
	if err != nil {
		return NoPackage, fmt.Sprintf("no wheel of it for %s was found", t) // an old pip cannot say more
	}
	sources, err := h.pip.versions(ctx, s, t, q.Project, false)
	if err != nil {
		sources = nil
	}
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
