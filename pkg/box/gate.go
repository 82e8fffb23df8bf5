package box

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"

	"fence/pkg/apptainer"
	"fence/pkg/session"
)

// Gate starts a box, has probe try everything from the agent's domain, and has
// the probe on the node judge what it reports: a probe.gate/v1 record. What the
// gate does not let pass is an *Error of class "gate_failed". It says something
// of every box with these options on this node; Scratch is used and removed.
func Gate(ctx context.Context, o Options) (record []byte, err error) {
	b, err := Start(ctx, o)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	var report bytes.Buffer
	said := apptainer.Tail{Most: 16 << 10}
	exit, err := b.Run(ctx, Command{Domain: Agent, Argv: []string{inFence + "probe", "run", "--json"}}, session.Streams{Out: &report, Err: &said})
	if err != nil {
		return nil, err
	}
	if report.Len() == 0 {
		return nil, gateFailed(fmt.Sprintf("probe ended with %d and reports nothing: %s", exit.Code, apptainer.LastWords(said.String(), nil)), "")
	}
	expect := map[string]string{"none": "strict", "loopback": "loopback", "host": "build"}[o.Network]
	var out, refused bytes.Buffer
	cmd := exec.CommandContext(ctx, o.Probe, "gate", "-", "--expect", expect, "--json")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &report, &out, &refused
	cmd.Env = []string{}
	err = cmd.Run()
	var end *exec.ExitError
	switch {
	case err == nil:
		return out.Bytes(), nil
	case !errors.As(err, &end):
		return nil, fmt.Errorf("probe gate: %w", err)
	case !json.Valid(out.Bytes()) || out.Len() == 0:
		return nil, gateFailed(apptainer.LastWords(refused.String(), err), "")
	}
	return out.Bytes(), gateFailed("what probe reports from the agent's domain is not what must be so there", fmt.Sprintf("run it yourself: probe gate REPORT --expect %s; or --gate off, with a reason", expect))
}

func gateFailed(text, hint string) *Error {
	return &Error{Class: "gate_failed", Cause: "infra", Message: "the gate: " + text, Hint: hint}
}
