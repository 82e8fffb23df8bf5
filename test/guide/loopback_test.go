package guide

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fence/test/bed"
)

// A task's own servers work, in the container and on the node, on every
// address that means this machine; the host's and the node's own do not.
func TestLoopback(t *testing.T) {
	p := newPlace(t)
	p.image("workloads")
	host, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	go http.Serve(host, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "host") }))
	port := host.Addr().(*net.TCPAddr).Port
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	urls := []string{fmt.Sprintf("http://127.0.0.1:%d/", port), fmt.Sprintf("http://localhost:%d/", port)}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			urls = append(urls, fmt.Sprintf("http://%s:%d/", ip.IP, port))
		}
	}
	reach := `for u in ` + strings.Join(urls, " ") + `; do curl -s --noproxy "*" -m 10 $u || echo -n no; echo; done`
	control := p.sh(`eval "$(fence env)"; apptainer exec img.sif sh -c '` + reach + `'`)
	if want := strings.Repeat("host\n", len(urls)); control.stdout != want {
		t.Fatalf("control: %q, want %q\n%s", control.stdout, want, control.stderr)
	}

	// The script is the task: a server bound to each kind of address, asked by each name it has.
	p.write("serve.py", webServers+`
a, b = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
a.bind(("127.0.0.1", 5300)); b.sendto(b"datagram", ("127.0.0.1", 5300)); print(a.recv(100).decode())
for family, kind, proto in ((socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_INET, socket.SOCK_STREAM, 262), (socket.AF_PACKET, socket.SOCK_RAW, 0)):
    try:
        socket.socket(family, kind, proto); print("open")
    except OSError as e:
        print("refused")
for to in ("192.0.2.1", "198.51.100.1"):
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect((to, 53)); print("a route")
    except OSError as e:
        print(e.strerror)
`, 0o644)
	const want = `127.0.0.1 127.0.0.1 200
127.0.0.1 localhost 200
0.0.0.0 127.0.0.1 200
0.0.0.0 localhost 200
0.0.0.0 127.9.8.7 200
:: ::1 200
:: 127.0.0.1 200
:: localhost 200
::1 ::1 200
datagram
refused
refused
refused
Network is unreachable
Network is unreachable
`
	for name, start := range map[string]string{
		"container": `eval "$(fence env)"; apptainer exec --bind $PWD/serve.py:/serve.py img.sif /.fence/fence --policy loopback --read /serve.py --why "the task" -- `,
		"node":      `fence --net loopback --read $PWD/serve.py --why "the task" -- `,
	} {
		script := "/serve.py"
		if name == "node" {
			script = p.path("serve.py")
		}
		if r := p.ends(p.sh(start+`python3 `+script), 0); r.stdout != want {
			t.Errorf("%s: the task's own servers:\n%s\nwant\n%s%s", name, r.stdout, want, r.stderr)
		}
		if r := p.ends(p.sh(start+`sh -c '`+reach+`'`), 0); r.stdout != strings.Repeat("no\n", len(urls)) {
			t.Errorf("%s: the host's server: %q", name, r.stdout)
		}
		// Two at once have the same port.
		if r := p.ends(p.sh(`(`+start+`python3 `+script+` >one 2>err1) & `+start+`python3 `+script+` >two 2>err2; wait`), 0); p.read("one") != want || p.read("two") != want {
			t.Errorf("%s: two at once: exit code %d\n%s\n%s", name, r.code, p.read("one")+p.read("err1"), p.read("two")+p.read("err2"))
		}
	}
}

// Where no network namespace is to be had, a command that wants none runs.
func TestLoopback_NoNamespace(t *testing.T) {
	p := newPlace(t)
	// The namespace is tried by a thread of its own: whichever is faster, standard input is not lost.
	if r := p.ends(p.on([]string{"max_net_namespaces=0"}, `echo here >in; for i in $(seq 200); do fence -- cat <in; done | sort | uniq -c`), 0); strings.TrimSpace(r.stdout) != "200 here" {
		t.Errorf("standard input of 200 commands: %q\n%s", r.stdout, r.stderr)
	}
}

// 127.0.0.1:3128 leads to the proxy's socket, and nowhere else leads anywhere.
// The proxy here answers everything itself and says what it was asked.
func TestProxy(t *testing.T) {
	p := newPlace(t)
	p.image("workloads")
	socket := standInProxy(t).path
	for name, start := range map[string]string{
		"container": `eval "$(fence env)"; apptainer exec --bind ` + socket + `:/.fence/proxy.sock img.sif /.fence/fence --policy proxy -- `,
		"node":      `fence --net proxy=` + socket + ` --why "a test" -- `,
	} {
		script := `curl -sS http://example.test/a; python3 -c "
import urllib.request
print(urllib.request.urlopen(\"http://example.test/c\").read().decode(), end=\"\")"; curl -sS --noproxy "*" -m 10 http://192.0.2.1/ || echo no other way`
		const want = "proxy was asked GET http://example.test/a\nproxy was asked GET http://example.test/c\nno other way\n"
		if r := p.ends(p.sh(start+"sh -c '"+script+"'"), 0); r.stdout != want {
			t.Errorf("%s: %q, want %q\n%s", name, r.stdout, want, r.stderr)
		}
		// A command that waits for all its children does not wait for the way to the proxy.
		if r := p.ends(p.sh(start+`python3 -c "
import os
try:
    os.wait(); print(\"a child\")
except ChildProcessError:
    print(\"no child\")"`), 0); r.stdout != "no child\n" {
			t.Errorf("%s: os.wait: %q", name, r.stdout)
		}
	}
	// It ends with the command.
	deadline := time.Now().Add(30 * time.Second)
	for {
		r := p.sh(`pgrep -u $(id -u) -f "^fence relay-serve" || echo none`)
		if r.stdout == "none\n" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a relay is left: %s", r.stdout)
		}
	}
	for says, flags := range map[string]string{
		"there is no such socket\nhint: start the proxy first": `--net proxy=` + socket + `.none --why w`,
		"it is not a socket": `--net proxy=/etc/passwd --why w`,
	} {
		if r := p.sh(`fence ` + flags + ` -- echo ran`); r.code != 125 || r.stdout != "" || !strings.Contains(r.stderr, says) {
			t.Errorf("%s: exit code %d, %q\n%s", flags, r.code, r.stdout, r.stderr)
		}
	}
}

// The gate knows the networks: what strict wants shut stays shut, and the
// command's own servers work. Without the fence it says no.
func TestNetworks_Gate(t *testing.T) {
	p := newPlace(t)
	p.listener()
	socket := standInProxy(t).path // it lets no tunnel through
	const probe, bind = `/.fence/probe --canary - `, `--bind /proj/team --bind $PWD/bin:/.fence:ro `
	for mode, with := range map[string]string{"loopback": "", "proxy": "--proxy /.fence/proxy.sock"} {
		p.ends(p.sh(`apptainer exec `+bind+` --bind `+socket+`:/srv/proxy.sock img.sif `+probe+strings.ReplaceAll(with, "/.fence", "/srv")+` <c.json >before.json`), 0, 3)
		p.ends(p.sh(`eval "$(fence env)"; apptainer exec --bind `+socket+`:/.fence/proxy.sock img.sif /.fence/fence --policy `+mode+` -- `+probe+with+` <c.json >after.json`), 0, 3)
		if r := p.sh(`probe gate after.json --before before.json --expect ` + mode); r.code != 0 {
			t.Errorf("%s: exit code %d\n%s%s", mode, r.code, r.stdout, r.stderr)
		}
		if r := p.sh(`probe gate before.json --expect ` + mode); r.code != 1 {
			t.Errorf("%s, without the fence: exit code %d", mode, r.code)
		}
		// Another mode than the one expected is not let pass.
		if r := p.sh(`probe gate after.json --before before.json --expect strict`); r.code != 1 || !strings.Contains(r.stdout+r.stderr, "net.bind") {
			t.Errorf("%s is let pass as strict: exit code %d", mode, r.code)
		}
	}
}

// What ordinary clients ask for arrives at the proxy, by nothing but the
// variables that mode proxy sets, in a network namespace and where connections
// have a supervisor. The proxy here answers itself, so that no name is looked
// up by anyone.
func TestProxy_Clients(t *testing.T) {
	bed.Require(t, "workloads")
	p := newPlace(t)
	script := func(name, text string) string {
		p.write(name, text, 0o644)
		return "--bind $PWD/" + name + ":/" + name + " "
	}
	binds := script("Get.java", `
import java.io.*;
import java.net.*;
public class Get {
    public static void main(String[] a) throws Exception {
        try (InputStream in = new URL("http://java.test/x").openStream()) { System.out.print(new String(in.readAllBytes())); }
    }
}`) + script("aio.py", `
import asyncio, os, urllib.parse
async def main():
    proxy = urllib.parse.urlsplit(os.environ["http_proxy"])
    r, w = await asyncio.open_connection(proxy.hostname, proxy.port)
    w.write(b"CONNECT asyncio.test:443 HTTP/1.1\r\nHost: asyncio.test:443\r\n\r\n")
    print((await r.readline()).decode().strip())
asyncio.run(main())`) + script("get.js", `
const http = require("http"), proxy = new URL(process.env.http_proxy); // this version of node does not look there itself
http.get({host: proxy.hostname, port: proxy.port, path: "http://node.test/x"}, (r) => r.pipe(process.stdout));`)
	clients := []struct{ name, run, asked string }{
		{"curl", `curl -sS http://curl.test/x`, "GET http://curl.test/x"},
		{"curl, https", `curl -sS https://curl.test/x`, "CONNECT curl.test:443"},
		{"wget", `wget -q -O - http://wget.test/x`, "GET http://wget.test/x"},
		{"wget, https", `wget -q -O - https://wget.test/x`, "CONNECT wget.test:443"},
		{"git", `git ls-remote http://git.test/r.git`, "GET http://git.test/r.git/info/refs"},
		{"pip", `pip download -q --no-deps --disable-pip-version-check --index-url http://pip.test/simple --trusted-host pip.test nosuch -d /tmp`, "GET http://pip.test/simple/nosuch/"},
		{"python", `python3 -c "import urllib.request; print(urllib.request.urlopen('http://python.test/x').read().decode())"`, "GET http://python.test/x"},
		{"asyncio", `python3 /aio.py`, "CONNECT asyncio.test:443"},
		{"node", `node /get.js`, "GET http://node.test/x"},
		{"npm", `npm view --registry http://npm.test --fetch-retries=0 nosuch`, "GET http://npm.test/nosuch"},
		{"go", `cd /tmp && GOFLAGS=-mod=mod GOCACHE=/tmp/c GOMODCACHE=/tmp/m GONOSUMDB=* GOPROXY=http://go.test go list -m example.test/x@v1.0.0`, "GET http://go.test/example.test/x/@v/v1.0.0.info"},
		{"cargo", `mkdir -p /tmp/c/src && cd /tmp/c && touch src/lib.rs && printf '[package]\nname="c"\nversion="0.1.0"\n[dependencies]\nx={version="1",registry="r"}\n' >Cargo.toml && mkdir .cargo && printf '[registries.r]\nindex="http://cargo.test/r.git"\n' >.cargo/config.toml && CARGO_HOME=/tmp/h cargo metadata`, "GET http://cargo.test/r.git/info/refs"},
		{"java", `java /Get.java`, "GET http://java.test/x"},
		{"apt", `apt-get -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=/dev/null -o Debug::NoLocking=1 -o Dir::Cache=/tmp download --print-uris nosuch; /usr/lib/apt/apt-helper download-file http://apt.test/x /tmp/x`, "GET http://apt.test/x"},
	}
	for form, limits := range map[string][]string{"namespace": nil, "supervised": {"max_net_namespaces=0"}} {
		socket := standInProxy(t)
		for _, tc := range clients {
			t.Run(form+", "+tc.name, func(t *testing.T) {
				p := place{t, p.dir}
				image := "workloads"
				if strings.HasPrefix(tc.name, "wget") {
					image = "debian"
				}
				p.write("run.sh", tc.run+"\n", 0o644)
				r := p.on(limits, `eval "$(fence env)"; apptainer exec `+binds+`--bind $PWD/run.sh:/run.sh --bind `+socket.path+`:/.fence/proxy.sock `+bed.Image(image)+
					` /.fence/fence --policy proxy --read /run.sh --read /Get.java --read /aio.py --read /get.js --why "the test's" -- sh /run.sh </dev/null`)
				if !socket.was(tc.asked) {
					t.Errorf("the proxy was not asked %s, but %q\n%s%s", tc.asked, socket.all(), r.stdout, r.stderr)
				}
			})
		}
	}
}

// proxy is a stand-in: it keeps what it was asked and answers everything itself.
type proxy struct {
	path  string
	lock  sync.Mutex
	asked []string
}

func standInProxy(t *testing.T) *proxy {
	t.Helper()
	dir, err := os.MkdirTemp("", "proxy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &proxy{path: filepath.Join(dir, "p.sock")}
	l, err := net.Listen("unix", p.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	uid, gid, _ := bed.User(t)
	for _, path := range []string{dir, p.path} {
		if err := os.Chown(path, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := r.Method + " " + r.URL.String()
		if r.Method == http.MethodConnect {
			asked = "CONNECT " + r.Host
		}
		p.lock.Lock()
		p.asked = append(p.asked, asked)
		p.lock.Unlock()
		if r.Method == http.MethodConnect {
			http.Error(w, "not on the list", http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, "proxy was asked %s\n", asked)
	}))
	return p
}

func (p *proxy) all() []string {
	p.lock.Lock()
	defer p.lock.Unlock()
	return slices.Clone(p.asked)
}

// was reports whether the proxy was asked this, whatever the query.
func (p *proxy) was(asked string) bool {
	return slices.ContainsFunc(p.all(), func(s string) bool { before, _, _ := strings.Cut(s, "?"); return before == asked })
}

// webServers is Python: a server bound to each kind of address, asked by each
// name that it has.
const webServers = `
import http.client, http.server, socket, threading
class V6(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
for bind, names in (("127.0.0.1", ["127.0.0.1", "localhost"]), ("0.0.0.0", ["127.0.0.1", "localhost", "127.9.8.7"]), ("::", ["::1", "127.0.0.1", "localhost"]), ("::1", ["::1"])):
    kind = V6 if ":" in bind else http.server.ThreadingHTTPServer
    server = kind((bind, 8080), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in names:
        c = http.client.HTTPConnection(name, 8080, timeout=20)
        c.request("GET", "/")
        print(bind, name, c.getresponse().status)
    server.shutdown(); server.server_close()`
