package main

import (
	"strings"
	"testing"

	"fence/pkg/nodecheck"
)

// On a node without namespaces each reason is said once, in 80 columns.
func TestCheck_Print(t *testing.T) {
	none := nodecheck.Tried{Errno: "ENOSPC", Why: "user namespaces are switched off by user.max_user_namespaces=0; ask the operators to allow it"}
	visible := "/proj/team is visible here and must be hidden, and this node does not let fence cover it (" + none.String() + ")"
	c := Check{Node: nodecheck.Node{UserNS: none, MountNS: none, NetNS: none, IPCNS: none, PIDNS: nodecheck.Tried{OK: true}}, Policies: []CanRun{
		{Policy: "strict", Why: []string{visible, "/tmp is the host's"}},
		{Policy: "build", Why: []string{visible, "/tmp is the host's"}},
		{Policy: "verifier", Why: []string{visible, "another reason"}},
		{Policy: "model-server", OK: true, Form: "bare", Lost: []string{"no new terminals"}},
	}}
	var b strings.Builder
	c.print(&b)
	const namespaces = `user ns         no: ENOSPC, user namespaces are switched off by
                user.max_user_namespaces=0; ask the operators to allow it
mount ns        no, as user ns
network ns      no, as user ns
IPC ns          no, as user ns
PID ns          yes
`
	const policies = `
strict        cannot run here
              - /proj/team is visible here and must be hidden, and this node
                does not let fence cover it (ENOSPC, user namespaces are
                switched off by user.max_user_namespaces=0; ask the operators to
                allow it)
              - /tmp is the host's
build         cannot run here, see above
verifier      cannot run here, see above
              - another reason
model-server  can run here, bare form
              - no new terminals
`
	if got := b.String(); !strings.Contains(got, namespaces) || !strings.HasSuffix(got, policies) {
		t.Errorf("it says\n%s\nwant in it\n%s%s", got, namespaces, policies)
	}
	for line := range strings.Lines(b.String()) {
		if len(line) > 81 {
			t.Errorf("wider than 80 columns: %s", line)
		}
	}
}
