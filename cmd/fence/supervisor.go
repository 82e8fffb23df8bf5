package main

import (
	"encoding/json"
	"fmt"
	"os"

	"fence/pkg/cli"
	"fence/pkg/policy"
	"fence/pkg/sandbox"
	"fence/pkg/supervise"
)

// supervisor is who has to stay above the command for p's network here, nil if
// nobody: there is a network namespace, or no way to a supervisor either, which
// is then refused with both reasons.
func supervisor(p policy.Policy) *supervise.Launch {
	if !p.Network.Mode.OnlyLoopback() {
		return nil
	}
	inUserNS, refused := sandbox.OwnNet()
	if refused == nil || supervise.Possible(inUserNS) != nil {
		return nil
	}
	return &supervise.Launch{Args: os.Args, InUserNS: inUserNS, Refused: refused, Hello: pack(p), Proxy: p.Network.Socket}
}

// stay ends as the command does.
func stay(l supervise.Launch) error {
	code, err := l.Run()
	if err != nil {
		return notEnforced(err)
	}
	return cli.Exit(code)
}

// packed is a policy with what its digest leaves out. The child does not read
// it again: it may have come from a pipe.
type packed struct {
	policy.Policy
	Name, Extends        string
	OpenFrom, AcceptFrom []string // where each was written
}

func pack(p policy.Policy) []byte {
	out := packed{Policy: p, Name: p.Name, Extends: p.Extends}
	for _, o := range p.Open {
		out.OpenFrom = append(out.OpenFrom, o.From)
	}
	for _, a := range p.Accept {
		out.AcceptFrom = append(out.AcceptFrom, a.From)
	}
	data, err := json.Marshal(out)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return data
}

func unpack(data []byte) (policy.Policy, error) {
	var in packed
	if err := json.Unmarshal(data, &in); err != nil {
		return policy.Policy{}, notFenced(fmt.Errorf("the policy from the supervisor: %w", err), "")
	}
	p := in.Policy
	p.Name, p.Extends = in.Name, in.Extends
	for i := range p.Open {
		p.Open[i].From = in.OpenFrom[i]
	}
	for i := range p.Accept {
		p.Accept[i].From = in.AcceptFrom[i]
	}
	return p, nil
}
