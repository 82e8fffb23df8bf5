package host

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Container names the runtime whose container this is: "apptainer", "docker",
// "podman", "charliecloud", "kubernetes", or what another calls itself; "" on a
// bare node, and on a virtual machine made from an image.
//
// A variable alone proves nothing: a job brings those of the container that it
// was sent from. Nor does an image's file, on a node whose whole disk is at "/".
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
	var root Mount
	for line := range strings.Lines(read("/proc/self/mountinfo")) {
		if m, ok := parseMount(line); ok && m.Path == "/" {
			root = m
		}
	}
	layers := root.FSType + " " + root.Super // not Source: a node may boot from a server's folder of any name
	// A whole disk at / is a machine of its own, whatever its files once were.
	if root.Root == "/" && root.FSType != "squashfs" && strings.HasPrefix(root.Source, "/dev/") && !strings.HasPrefix(root.Source, "/dev/loop") && !strings.Contains(root.Source, "docker") {
		return ""
	}
	// An image build of this toolkit's, before there is an image. Who forges the
	// name has mounted the root.
	if root.FSType == "overlay" && root.Source == "sifbuild" {
		return "sifbuild"
	}
	// Apptainer mounts every root nosuid, and no node has such a root.
	vars := getenv("APPTAINER_CONTAINER") + getenv("SINGULARITY_CONTAINER") + getenv("APPTAINER_NAME") + getenv("SINGULARITY_NAME")
	switch {
	case exists("/.singularity.d"), vars != "" && slices.Contains(strings.Split(root.Opts, ","), "nosuid"):
		return "apptainer"
	case exists("/ch/metadata.json"), getenv("CH_RUNNING") != "" && exists("/ch"):
		return "charliecloud"
	}
	for _, r := range []struct{ sign, name string }{{"apptainer", "apptainer"}, {"singularity", "apptainer"}, {"squashfuse", "apptainer"},
		{"docker", "docker"}, {"/containers/storage", "podman"}, {"containerd", "docker"}} {
		if strings.Contains(layers, r.sign) {
			return r.name
		}
	}
	for _, r := range []struct{ name, file string }{{"docker", "/.dockerenv"}, {"podman", "/run/.containerenv"}, {"kubernetes", "/run/secrets/kubernetes.io"}} {
		if exists(r.file) {
			return r.name
		}
	}
	if name := strings.TrimSpace(read("/run/systemd/container")); strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_") == "" { // systemd's convention
		return name
	}
	return ""
}
