package main

import (
	"path/filepath"
	"strings"
	"testing"

	"fence/test/bed"
)

// The block that README.md begins with, as a person types it in a batch job,
// from a folder on shared storage.
func TestBed_FirstBlock(t *testing.T) {
	out := inJob(t, `
		eval "$(fence env)"
		probe > host.json
		apptainer exec $IMG /.fence/probe > before.json
		apptainer exec $IMG /.fence/fence -- /.fence/probe > after.json
		probe diff before.json after.json && probe gate after.json --before before.json --expect strict
		echo "ended $?"
		probe diff host.json before.json after.json --markdown
	`)
	for _, want := range []string{
		"ok  TCP connection to an outside host ",
		"ok  UDP socket (DNS)                           allowed      denied\n",
		"ok  System-call filter                         none         active\n",
		"ok  Writing inside the task's own directories  works        works\n",
		"answer: yes - the five rows are as a fence must leave them, and nothing opened\n",
		"0 could not tell)\nended 0\n",
		"| Shared project filesystem | visible | not mounted | not mounted |\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

// The guide's own table: what the site's container shows, and what the fence
// leaves of it, proven by a canary.
func TestBed_GuidesTable(t *testing.T) {
	out := inJob(t, `
		probe listen --canary canary.json 2>/dev/null & canary=$!
		until test -e canary.json; do sleep 0.1; done
		apptainer exec -B $TOOLS:/.fence $IMG /.fence/probe --canary - < canary.json > before.json
		eval "$(fence env)"
		apptainer exec $IMG /.fence/fence -- /.fence/probe --canary - --shared `+bed.Project+` < canary.json > after.json
		probe diff before.json after.json && probe gate after.json --before before.json --expect strict
		echo "ended $?"
		cp before.json wrong.json
		code=0; probe gate wrong.json --before before.json --expect strict >/dev/null || code=$?
		echo "without the fence $code"
		kill $canary; wait $canary
		test ! -e canary.json
	`)
	for _, want := range []string{
		"ok  Shared project filesystem                  visible  not mounted\n",
		"ok  TCP connection to an outside host          open     denied\n",
		"net.tcp.canary[canary:127.0.0.1",
		"0 could not tell)\nended 0\nwithout the fence 1\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

// inJob runs a script as the ordinary user, in a folder on shared storage,
// with fence, probe and apptainer in PATH.
func inJob(t *testing.T, script string) string {
	t.Helper()
	bed.Require(t, "apptainer", "images", "site")
	tools := filepath.Dir(bed.Bin(t, "fence"))
	if dir := filepath.Dir(bed.Bin(t, "probe")); dir != tools {
		t.Fatalf("fence is in %s and probe in %s", tools, dir)
	}
	cmd := bed.Command(t, "bash", "-euc", "export PATH="+tools+":$PATH TOOLS="+tools+" IMG="+bed.Image("debian")+"\n"+script)
	cmd.Dir = bed.SharedDir(t)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, stderr.String())
	}
	return string(out)
}
