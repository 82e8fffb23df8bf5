package dockerfile

import (
	"cmp"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// archs are other names of architectures, as containerd's platforms package
// reads them.
var archs = map[string][2]string{
	"x86_64": {"amd64"}, "x86-64": {"amd64"}, "i386": {"386"}, "aarch64": {"arm64"},
	"armhf": {"arm", "v7"}, "armel": {"arm", "v6"},
}

// arches that can stand alone in --platform.
const arches = " 386 amd64 amd64p32 arm arm64 loong64 mips mips64 mips64le mipsle ppc64 ppc64le riscv64 s390x wasm "

// parsePlatform reads linux, ARCH, OS/ARCH or OS/ARCH/VARIANT; what is missing is
// node's.
func parsePlatform(s string, node v1.Platform) (v1.Platform, error) {
	parts := strings.Split(strings.ToLower(s), "/")
	p := v1.Platform{OS: "linux", Architecture: node.Architecture, Variant: node.Variant}
	switch {
	case parts[0] == "" || len(parts) > 3:
		p.OS = ""
	case len(parts) == 1 && parts[0] == "linux":
	case len(parts) == 1:
		if p.Architecture, p.Variant = parts[0], ""; !strings.Contains(arches, " "+NormalPlatform(p).Architecture+" ") {
			p.OS = ""
		}
	default:
		p.OS, p.Architecture, p.Variant = parts[0], parts[1], ""
		if len(parts) == 3 {
			p.Variant = parts[2]
		}
	}
	for _, part := range parts {
		if part == "" || strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789_.-") != "" {
			p.OS = ""
		}
	}
	if p.OS == "" {
		return v1.Platform{}, fmt.Errorf("%q is not a platform, such as linux/amd64", s)
	}
	return NormalPlatform(p), nil
}

// NormalPlatform is p under the names that images use.
func NormalPlatform(p v1.Platform) v1.Platform {
	p.OS = cmp.Or(p.OS, "linux")
	if a, ok := archs[p.Architecture]; ok {
		p.Architecture, p.Variant = a[0], cmp.Or(p.Variant, a[1])
	}
	switch {
	case p.Architecture == "arm64" && (p.Variant == "8" || p.Variant == "v8"),
		p.Architecture == "amd64" && p.Variant == "v1":
		p.Variant = ""
	case p.Architecture == "arm" && p.Variant == "":
		p.Variant = "v7"
	case p.Architecture == "arm" && len(p.Variant) == 1:
		p.Variant = "v" + p.Variant
	}
	return p
}

func platformName(p v1.Platform) string {
	return strings.TrimSuffix(p.OS+"/"+p.Architecture+"/"+p.Variant, "/")
}

// platformArgs are the variables of the global scope that nobody declares.
func platformArgs(o Options, target string) environ {
	var e environ
	for _, kv := range [][2]string{
		{"BUILDPLATFORM", platformName(o.Build)}, {"BUILDOS", o.Build.OS}, {"BUILDOSVERSION", o.Build.OSVersion},
		{"BUILDARCH", o.Build.Architecture}, {"BUILDVARIANT", o.Build.Variant},
		{"TARGETPLATFORM", platformName(o.Platform)}, {"TARGETOS", o.Platform.OS}, {"TARGETOSVERSION", o.Platform.OSVersion},
		{"TARGETARCH", o.Platform.Architecture}, {"TARGETVARIANT", o.Platform.Variant},
		{"TARGETSTAGE", cmp.Or(target, "default")},
	} {
		if v, ok := o.Args[kv[0]]; ok {
			kv[1] = v
		}
		e.set(kv[0], kv[1])
	}
	return e
}
