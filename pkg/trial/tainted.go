package trial

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"fence/pkg/result"
	"fence/pkg/spec"
	"fence/pkg/taint"
)

// before notes what is there when the first agent begins, to tell later what
// the tests run or load of the agent's. It does nothing where there is no
// container of files, as in tests of this package, and where all tests have a
// container of their own.
func (r *run) before() error {
	all := parts(r.Spec)
	if r.acted || r.box.Upper() == "" || !slices.ContainsFunc(all, func(p part) bool { return p.verifier.Separate == nil }) {
		return nil
	}
	var paths, homes, tests []string
	image, instruction := r.box.Config().Env, r.Spec.Instruction
	for _, p := range all {
		env := r.verifierEnv(p)
		paths = append(paths, cmp.Or(env["PATH"], image["PATH"]))
		homes = append(homes, cmp.Or(env["HOME"], r.Env["HOME"], r.Spec.Environment.Env["HOME"], image["HOME"]))
		instruction += "\n" + p.instruction
		tests = append(tests, p.tests...)
	}
	var err error
	r.watch, err = taint.New(taint.Options{
		Upper: r.box.Upper(), Image: r.Box.Image, Workdir: r.box.Workdir(), Path: strings.Join(append(r.VerifierPath[:len(r.VerifierPath):len(r.VerifierPath)], paths...), ":"),
		Homes: homes, Private: private, Instruction: instruction, Tests: slices.Compact(tests), Runs: "/tests/test.sh",
	})
	if err != nil {
		return r.tainted([]result.Taint{{Path: "/", Why: "it cannot be told which files are the agent's"}}, err.Error())
	}
	r.watch.Before()
	return nil
}

// after is said when the agent of a part is done, and found when its tests are:
// it says what they opened of the agents'. Tests with a container of their own
// open nothing here.
func (r *run) after(v spec.Verifier) {
	if r.watch != nil && v.Separate == nil {
		r.watch.After()
	}
}

func (r *run) found(v spec.Verifier) error {
	if r.watch == nil || v.Separate != nil {
		return nil
	}
	return r.tainted(r.watch.Find(true))
}

// tainted records what the tests ran or loaded of the agent's, and why not all
// of it can be told, if so. With StrictVerdict either is a fault.
func (r *run) tainted(list []result.Taint, unknown string) error {
	for _, t := range list {
		r.say("tainted: %s: %s", t.Path, t.Why)
		if !slices.Contains(r.r.Tainted, t) { // by an earlier step's tests
			r.r.Tainted = append(r.r.Tainted, t)
		}
	}
	if unknown != "" {
		unknown = "it cannot be told what the tests ran or loaded of the agent's: " + unknown
		if r.StrictVerdict {
			return Faultf("verify", "tainted", "unknown", "", "%s", unknown)
		}
		r.warn("%s", unknown)
	}
	if !r.StrictVerdict || len(list) == 0 {
		return nil
	}
	more := ""
	if n := len(list) - 1; n > 0 {
		more = fmt.Sprintf("; and %d more files", n)
	}
	return Faultf("verify", "tainted", "agent", "", "the tests ran or loaded what the agent had changed: %s, %s%s", list[0].Path, list[0].Why, more)
}
