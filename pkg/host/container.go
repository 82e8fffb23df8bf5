package host

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Container names the runtime whose container this is: "apptainer", "docker",
// "podman", "charliecloud", "kubernetes", or what another calls itself; "" on a
// bare node, and on a virtual machine made from an image.
//
// One sign is enough: a script of the image can unset a variable, and an image
// can lack a file. The signs of Apptainer come first and cost next to nothing.
//
// An error means that it cannot be told: what is taken for a container where
// it is a node hides less, and the other way round too.
var Container = sync.OnceValues(func() (string, error) {
	var failed error
	note := func(p string, err error) bool {
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.EACCES) {
			failed = fmt.Errorf("telling whether this is a container: %s: %w", p, err)
		}
		return err == nil
	}
	exists := func(p string) bool { return note(p, unix.Access(p, unix.F_OK)) }
	read := func(p string) string {
		data, err := os.ReadFile(p)
		note(p, err)
		return string(data)
	}
	name := container(os.Getenv, exists, read)
	if failed != nil {
		return "", failed
	}
	return name, nil
})

// container is Container for any node.
func container(getenv func(string) string, exists func(string) bool, read func(string) string) string {
	switch vars := getenv("APPTAINER_CONTAINER") + getenv("SINGULARITY_CONTAINER") + getenv("APPTAINER_NAME") + getenv("SINGULARITY_NAME"); {
	case vars != "" || exists("/.singularity.d"):
		return "apptainer"
	case getenv("CH_RUNNING") != "" || exists("/ch/metadata.json"):
		return "charliecloud"
	}
	var root Mount
	for line := range strings.Lines(read("/proc/self/mountinfo")) {
		if m, ok := parseMount(line); ok && m.Path == "/" {
			root = m
		}
	}
	layers := root.FSType + " " + root.Super // not Source: a node may boot from a server's folder of any name
	for _, r := range []struct{ sign, name string }{{"apptainer", "apptainer"}, {"singularity", "apptainer"}, {"squashfuse", "apptainer"},
		{"docker", "docker"}, {"/containers/storage", "podman"}, {"containerd", "docker"}} {
		if strings.Contains(layers, r.sign) {
			return r.name
		}
	}
	// A whole disk at / is a machine of its own, whatever its files once were.
	if root.Root == "/" && strings.HasPrefix(root.Source, "/dev/") && !strings.HasPrefix(root.Source, "/dev/loop") && !strings.Contains(root.Source, "docker") {
		return ""
	}
	for _, r := range []struct{ name, file, variable string }{{"docker", "/.dockerenv", ""}, {"podman", "/run/.containerenv", ""},
		{"kubernetes", "/run/secrets/kubernetes.io", "KUBERNETES_SERVICE_HOST"}} {
		if getenv(r.variable) != "" || exists(r.file) {
			return r.name
		}
	}
	for _, name := range []string{strings.TrimSpace(read("/run/systemd/container")), getenv("container")} { // systemd's convention
		if name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_") == "" {
			return name
		}
	}
	return ""
}
