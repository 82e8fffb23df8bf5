package escapes

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fence/test/bed"
	"fence/test/escapes/internal/wire"
)

// TestEscapes_User runs the table again as a user who is pretended: that opens
// nothing: the outcomes are the same.
func TestEscapes_User(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	abi := landlockABI(t)
	var list []wire.Row
	for _, r := range rows {
		list = append(list, wire.Row{Name: r.name, With: r.with})
	}
	b.run, b.more = "user", []string{"--user=1000:1000"}
	for _, arm := range []int{namespace, boxNamespace} {
		b.hold(t, b.drive(t, arm, list), arm, abi, nil, "user")
	}
}

// Whose home is hidden is the caller's, whoever the command is.
func TestUser_HomeIsTheCallers(t *testing.T) {
	bed.Require(t, "users", "site")
	b := build(t)
	home := bed.Person(t).Home
	text := "version = 1\nextends = \"strict\"\n[[open]]\npath = " + strconv.Quote(filepath.Dir(home)) + "\naccess = \"read\"\nwhy = \"a test\"\n"
	with, without := filepath.Join(b.dir, "home.toml"), filepath.Join(b.dir, "open.toml")
	open := "[[open]]\npath = " + strconv.Quote(home) + "\naccess = \"read\"\nwhy = \"the control\"\n"
	for path, text := range map[string]string{with: text, without: text + open} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	inHome := bed.HomeDir(t)
	for _, c := range []struct {
		policy string
		flags  []string
		seen   bool
	}{
		{without, []string{"--user=1000"}, true},
		{with, nil, false},
		{with, []string{"--user=1000"}, false},
		{with, []string{"--user=1000:1000", "--net=loopback"}, false},
	} {
		argv := append([]string{b.fence, "--policy", c.policy}, c.flags...)
		cmd := bed.Command(t, argv[0], append(argv[1:], "--", "test", "-d", inHome)...)
		cmd.Env = slices.DeleteFunc(cmd.Env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") })
		cmd.Dir = "/"
		if out, err := cmd.CombinedOutput(); (err == nil) != c.seen || len(out) > 0 {
			t.Errorf("%s %v: %v, want %t\n%s", filepath.Base(c.policy), c.flags, err, c.seen, out)
		}
	}
}
