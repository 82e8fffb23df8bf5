package registry

import (
	"errors"
	"strings"
	"time"
)

// soon is when to look again at what failed, where nobody says.
const soon = time.Minute

// verdict makes one error of what the sources of a repository said, the
// registry itself the last. Its word is the answer, since a mirror may lack
// anything; what is to be waited for is whatever comes back first.
func (c *Client) verdict(all []source, failed []error) error {
	var notes []string
	var until time.Time
	sooner := func(t time.Time) {
		if until.IsZero() || t.Before(until) {
			until = t
		}
	}
	for i, s := range all {
		err := failed[i]
		var limited *RateLimited
		var away *Unreachable
		var note string
		switch {
		case onDisk(err):
			return err
		case errors.As(err, &limited):
			sooner(limited.Until)
			note = "takes no more requests for now"
		case errors.As(err, &away):
			sooner(away.Until)
			note = "cannot be asked for now"
		case transient(err):
			sooner(c.clock.Now().Add(soon))
			note = short(err).Error()
		default:
			note = strings.TrimPrefix(refusal("", err, "").Error(), "the registry  ")
		}
		if i < len(all)-1 {
			notes = append(notes, "its mirror "+show(s.reg)+"/"+s.repo.RepositoryStr()+": "+note)
		}
	}
	mirrors := ""
	if len(notes) > 0 {
		mirrors = "; " + strings.Join(notes, "; ")
	}
	last, err := all[len(all)-1], failed[len(all)-1]
	var limited *RateLimited
	var away *Unreachable
	switch {
	case errors.As(err, &limited):
		return &RateLimited{Registry: limited.Registry, Until: until, Limit: limited.Limit, Mirrors: mirrors}
	case errors.As(err, &away):
		return &Unreachable{Registry: away.Registry, Until: until, Err: away.Err, Mirrors: mirrors}
	case transient(err):
		return &Unreachable{Registry: show(last.reg), Until: until, Err: short(err), Mirrors: mirrors}
	}
	err = refusal(show(last.reg), err, c.keys.help(last.reg.RegistryStr()))
	var refused *Refused
	if errors.As(err, &refused) {
		refused.Text += mirrors
	}
	return err
}
