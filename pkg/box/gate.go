package box

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"fence/pkg/apptainer"
	"fence/pkg/session"
)

// expectation is a file of what the gate expects, where it is more than the
// built-in of that name: what was opened with a reason can be reached.
func (o Options) expectation(name string) string {
	reasons := map[string]string{}
	for _, b := range o.Binds {
		reasons[b.Target] = b.why()
	}
	for _, w := range o.Opens {
		if w.Path != "" {
			reasons[w.Path] = w.Why
		}
	}
	if len(reasons) == 0 {
		return ""
	}
	text := fmt.Sprintf("version = 1\nextends = %q\n", name)
	for _, at := range slices.Sorted(maps.Keys(reasons)) {
		for _, id := range []string{"fs.shared.list", "fs.shared.read", "fs.shared.stat", "fs.meta"} {
			text += fmt.Sprintf("[[except]]\nid = %s\nwhy = %s\n", quoted(id+"["+at+"]"), quoted(reasons[at]))
		}
	}
	return text
}

// quoted is a basic string of TOML, which JSON's are.
func quoted(s string) string {
	data, err := json.Marshal(s)
	if err != nil {
		panic("BUG: a string that is not JSON: " + err.Error())
	}
	return string(data)
}

// inMemory is a file with a text that is gone when the last program that has it
// open is.
func inMemory(text string) (*os.File, error) {
	fd, err := unix.MemfdCreate("expectation", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "expectation")
	if _, err := f.WriteString(text); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Gate starts a box, has probe try everything from the agent's domain, and has
// the probe on the node judge what it reports: a probe.gate/v1 record. What the
// gate does not let pass is an *Error of class "gate_failed". It says something
// of every box with these options on this node, but for system calls that are
// opened by name, which it is asked without; Scratch is used and removed.
func Gate(ctx context.Context, o Options) (record []byte, err error) {
	o.Opens = slices.DeleteFunc(slices.Clone(o.Opens), func(w Open) bool { return w.Syscall != "" })
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
	base := map[string]string{"none": "strict", "loopback": "loopback", "host": "build"}[o.Network]
	expect, given := base, []*os.File(nil)
	if text := o.expectation(base); text != "" {
		f, err := inMemory(text)
		if err != nil {
			return nil, fmt.Errorf("what the gate expects: %w", err)
		}
		defer f.Close()
		expect, given = "/dev/fd/3", []*os.File{f}
	}
	var out, refused bytes.Buffer
	cmd := exec.CommandContext(ctx, o.Probe, "gate", "-", "--expect", expect, "--json")
	cmd.ExtraFiles = given
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
	return out.Bytes(), gateFailed(verdict(out.Bytes()), fmt.Sprintf("what it says of each: %s gate REPORT --expect %s; whoever knows better gives a reason: --no-gate WHY", o.Probe, base))
}

// verdict is what a record of the gate says that does not let pass.
func verdict(record []byte) string {
	var r struct {
		Answer  string
		Results []struct{ ID, Answer string }
	}
	if err := json.Unmarshal(record, &r); err != nil {
		return "a record that is none: " + err.Error()
	}
	ids := map[string][]string{}
	for _, x := range r.Results {
		if x.Answer != "yes" && !slices.Contains(ids[x.Answer], x.ID) {
			ids[x.Answer] = append(ids[x.Answer], x.ID)
		}
	}
	var text []string
	for _, answer := range slices.Sorted(maps.Keys(ids)) {
		text = append(text, fmt.Sprintf("%q to %s", answer, strings.Join(ids[answer], ", ")))
	}
	return fmt.Sprintf("whether the agent's domain is as it must be, probe answers %q: %s", r.Answer, strings.Join(text, "; "))
}

func gateFailed(text, hint string) *Error {
	return &Error{Class: "gate_failed", Cause: "infra", Message: "the gate: " + text, Hint: hint}
}
