package trial

import (
	"context"
	"io"
	"slices"

	"fence/pkg/box"
	"fence/pkg/session"
	"fence/pkg/spec"
)

// users are those of a task's container, as Harbor has them: the agents, and who
// runs the container's own health check and what is to be collected, "" for the
// image's; and whose the tests are that run there.
func users(s spec.Spec) (agent string, others []string, tests string) {
	agent, tests = s.Agent.User, s.Agent.User
	if s.Environment.Healthcheck != nil {
		others = append(others, "")
	}
	for _, p := range parts(s) {
		others = append(others, p.agent.User)
		for _, c := range p.verifier.Collect {
			others = append(others, c.User)
		}
		if p.verifier.Separate == nil {
			tests = p.verifier.User
		}
	}
	slices.Sort(others)
	return agent, slices.Compact(others), tests
}

// boxOf is the task's container for an agent who is a user of it.
func (r *run) boxOf(user string) Box {
	if domain := r.box.Domain(user); domain != box.Agent {
		return as{r.box, domain}
	}
	return r.box
}

// as is a container in which the agent's domain is another.
type as struct {
	Box
	domain string
}

func (a as) in(domain string) string {
	if domain == box.Agent {
		return a.domain
	}
	return domain
}

func (a as) Run(ctx context.Context, c box.Command, s session.Streams) (session.Exit, error) {
	c.Domain = a.in(c.Domain)
	return a.Box.Run(ctx, c, s)
}

func (a as) Put(ctx context.Context, domain, dir string, tar io.Reader) error {
	return a.Box.Put(ctx, a.in(domain), dir, tar)
}

func (a as) Get(ctx context.Context, domain, dir string, paths []string, tar io.Writer) error {
	return a.Box.Get(ctx, a.in(domain), dir, paths, tar)
}

func (a as) End(ctx context.Context, domain string) error { return a.Box.End(ctx, a.in(domain)) }
