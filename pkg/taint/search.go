package taint

import (
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// libraryFolders are where ld.so looks for libraries, as far as the image has
// them.
func libraryFolders(img image) []string {
	var all []string
	for _, d := range []string{"lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64"} {
		names, err := img.Names(d)
		if err != nil {
			continue
		}
		all = append(all, d)
		for _, n := range names {
			if strings.Contains(n, "-linux-") {
				all = append(all, d+"/"+n)
			}
		}
	}
	return all
}

// elsewhere is where the image has, in another folder that is searched for the
// same, what is new at p.
func (j judge) elsewhere(k kind, p string) string {
	if k == library {
		name := libraryFile.FindStringSubmatch(p)[1]
		for _, d := range libraryFolders(j.image) {
			if other := path.Join(d, name); other != p && j.has(other) {
				return other
			}
		}
		return ""
	}
	rel := perlFolder.FindStringSubmatch(p)[2]
	for _, d := range j.perlFolders() {
		if other := path.Join(d, rel); other != p && j.has(other) {
			return other
		}
	}
	return ""
}

// perlFolders are those of the image that Perl's @INC may name.
func (j judge) perlFolders() []string {
	all := []string{"etc/perl"}
	var descend func(d string, depth int)
	descend = func(d string, depth int) {
		names, err := j.image.Names(d)
		if err != nil {
			return
		}
		if strings.Contains(d, "perl") {
			all = append(all, d)
		}
		for _, n := range names {
			versioned := strings.Contains(d, "perl") && n != "" && '0' <= n[0] && n[0] <= '9'
			if depth > 0 && (strings.HasPrefix(n, "perl") || strings.Contains(n, "-linux-") || versioned) {
				descend(d+"/"+n, depth-1)
			}
		}
	}
	for _, d := range []string{"usr/lib", "usr/share", "usr/local/lib", "usr/local/share"} {
		descend(d, 3)
	}
	return all
}

// otherModule is where the image has a Python module of the name that rel has
// in a folder of modules; folder is "" for one that is none.
func (j judge) otherModule(folder, rel string) string {
	m := module(rel)
	dir, name := path.Split(m)
	for _, base := range j.pythonFolders(folder) {
		names, err := j.image.Names(path.Clean(base + "/" + dir))
		if err != nil {
			continue
		}
		for _, n := range names {
			p := path.Join(base, dir, n)
			stem, ext, _ := strings.Cut(n, ".")
			switch {
			case p == path.Join(folder, rel) || stem != name:
			case ext == "py" || ext == "pyc" || strings.HasSuffix(ext, "so"):
				return "/" + p
			case ext == "" && path.Join(folder, m) != p:
				return "/" + p
			case ext == "" && j.has(p+"/__init__.py"):
				return "/" + p
			}
		}
	}
	return ""
}

// pythonFolders are the image's folders of modules, and folder itself.
func (j judge) pythonFolders(folder string) []string {
	var all []string
	if folder != "" {
		all = append(all, folder)
	}
	add := func(d string) {
		if e, err := j.image.Lookup(d); err == nil && e.Mode&fs.ModeType == fs.ModeDir && d != folder && together(folder, d) {
			all = append(all, d)
		}
	}
	prefixes := []string{"usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64"}
	if at := strings.Index(folder, "/lib/python"); at >= 0 {
		prefixes = append(prefixes, folder[:at]+"/lib")
	}
	for _, prefix := range prefixes {
		names, _ := j.image.Names(prefix)
		for _, n := range names {
			if !strings.HasPrefix(n, "python3") {
				continue
			}
			d := prefix + "/" + n
			add(d)
			add(d + "/lib-dynload")
			add(d + "/site-packages")
			add(d + "/dist-packages")
		}
	}
	return all
}

var pythonVersion = regexp.MustCompile(`/python3(\.\d+t?)?(/|$)`)

// together says whether one interpreter looks in both folders: those of
// Debian's python3/dist-packages are of any version whose own are called so.
func together(a, b string) bool {
	if a == "" {
		return true
	}
	va, vb := pythonVersion.FindStringSubmatch(a), pythonVersion.FindStringSubmatch(b)
	if va == nil || vb == nil {
		return false
	}
	own := func(d string) bool { return strings.HasPrefix(d, "usr/lib/") || strings.HasSuffix(d, "/dist-packages") }
	return va[1] == vb[1] || (va[1] == "" || vb[1] == "") && own(a) && own(b)
}
