package box

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"fence/pkg/apptainer"
	"fence/pkg/result"
	"fence/pkg/session"
)

// Error is a box that did not start, or has ended. Class and Cause are those of
// a result.Fault; of a limit the cause is "agent": whoever ran then.
type Error struct {
	Class, Cause string
	Message      string
	Hint         string // what the person can do, "" if nothing is known
}

func (e *Error) Error() string { return e.Message }

// full says that an error is of a disk without room.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

func startError(err error) *Error {
	if full(err) {
		return scratchFull(err.Error())
	}
	return &Error{Class: "start_failed", Cause: "infra", Message: err.Error()}
}

func scratchFull(text string) *Error {
	return &Error{Class: "scratch_full", Cause: "infra", Message: "the disk for containers is full: " + text, Hint: "make room there, or name another: --scratch DIR"}
}

// words are what a container's last words say of why it has ended.
var words = []struct{ say, class, cause, hint string }{
	{"no space left", "scratch_full", "infra", "make room there, or name another: --scratch DIR"},
	{"disk quota exceeded", "scratch_full", "infra", "make room there, or name another: --scratch DIR"},
	{"stat /.fence/fence: no such file", "start_failed", "infra", `the site's apptainer.conf must not have "user bind control = no"`},
	{"is opened by the policy and does not exist", "not_isolated", "infra", "--open and --policy name paths of the container: mend it, or leave it out"},
	{"user namespace", "start_failed", "infra", "they may be switched off: sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns"},
	{"unknown flag: --", "start_failed", "infra", "Apptainer 1.2 or later is needed"},
	{"memory required by task is not available", "start_failed", "infra", "the Slurm job has less memory than --memory or the task's memory_mb: sbatch --mem, or a smaller --memory"},
	{"not fenced", "not_isolated", "infra", "fence check says what this node can enforce"},
	{"cannot be hidden", "not_isolated", "infra", "fence check says what this node can enforce"},
}

// refused is why a container has not come up.
func (b *Box) refused() *Error {
	e := Error{Class: "start_failed", Cause: "infra", Message: apptainer.LastWords(b.said.String(), b.end)}
	var why *Error
	if errors.As(b.err, &why) && why.Class != "container_killed" && why.Class != "session_lost" {
		e = *why
	}
	e.Message = fmt.Sprintf("the container of %s did not start: %s", b.o.Image, e.Message)
	return &e
}

// why is the reason of the container's end: begin is why it could not be
// started, end how Apptainer ended, cause who ended it here.
func (b *Box) why(begin, end, cause error) error {
	var e *Error
	switch {
	case errors.Is(cause, errClosed):
		return nil
	case errors.As(cause, &e):
		return e
	case begin != nil:
		return &Error{Class: "start_failed", Cause: "infra", Message: fmt.Sprintf("starting %s: %v", b.o.Apptainer, begin)}
	}
	if said := oomSaid.FindString(b.said.String()); said != "" && b.o.Step != nil {
		return limit("memory_limit", "Slurm ended the step of the container: %s", strings.TrimSpace(said))
	}
	if _, err := os.Stat(b.o.in("overlay")); err != nil {
		return &Error{Class: "scratch_gone", Cause: "infra", Message: fmt.Sprintf("the folder of a container is gone: %v", err), Hint: "something removes files there; name another place: --scratch DIR"}
	}
	last := apptainer.LastWords(b.said.String(), end)
	for _, w := range words {
		if strings.Contains(strings.ToLower(last), w.say) {
			return &Error{Class: w.class, Cause: w.cause, Message: last, Hint: w.hint}
		}
	}
	// It does not end by itself without a word.
	if !strings.Contains(b.said.String(), "fence: ") {
		return &Error{Class: "container_killed", Cause: "infra", Message: "somebody ended the container, or the session in it: " + last, Hint: "where nobody did, the node may have been short of memory: see its kernel's log"}
	}
	return &Error{Class: "session_lost", Cause: "unknown", Message: "the container's session has ended: " + last}
}

// explain is what the session's error means for the box.
func (b *Box) explain(err error, domain string) error {
	if err == nil {
		return nil
	}
	b.noRoom() // which may be why
	if why := b.ended(); why != nil {
		return why
	}
	var e *session.Error
	if !errors.As(err, &e) || e.Code != session.CodeLost {
		return err
	}
	// The session, or the domain alone? Tools end with this code, too.
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	st, lost := b.client.Status(ctx)
	if lost != nil || slices.ContainsFunc(st.Domains, func(d session.DomainStatus) bool { return d.Why == "the session ended" }) {
		b.await()
		if b.err == nil {
			return &Error{Class: "stopped", Cause: "infra", Message: "the container was closed meanwhile"}
		}
		return b.err
	}
	for _, d := range st.Domains {
		if d.Name == domain && d.State != "alive" {
			return &Error{Class: "session_lost", Cause: "agent", Message: fmt.Sprintf("the domain %s is %s: %s", d.Name, d.State, d.Why), Hint: "its commands have killed, stopped or filled the process that starts them"}
		}
	}
	return err
}

// Isolation is what holds in the box. Gate and Asked are the caller's to fill in.
func (b *Box) Isolation() result.Isolation {
	is := result.Isolation{Opened: b.o.opened(), Limits: "watchdog"}
	if b.o.Step != nil {
		is.Limits = "step"
	}
	for _, d := range b.status.Domains {
		var f struct{ Policy, Form, Network string }
		_ = json.Unmarshal(d.Fence, &f)
		dom := result.Domain{Policy: f.Policy, Form: f.Form, Network: f.Network}
		switch d.Name {
		case Agent:
			is.Agent, is.Below, is.Beside = dom, d.Below == Verifier, d.Beside
		case Verifier:
			is.Verifier = dom
		default: // another user of the agent's side
			is.Below, is.Beside = is.Below && d.Below == Verifier, cmp.Or(is.Beside, d.Beside)
		}
	}
	return is
}

// limit is why a box is ended that went beyond one.
func limit(class, format string, args ...any) *Error {
	return &Error{Class: class, Cause: "agent", Message: fmt.Sprintf(format, args...), Hint: "a run may give more: --memory, --processes, --disk"}
}
