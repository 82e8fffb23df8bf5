package escapes

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"fence/test/bed"
	"fence/test/escapes/internal/wire"
)

// TestEscapes_Networks runs the table again with a network of the command's
// own: what it closes stays closed. The outcomes are the same but for those in
// withNetwork.
func TestEscapes_Networks(t *testing.T) {
	bed.Require(t, "images")
	b := build(t)
	abi := landlockABI(t)
	var list []wire.Row
	for _, r := range rows {
		list = append(list, wire.Row{Name: r.name, With: r.with})
	}
	socket := filepath.Join(b.dir, "proxy.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	go http.Serve(l, http.NotFoundHandler())
	for mode, flags := range map[string][2]string{"loopback": {"loopback", "loopback"}, "proxy": {"proxy=" + socket, "proxy"}} {
		for i, arm := range []int{namespace, boxNamespace} {
			b.run, b.more = mode, []string{"--net", flags[i], "--why", "a test of escapes"}
			var bind []string
			if arm == boxNamespace {
				bind = []string{"--bind", socket + ":/.fence/proxy.sock"}
			}
			b.hold(t, b.drive(t, arm, list, bind...), arm, abi, withNetwork, mode)
		}
	}
}

// withNetwork are the steps whose outcome is another where the command has a
// network of its own: sockets can be made, and lead nowhere.
var withNetwork = map[string]string{
	"1": `
		socket   OK | OK | OK | OK
		connect  OK | EACCES | ECONNREFUSED | ECONNREFUSED`,
	"2": `
		socket  OK | OK | OK | OK
		sendto  OK | OK | OK | OK`,
	"3": `
		socket   OK | OK | OK | OK
		connect  OK | EACCES | ECONNREFUSED | ECONNREFUSED`,
	"4": `
		socket  OK | OK | EPROTONOSUPPORT | EPROTONOSUPPORT`,
	"5": `
		socket         OK | OK | OK | OK
		sendto         OK | OK | EOPNOTSUPP | EOPNOTSUPP
		sendmsg        OK | OK | EOPNOTSUPP | EOPNOTSUPP
		connect-later  OK | EACCES | ECONNREFUSED | ECONNREFUSED`,
	"6": `
		socket  OK | OK | OK | OK
		listen  OK | OK | OK | OK`,
	"8": `
		raw   OK | EPERM | ESOCKTNOSUPPORT | ESOCKTNOSUPPORT
		ping  OK | OK | EPROTONOSUPPORT | EPROTONOSUPPORT`,
	"9": `
		2-to-44-but-netlink  OK | OK | EAFNOSUPPORT not at 3 | EAFNOSUPPORT`,
	"10": `
		socket   OK | OK | OK | OK
		connect  OK | EACCES | ECONNREFUSED | ECONNREFUSED
		type     OK | OK | OK | OK`,
	"38": `
		socket  OK | OK | OK | OK`,
	"52": `
		socket  OK | OK | OK | OK`,
	"62": `
		socket  OK | OK | OK | OK`,
}
