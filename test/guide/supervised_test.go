package guide

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"fence/test/bed"
)

// withoutNetns is a command on a node that gives no network namespaces, as a person starts it.
type withoutNetns struct {
	name, start string   // start ends where the command begins
	limits      []string // of the node
	file        func(name string) string
}

// everyForm is the node itself and a container, in the namespace form and in the bare one. The files
// are shown to the command.
func (p place) everyForm(flags string, files ...string) []withoutNetns {
	accept := ` --accept landlock-hide --accept host-tmp --accept sockets --why "the node" `
	var binds, own, inside string
	for _, f := range files {
		binds += " --bind $PWD/" + f + ":/" + f
		own += " --read $PWD/" + f
		inside += " --read /" + f
	}
	if len(files) > 0 {
		own, inside = own+` --why "the task"`, inside+` --why "the task"`
	}
	box := `eval "$(fence env)"; apptainer exec` + binds + ` img.sif /.fence/fence ` + flags + inside
	node := `fence ` + flags + own
	in := func(name string) string { return "/" + name }
	return []withoutNetns{
		{"node", node + " -- ", []string{"max_net_namespaces=0"}, p.path},
		{"node, bare form", node + accept + " -- ", []string{"max_user_namespaces=0"}, p.path},
		{"container", box + " -- ", []string{"max_net_namespaces=0"}, in},
		{"container, bare form", box + " -- ", []string{"max_user_namespaces=1"}, in},
	}
}

// supervisedServers is asyncio on "localhost", and what is no TCP.
const supervisedServers = `
import asyncio, errno, http.client, http.server, os, socket, threading
async def talk():
    async def echo(r, w):
        w.write(await r.readline()); await w.drain(); w.close()
    s = await asyncio.start_server(echo, ["127.0.0.1", "::1"], 8081) # as "localhost" is, on many
    for name in ("127.0.0.1", "::1", "localhost"):
        r, w = await asyncio.open_connection(name, 8081)
        w.write(b"asyncio\n"); print((await r.readline()).decode().strip(), name, len(s.sockets))
        w.close()
    try:
        await asyncio.open_connection("127.0.0.1", 8082)
    except OSError as e:
        print(errno.errorcode[e.errno])
asyncio.run(talk())
s = socket.socket(); s.listen(); print("listen without bind", s.getsockname()[0].startswith("127."), s.getsockname()[0] != "127.0.0.1")
c = socket.create_connection(("127.0.0.1", s.getsockname()[1])); a = s.accept(); s.close()
try:
    c.connect(("127.0.0.1", 1))
except OSError as e:
    print(e.strerror)
for to in (("192.0.2.1", 80), ("127.0.0.1", 8083)):
    try:
        socket.create_connection(to)
    except OSError as e:
        print(e.strerror)
for at in (("192.0.2.1", 80), ("127.0.0.1", 80)):
    try:
        socket.socket().bind(at)
    except OSError as e:
        print(e.strerror)
a, b = socket.socketpair(); a.send(b"unix"); print(b.recv(9).decode())
u = socket.socket(socket.AF_UNIX); name = "\0" + os.urandom(8).hex(); u.bind(name); u.listen()
v = socket.socket(socket.AF_UNIX); v.connect(name); u.accept()[0].send(b"abstract"); print(v.recv(9).decode())
`

const supervisedAnswers = `127.0.0.1 127.0.0.1 200
127.0.0.1 localhost 200
0.0.0.0 127.0.0.1 200
0.0.0.0 localhost 200
0.0.0.0 127.9.8.7 200
:: ::1 200
:: 127.0.0.1 200
:: localhost 200
::1 ::1 200
asyncio 127.0.0.1 2
asyncio ::1 2
asyncio localhost 2
ECONNREFUSED
listen without bind True True
Transport endpoint is already connected
Network is unreachable
Connection refused
Cannot assign requested address
Permission denied
unix
abstract
`

// On a node without network namespaces a task's own servers work, too, and the host's do not; two at
// once have the same port, and status, explain and check say what is lost.
func TestSupervised(t *testing.T) {
	p := newPlace(t)
	p.image("workloads")
	host, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	go http.Serve(host, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "host") }))
	reach := fmt.Sprintf(`curl -s --noproxy "*" -m 10 http://127.0.0.1:%d/ || echo -n no`, host.Addr().(*net.TCPAddr).Port)
	if control := p.sh(`eval "$(fence env)"; apptainer exec img.sif sh -c '` + reach + `'`); control.stdout != "host" {
		t.Fatalf("control: %q\n%s", control.stdout, control.stderr)
	}
	p.write("serve.py", webServers+supervisedServers, 0o644)
	for _, f := range p.everyForm("--net loopback", "serve.py") {
		t.Run(f.name, func(t *testing.T) {
			p := place{t, p.dir}
			run := f.start + `python3 ` + f.file("serve.py")
			if r := p.ends(p.on(f.limits, run), 0); r.stdout != supervisedAnswers {
				t.Errorf("the task's own servers:\n%s\nwant\n%s%s", r.stdout, supervisedAnswers, r.stderr)
			}
			if r := p.ends(p.on(f.limits, f.start+`sh -c '`+reach+`'`), 0); r.stdout != "no" {
				t.Errorf("the host's server: %q", r.stdout)
			}
			if f.limits[0] == "max_user_namespaces=1" {
				return // two containers take two
			}
			p.ends(p.on(f.limits, `(`+run+` >one 2>err1) & `+run+` >two 2>err2; wait`), 0)
			if p.read("one") != supervisedAnswers || p.read("two") != supervisedAnswers {
				t.Errorf("two at once:\n%s\n%s", p.read("one")+p.read("err1"), p.read("two")+p.read("err2"))
			}
		})
	}
	for words, script := range map[string]string{
		"\nlost         its servers listen on an address of 127.0.0.0/8 to which all users of the node can connect, a port that the node has on all addresses is in use, and UDP and shared ports (SO_REUSEPORT) are closed": `fence explain --net loopback`,
		"\nnetwork      loopback, by a supervisor\n": `fence explain --net loopback`,
		"its servers listen on an address of":        `fence check`,
		`"its servers listen on an address of`:       `fence --net loopback --status-fd 1 -- true`,
	} {
		if r := p.ends(p.on([]string{"max_net_namespaces=0"}, script), 0); !strings.Contains(r.stdout, words) {
			t.Errorf("%s does not say %q:\n%s", script, words, r.stdout)
		}
	}
	// The policy is read once: it may come from a pipe.
	if r := p.ends(p.on([]string{"max_net_namespaces=0"}, `fence --policy <(fence policies loopback) --status-fd 1 -- true`), 0); !strings.Contains(r.stdout, `"network":"loopback"`) {
		t.Errorf("a policy from a pipe: %s\n%s", r.stdout, r.stderr)
	}
}

// In other languages, with their own ways to listen and to connect.
func TestSupervised_Languages(t *testing.T) {
	p := newPlace(t)
	p.image("workloads")
	p.write("serve.js", `
const http = require("http");
const ask = (host) => new Promise((ok, no) => http.get({host, port: 8080, path: "/"}, (r) => { r.resume(); ok(r.statusCode); }).on("error", no));
(async () => {
  for (const [bind, names] of [[undefined, ["localhost", "127.0.0.1", "::1"]], ["127.0.0.1", ["127.0.0.1"]], ["localhost", ["localhost"]]]) {
    const s = http.createServer((q, a) => a.end("x"));
    await new Promise((ok) => s.listen(8080, bind, ok));
    for (const n of names) console.log("node", bind, n, await ask(n));
    await new Promise((ok) => s.close(ok));
  }
})();
`, 0o644)
	p.write("serve.go", `package main
import ("fmt"; "net"; "net/http")
func main() {
	for _, at := range []string{":8080", "127.0.0.1:8080", "localhost:8080", "[::1]:8080"} {
		l, err := net.Listen("tcp", at)
		if err != nil { panic(err) }
		go http.Serve(l, http.NotFoundHandler())
		name := at
		if at[0] == ':' { name = "localhost" + at }
		r, err := http.Get("http://" + name + "/")
		if err != nil { panic(err) }
		r.Body.Close()
		fmt.Println("go", at, r.StatusCode)
		l.Close()
	}
}
`, 0o644)
	p.write("Serve.java", `
import java.io.*; import java.net.*; import java.nio.*; import java.nio.channels.*;
class Serve {
	public static void main(String[] a) throws Exception {
		for (String at : new String[]{"127.0.0.1", "0.0.0.0", "::", "localhost"})
			try (ServerSocket s = new ServerSocket(8080, 50, InetAddress.getByName(at))) {
				Thread t = new Thread(() -> { try { s.accept().getOutputStream().write('x'); } catch (IOException e) { System.out.println(e); } });
				t.start();
				try (Socket c = new Socket("localhost", 8080)) { System.out.println("java " + at + " " + (char) c.getInputStream().read()); }
				t.join();
			}
		ServerSocketChannel s = ServerSocketChannel.open().bind(new InetSocketAddress(8081));
		SocketChannel c = SocketChannel.open();
		c.configureBlocking(false);
		Selector sel = Selector.open();
		c.register(sel, SelectionKey.OP_CONNECT);
		if (!c.connect(new InetSocketAddress("127.0.0.1", 8081))) { sel.select(); c.finishConnect(); }
		System.out.println("java nio " + (s.accept() != null));
	}
}
`, 0o644)
	want := `node undefined localhost 200
node undefined 127.0.0.1 200
node undefined ::1 200
node 127.0.0.1 127.0.0.1 200
node localhost localhost 200
go :8080 404
go 127.0.0.1:8080 404
go localhost:8080 404
go [::1]:8080 404
java 127.0.0.1 x
java 0.0.0.0 x
java :: x
java localhost x
java nio true
`
	// Compiled without a fence: that is not what is asked here.
	p.ok(p.sh(`eval "$(fence env)"; apptainer exec --bind $PWD:/task img.sif sh -c 'cd /tmp && export HOME=/tmp GOCACHE=/tmp/c && go build -o /task/serve-go /task/serve.go && javac -17 -proc:none -d /task /task/Serve.java'`))
	for _, f := range p.everyForm("--net loopback", "serve.js", "serve-go", "Serve.class") {
		if strings.HasPrefix(f.name, "node") || !full() && strings.HasSuffix(f.name, "bare form") {
			continue // the programs are the image's
		}
		if r := p.ends(p.on(f.limits, f.start+`sh -c 'node /serve.js && /serve-go && java -Xmx200m -cp / Serve'`), 0); r.stdout != want {
			t.Errorf("%s:\n%s\nwant\n%s%s", f.name, r.stdout, want, r.stderr)
		}
	}
}

// The way to the proxy is there too. It is the session's alone: another user of the node who connects
// to it, and the same user outside, are sent away.
func TestSupervised_Proxy(t *testing.T) {
	p := newPlace(t)
	p.image("workloads")
	proxy := standInProxy(t)
	p.write("ask.py", `
import os, subprocess, sys, urllib.request
print(urllib.request.urlopen("http://example.test/a").read().decode(), end="")
print(subprocess.run(["curl", "-sS", "http://example.test/b"], capture_output=True, text=True).stdout, end="")
for line in open("/proc/net/tcp"):
    f = line.split()
    if f[3] == "0A" and f[1].endswith(":0C38"):
        print(".".join(str(int(f[1][i:i+2], 16)) for i in (6, 4, 2, 0)), flush=True)
sys.stdin.readline()
print(urllib.request.urlopen("http://example.test/c").read().decode(), end="")
`, 0o644)
	socket := proxy.path
	for _, f := range p.everyForm(`--net proxy=/.fence/proxy.sock --why "the way out"`, "ask.py") {
		start := strings.Replace(f.start, "apptainer exec", "apptainer exec --bind "+socket+":/.fence/proxy.sock", 1)
		if strings.HasPrefix(f.name, "node") {
			start = strings.Replace(start, "/.fence/proxy.sock", socket, 1)
		}
		t.Run(f.name, func(t *testing.T) {
			p := place{t, p.dir}
			cmd := p.here(bed.Limited(t, f.limits, "bash", "-c", start+"python3 "+f.file("ask.py")))
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			var said strings.Builder
			cmd.Stderr = &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var a, b, asked, ip string
			if _, err := fmt.Fscanf(out, "proxy was asked GET %s\nproxy was asked GET %s\n%s\n", &a, &b, &ip); err != nil || a != "http://example.test/a" || b != "http://example.test/b" {
				in.Close()
				cmd.Wait()
				t.Fatalf("%q, %q, %v\n%s", a, b, err, said.String())
			}
			probe := `import http.client
try:
    c = http.client.HTTPConnection("` + ip + `", 3128, timeout=20); c.request("GET", "http://example.test/stranger"); print(c.getresponse().read())
except Exception as e:
    print("closed", isinstance(e, (ConnectionError, http.client.RemoteDisconnected)))`
			for who, cmd := range map[string][]byte{"the neighbour": output(bed.Neighbour(t, "python3", "-c", probe)), "the same user": output(bed.Command(t, "python3", "-c", probe))} {
				if string(cmd) != "closed True\n" {
					t.Errorf("%s: %s", who, cmd)
				}
			}
			in.Write([]byte("\n"))
			if _, err := fmt.Fscanf(out, "proxy was asked GET %s\n", &asked); err != nil || asked != "http://example.test/c" {
				t.Errorf("%q, %v", asked, err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v\n%s", err, said.String())
			}
		})
	}
	for says, flags := range map[string]string{
		"there is no such socket\nhint: start the proxy first": `--net proxy=` + filepath.Dir(socket) + `/none --why w`,
		"it is not a socket": `--net proxy=/etc/passwd --why w`,
	} {
		if r := p.on([]string{"max_net_namespaces=0"}, `fence `+flags+` -- echo ran`); r.code != 125 || r.stdout != "" || !strings.Contains(r.stderr, says) {
			t.Errorf("%s: exit code %d, %q\n%s", flags, r.code, r.stdout, r.stderr)
		}
	}
}

func output(cmd interface{ CombinedOutput() ([]byte, error) }) []byte {
	out, _ := cmd.CombinedOutput()
	return out
}
