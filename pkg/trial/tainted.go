package trial

import (
	"fmt"
	"strings"

	"fence/pkg/result"
	"fence/pkg/taint"
)

// watched prepares to tell what the tests run or load of the agent's. Where it
// cannot be told, that is said, and with StrictVerdict a fault.
func (r *run) watched(p part) error {
	if r.watch != nil {
		return nil
	}
	paths := r.VerifierPath
	if at, ok := r.verifierEnv(p)["PATH"]; ok {
		paths = append(paths[:len(paths):len(paths)], at)
	} else if at := r.box.Config().Env["PATH"]; at != "" {
		paths = append(paths[:len(paths):len(paths)], at)
	}
	instruction := r.Spec.Instruction
	for _, s := range r.Spec.Steps {
		instruction += "\n" + s.Instruction
	}
	var err error
	r.watch, err = taint.New(taint.Options{
		Upper: r.box.Upper(), Image: r.Box.Image, Workdir: r.box.Workdir(), Path: strings.Join(paths, ":"),
		Private: private, Instruction: instruction, Runs: "/tests/test.sh",
	})
	return r.untold(err)
}

// untold says that it cannot be told what the tests load of the agent's.
func (r *run) untold(err error) error {
	switch {
	case err == nil:
		return nil
	case r.StrictVerdict:
		return Faultf("verify", "tainted", "unknown", "", "it cannot be told what the tests ran or loaded of the agent's: %v", err)
	}
	r.warn("it cannot be told what the tests ran or loaded of the agent's: %v", err)
	return nil
}

// before notes what is there when the agent begins, after what it has changed
// when its time is over; found says what the tests opened of that. All do
// nothing where there is no watch, as in tests of this package.
func (r *run) before(p part) error {
	if r.box.Upper() == "" || p.verifier.Separate != nil {
		return nil
	}
	if err := r.watched(p); err != nil || r.watch == nil {
		return err
	}
	return r.untold(r.watch.Before())
}

func (r *run) after() error {
	if r.watch == nil {
		return nil
	}
	return r.untold(r.watch.After())
}

func (r *run) found() error {
	if r.watch == nil {
		return nil
	}
	list, unknown, err := r.watch.Find(true)
	if err == nil && unknown != "" {
		err = fmt.Errorf("%s", unknown)
	}
	for _, t := range list {
		r.say("tainted: %s: %s", t.Path, t.Why)
	}
	r.r.Tainted = append(r.r.Tainted, list...)
	if err := r.untold(err); err != nil {
		return err
	}
	if r.StrictVerdict && len(list) > 0 {
		return tainted(list)
	}
	return nil
}

func tainted(list []result.Taint) error {
	cause := fmt.Sprintf("the tests ran or loaded what the agent had changed: %s, %s", list[0].Path, list[0].Why)
	if n := len(list) - 1; n > 0 {
		cause += fmt.Sprintf("; and %d more files", n)
	}
	return Faultf("verify", "tainted", "agent", "", "%s", cause)
}
