package trial

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"fence/pkg/box"
	"fence/pkg/result"
	"fence/pkg/session"
	"fence/pkg/verdict"
)

// verifierOwn is a folder that only the verifier's domain has.
const verifierOwn = "/.verifier"

// testsOut is where the tests' own output goes, as with Harbor.
const testsOut = "/logs/verifier/test-stdout.txt"

// TestsEnv is what all tests run with beside the image's and the task's own. HOME
// stays the image's: tests look there for what the agent was told to make, and for
// programs. So what an agent left there may be run, which is what taint looks
// for; but temporary files, the user's Python modules, bytecode and a repository
// in / are none of the tests' (docs/session.md, "What the tests must not look for").
func TestsEnv() map[string]string {
	return map[string]string{
		"TMPDIR": verifierOwn + "/tmp", "PYTHONNOUSERSITE": "1", "PYTHONPYCACHEPREFIX": verifierOwn + "/pyc", "GIT_CEILING_DIRECTORIES": "/",
	}
}

// verifierEnv is what the tests of a part run with.
func (r *run) verifierEnv(p part) map[string]string {
	env := TestsEnv()
	maps.Copy(env, r.VerifierEnv)
	maps.Copy(env, p.verifier.Env)
	return env
}

// judge is the verifier's phase. The agent's processes live on until it is over:
// tests call servers that the agent left.
func (r *run) judge(ctx context.Context, p part, dir string, artifacts []kept, end *result.StepResult) error {
	b := r.box
	if e := p.verifier.Separate; e != nil {
		if p.name == "" { // later steps need it
			r.close(r.box)
			r.box = nil
		}
		o := r.Box
		o.Image = r.VerifierImages[p.name]
		o.AgentUser, o.VerifierUser = p.verifier.User, p.verifier.User
		var err error
		if b, err = r.start(ctx, strings.TrimSuffix("verifier-"+p.name, "-"), *e, o); err != nil {
			return err
		}
		defer r.close(b)
	}
	if err := r.tests(ctx, b, p, artifacts); err != nil {
		return r.because(ctx, b, "verify", "upload_failed", "infra", fmt.Errorf("bringing the tests: %w", err))
	}
	timeout := scale(p.verifier.Timeout, r.Times.Verifier)
	// In place of the shell, so that a signal which ends them is seen as one.
	command := fmt.Sprintf("exec %s > %s 2>&1", "/tests/test.sh", testsOut)
	if e := p.verifier.Separate; e != nil && e.HasTests {
		command = "chmod +x /tests/test.sh; " + command
	}
	if len(r.VerifierPath) > 0 {
		command = "PATH=" + strings.Join(r.VerifierPath, ":") + ":$PATH; " + command
	}
	exit, err := b.Run(ctx, box.Command{Domain: box.Verifier, Argv: shell(command), Env: r.verifierEnv(p), Timeout: timeout}, session.Streams{})
	if err != nil {
		return r.because(ctx, b, "verify", "session_lost", "infra", err)
	}
	taint := r.found(p.verifier)
	end.Verify = &result.VerifyEnd{}
	if exit.Signal == 0 && !exit.TimedOut {
		end.Verify.ExitCode = &exit.Code
	}
	to := filepath.Join(dir, "verifier")
	var t took
	err = get(ctx, b, box.Verifier, "/logs/verifier", []string{"."}, func(in io.Reader) (err error) {
		t, err = unpack(in, to, logsMost, nil, nil)
		r.left("verifier/", t)
		return err
	})
	switch {
	case exit.TimedOut:
		if err != nil {
			r.warn("what the tests wrote could not be fetched whole: %v", err)
		}
		return r.because(ctx, b, "verify", "", "", Faultf("verify", "verifier_timeout", r.blame(), "--timeout-multiplier, or [verifier] timeout_sec", "the tests were ended after %v", timeout))
	case errors.Is(err, errTooMuch):
		return Faultf("verify", "download_failed", "task", "", "fetching /logs/verifier: %v", err)
	case err != nil:
		return r.because(ctx, b, "verify", "download_failed", "infra", fmt.Errorf("fetching /logs/verifier: %w", err))
	case exit.Signal != 0:
		return r.because(ctx, b, "verify", "", "", Faultf("verify", "reward_missing", "unknown", "", "the tests were ended by signal %d", exit.Signal))
	case !alive(b):
		return r.because(ctx, b, "verify", "session_lost", "infra", b.Err())
	}
	for _, name := range []string{verdict.JSON, verdict.Text} {
		if slices.Contains(t.links, name) { // it was not made here, and must not be passed over
			return Faultf("verify", verdict.Invalid, "task", "", "%s is a link: the tests must write a file", name)
		}
	}
	if err := r.verdict(to, end); err != nil {
		return err
	}
	return taint
}

func alive(b Box) bool {
	select {
	case <-b.Done():
		return false
	default:
		return true
	}
}

// verdict reads what the tests wrote.
func (r *run) verdict(dir string, end *result.StepResult) error {
	v, err := verdict.Read(dir)
	var no *verdict.Error
	if errors.As(err, &no) {
		return Faultf("verify", no.Class, "task", "what the tests said is in verifier/test-stdout.txt", "%s", no.Message)
	} else if err != nil {
		return Faultf("verify", "download_failed", "infra", "", "%v", err)
	}
	for _, note := range v.Notes {
		r.warn("%s", note)
	}
	end.Verify.From = v.From
	end.VerifierResult, end.Reward = &result.VerifierResult{Rewards: v.Rewards}, &v.Reward
	return nil
}

// pytestFiles are where pytest looks for settings: in the folder of the tests,
// and if there are none, in those above it, which are the agent's.
var pytestFiles = []string{"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg"}

// tests brings a part's tests, where the image has them not, and for a verifier
// in a container of its own what the agent made.
func (r *run) tests(ctx context.Context, b Box, p part, artifacts []kept) error {
	own := p.verifier.Separate
	bring := own == nil || !own.HasTests
	dirs := []string{"/logs/verifier"} // a reward that is there is an earlier step's, or the image's
	if bring && (p.name != "" || own != nil) {
		dirs = append(dirs, "/tests")
	}
	said := &lastWords{}
	if exit, err := b.Run(ctx, box.Command{Domain: box.Verifier, Argv: box.Empty(dirs...), Timeout: harness}, session.Streams{Err: said}); err != nil {
		return err
	} else if exit.Code != 0 {
		return fmt.Errorf("emptying %s ended with %d: %s", strings.Join(dirs, " and "), exit.Code, said)
	}
	for _, a := range artifacts {
		f, err := os.Open(a.stream)
		if err != nil {
			return err
		}
		err = b.Put(ctx, box.Verifier, path.Dir(a.source), f)
		f.Close()
		if err != nil {
			return fmt.Errorf("the artifact %s: %w", a.source, err)
		}
	}
	return put(ctx, b, box.Verifier, "/", func(w *tar.Writer) error {
		folders := []entry{{verifierOwn[1:] + "/tmp/", "", 0o777}, {"logs/verifier/", "", 0o777}}
		if own != nil {
			folders = append(folders, entry{"logs/agent/", "", 0o777}, entry{"logs/artifacts/", "", 0o777})
		}
		if err := add(w, folders...); err != nil || !bring {
			return err
		}
		settings := false // of pytest's
		for _, dir := range p.tests {
			if err := pack(w, dir, "tests", "test.sh"); err != nil {
				return err
			}
			settings = settings || slices.ContainsFunc(pytestFiles, func(name string) bool { _, err := os.Lstat(filepath.Join(dir, name)); return err == nil })
		}
		if settings {
			return nil
		}
		return add(w, entry{"tests/pytest.ini", "[pytest]\n", 0o644})
	})
}
