// Many builds different Dockerfiles on a few bases, each with packages of its
// own choice, and prints what that takes as their number grows: requests to the
// registry, bytes of packages, time, disk, memory. Root starts it (make
// bench-many), and the test bed's user builds.
package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

var (
	bin     = flag.String("bin", "bin", "folder of sifbuild and fence")
	roots   = flag.String("roots", "/var/cache/fence-bed/roots", "folder of the root folders debian and bullseye")
	uid     = flag.Int("uid", 0, "user that builds")
	gid     = flag.Int("gid", 0, "group that builds")
	counts  = flag.String("n", "20,60,200", "how many Dockerfiles, one run each")
	verbose = flag.Bool("v", false, "print what was fetched more than once")
	jobs    = flag.Int("j", 2, "builds at a time")
)

// packages are small, and each needs others that some of them share.
var packages = []string{"bc", "dc", "ed", "file", "gawk", "jq", "less", "m4", "nano", "patch", "rsync", "time", "tree", "unzip", "xxd", "zip"}

func main() {
	flag.Parse()
	log.SetFlags(0)
	if *uid == 0 {
		log.Fatal("bench-many: an ordinary user builds: -uid N -gid N")
	}
	dir, err := os.MkdirTemp("", "bench-many-")
	check(err)
	defer os.RemoveAll(dir)
	check(os.Chmod(dir, 0o755))
	for _, tool := range []string{"sifbuild", "fence"} {
		check(exec.Command("cp", filepath.Join(*bin, tool), dir).Run())
	}
	reg := newRegistry()
	defer reg.Close()
	debs := newMirrors()
	defer debs.Close()
	fmt.Println("N     images  manifests  blobs  packages  MB fetched  of distinct  lists MB  seconds  a build  cache MB  scratch peak MB  memory peak MB")
	for _, text := range strings.Split(*counts, ",") {
		n, err := strconv.Atoi(text)
		check(err)
		run(filepath.Join(dir, text), dir, n, reg, debs)
	}
}

func check(err error) {
	if err != nil {
		log.Fatalf("bench-many: %v", err)
	}
}

func run(dir, tools string, n int, reg *registryCount, debs *mirrors) {
	for _, sub := range []string{"tasks", "cache", "scratch"} {
		check(os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	check(os.Chown(filepath.Join(dir, "cache"), *uid, *gid))
	check(os.Chown(filepath.Join(dir, "scratch"), *uid, *gid))
	defer os.RemoveAll(dir)
	for i := range n {
		b := reg.bases[i%len(reg.bases)]
		var chosen []string
		for k := range 3 {
			chosen = append(chosen, packages[(i/len(reg.bases)*(k*2+1)+k*5)%len(packages)])
		}
		slices.Sort(chosen)
		task := filepath.Join(dir, "tasks", fmt.Sprintf("t%03d", i))
		check(os.Mkdir(task, 0o755))
		text := fmt.Sprintf("FROM %s\nRUN rm -f /etc/apt/sources.list.d/* && echo '%s' >/etc/apt/sources.list\nRUN apt-get update && apt-get install -y --no-install-recommends %s && rm -rf /var/lib/apt/lists/* # %d\n",
			b.name, debs.line(b.suite), strings.Join(slices.Compact(chosen), " "), i)
		check(os.WriteFile(filepath.Join(task, "Dockerfile"), []byte(text), 0o644))
	}
	reg.reset()
	debs.reset()
	cmd := exec.Command(filepath.Join(tools, "sifbuild"), "build", filepath.Join(dir, "tasks"), "--cache", filepath.Join(dir, "cache"),
		"--scratch", filepath.Join(dir, "scratch"), "--require", "none", "--no-smoke", "-j", fmt.Sprint(*jobs))
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "TMPDIR=" + filepath.Join(dir, "scratch"), "http_proxy=" + debs.URL}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(*uid), Gid: uint32(*gid)}}
	var records, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &records, &said
	start := time.Now()
	check(cmd.Start())
	peak := watch(cmd.Process.Pid, filepath.Join(dir, "scratch"))
	err := cmd.Wait()
	seconds := time.Since(start).Seconds()
	scratch, memory := peak()
	if err != nil {
		logs, _ := filepath.Glob(filepath.Join(dir, "cache/logs/*"))
		for _, name := range logs[:min(1, len(logs))] {
			data, _ := os.ReadFile(name)
			log.Printf("%s:\n%s", name, data)
		}
		log.Fatalf("bench-many: %v\n%s", err, said.String()[max(0, said.Len()-4000):])
	}
	images := map[string]bool{}
	for d := json.NewDecoder(&records); ; {
		var r struct{ Key string }
		if err := d.Decode(&r); err == io.EOF {
			break
		} else {
			check(err)
		}
		images[r.Key] = true
	}
	const mb = 1e6
	fetched, distinct, lists, files := debs.sums()
	if *verbose {
		debs.print()
	}
	manifests, blobs := reg.sums()
	fmt.Printf("%-4d  %-6d  %-9d  %-5d  %-8d  %-10.1f  %-11s  %-8.1f  %-7.0f  %-7.1f  %-8.0f  %-15.0f  %.0f\n", n, len(images), manifests, blobs, files, float64(fetched)/mb,
		fmt.Sprintf("%.2fx", float64(fetched)/float64(distinct)), float64(lists)/mb, seconds, seconds/float64(n), float64(size(filepath.Join(dir, "cache")))/mb,
		float64(scratch)/mb, float64(memory)/mb)
}

// watch looks at the process and those below it, and now and then at a folder,
// until the answer is asked for: the most that was in the folder, and the most
// memory, both in bytes.
func watch(pid int, dir string) func() (disk, memory int64) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var disk, memory int64
	every := func(d time.Duration, look func()) {
		wg.Go(func() {
			for t := time.Tick(d); ; {
				select {
				case <-stop:
					return
				case <-t:
					look()
				}
			}
		})
	}
	every(500*time.Millisecond, func() { memory = max(memory, used(pid)) })
	every(3*time.Second, func() { disk = max(disk, size(dir)) })
	return func() (int64, int64) { close(stop); wg.Wait(); return disk, memory }
}

func size(dir string) (all int64) {
	filepath.Walk(dir, func(_ string, st os.FileInfo, err error) error {
		if err == nil {
			all += st.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	return all
}

var pss = regexp.MustCompile(`(?m)^Pss: +(\d+) kB`)

// used is the memory of a process and of all below it, shared pages shared
// out: Pss of proc(5).
func used(pid int) (all int64) {
	if data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)); err == nil {
		if m := pss.FindSubmatch(data); m != nil {
			kb, _ := strconv.ParseInt(string(m[1]), 10, 64)
			all = kb << 10
		}
	}
	children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range children {
		data, _ := os.ReadFile(file)
		for _, field := range strings.Fields(string(data)) {
			if child, err := strconv.Atoi(field); err == nil {
				all += used(child)
			}
		}
	}
	return all
}

// registryCount is a registry with bases, which counts what it is asked for.
type registryCount struct {
	*httptest.Server
	bases []struct{ name, suite string }

	mu        sync.Mutex
	manifests int // GET: what registries count
	blobs     int
}

func newRegistry() *registryCount {
	r := &registryCount{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		switch {
		case req.Method != http.MethodGet:
		case strings.Contains(req.URL.Path, "/manifests/"):
			r.manifests++
		case strings.Contains(req.URL.Path, "/blobs/"):
			r.blobs++
		}
		r.mu.Unlock()
		inner.ServeHTTP(w, req)
	}))
	bookworm, bullseye := layer(filepath.Join(*roots, "debian")), layer(filepath.Join(*roots, "bullseye"))
	r.push("bookworm:1", "bookworm", bookworm)
	r.push("bullseye:1", "bullseye", bullseye)
	r.push("bookworm:more", "bookworm", bookworm, note()) // shares a layer with the first
	return r
}

func (r *registryCount) push(ref, suite string, layers ...v1.Layer) {
	img, err := mutate.AppendLayers(empty.Image, layers...)
	check(err)
	img, err = mutate.ConfigFile(img, must(func() (*v1.ConfigFile, error) {
		c, err := img.ConfigFile()
		if err == nil {
			c = c.DeepCopy()
			c.OS, c.Architecture = "linux", "amd64"
			c.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		}
		return c, err
	}))
	check(err)
	full := strings.TrimPrefix(r.URL, "http://") + "/" + ref
	check(remote.Write(must(func() (name.Reference, error) { return name.ParseReference(full) }), img))
	r.bases = append(r.bases, struct{ name, suite string }{full, suite})
}

func must[T any](f func() (T, error)) T {
	v, err := f()
	check(err)
	return v
}

func layer(root string) v1.Layer {
	data, err := exec.Command("tar", "-C", root, "--numeric-owner", "--exclude=./dev/*", "-c", ".").Output()
	check(err)
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
	check(err)
	return l
}

func note() v1.Layer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	check(w.WriteHeader(&tar.Header{Name: "etc/note", Mode: 0o644, Size: 5}))
	w.Write([]byte("more\n"))
	check(w.Close())
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	check(err)
	return l
}

func (r *registryCount) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.manifests, r.blobs = 0, 0
}

func (r *registryCount) sums() (manifests, blobs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.manifests, r.blobs
}

// mirrors is a site's proxy, which counts the bytes of each file of the Debian
// mirrors behind it. (What this machine itself serves, sifbuild does not keep.)
type mirrors struct {
	*httptest.Server
	debian string // of this machine's own apt
	mu     sync.Mutex
	bytes  map[string][]int64 // of each path, an entry each time it was fetched
}

func newMirrors() *mirrors {
	m := &mirrors{debian: mirror(), bytes: map[string][]int64{}}
	m.Server = httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {}, // the URL is whole already
		ModifyResponse: func(resp *http.Response) error {
			resp.Body = &counted{ReadCloser: resp.Body, m: m, path: resp.Request.URL.Path}
			return nil
		},
	})
	return m
}

var comment = regexp.MustCompile(`(?m)#.*`)

// mirror is the first that apt has.
func mirror() string {
	files, _ := filepath.Glob("/etc/apt/sources.list.d/*")
	for _, f := range append(files, "/etc/apt/sources.list") {
		data, _ := os.ReadFile(f)
		for _, field := range strings.Fields(comment.ReplaceAllString(string(data), "")) {
			if strings.HasPrefix(field, "http://") || strings.HasPrefix(field, "https://") {
				return strings.TrimSuffix(field, "/")
			}
		}
	}
	log.Fatal("bench-many: apt has no mirror on this machine")
	return ""
}

func (m *mirrors) line(suite string) string { return "deb " + m.debian + " " + suite + " main" }

type counted struct {
	io.ReadCloser
	m    *mirrors
	path string
	n    int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n += int64(n)
	return n, err
}

func (c *counted) Close() error {
	c.m.mu.Lock()
	c.m.bytes[c.path] = append(c.m.bytes[c.path], c.n)
	c.m.mu.Unlock()
	return c.ReadCloser.Close()
}

func (m *mirrors) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.bytes)
}

func (m *mirrors) sums() (fetched, distinct, lists int64, files int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(m.bytes)) {
		var sum int64
		for _, n := range m.bytes[path] {
			sum += n
		}
		if strings.HasSuffix(path, ".deb") {
			fetched, distinct, files = fetched+sum, distinct+slices.Max(m.bytes[path]), files+1
		} else {
			lists += sum
		}
	}
	return fetched, distinct, lists, files
}

// print lists what was fetched more than once, with the bytes of each time.
func (m *mirrors) print() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(m.bytes)) {
		if len(m.bytes[path]) > 1 {
			log.Println(path, m.bytes[path])
		}
	}
}
