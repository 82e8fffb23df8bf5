package taint

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// kind is what programs do by themselves with what lies at a path.
type kind int

const (
	nothing  kind = iota // what is there is data, or the task's
	hook                 // a file with one meaning, see hooks
	cache                // /etc/ld.so.cache
	above                // settings of a test runner, in a folder above the tests
	site                 // what every Python runs or looks into: sitecustomize, pybuilddir.txt
	pth                  // a .pth file of Python
	plugin               // entry points of a Python package
	startup              // a start file in somebody's home
	git                  // settings of git
	bytecode             // of a Python module
	command              // in a PATH folder
	tool                 // in a folder of programs below a home, which tests put before PATH
	library              // a shared library
	python               // a module in an interpreter's folders
	perl                 // a module in Perl's folders
	beside               // a Python module in the folder that the tests start in
	code                 // whatever else the image's programs consist of
)

type hookFile struct{ path, does string }

// hooks are the files that programs load whatever they are told to do, and
// what such a file does; those of folders end in a slash. They are outside
// text for ld.so(8), nsswitch.conf(5), iconv(3), bash(1), zsh(1), pam_env(8),
// git-config(1), config(5ssl) and perlrun(1).
var hooks = []hookFile{
	{"etc/ld.so.preload", "every program loads the libraries that it names"},
	{"etc/nsswitch.conf", "programs load the libraries that it names"},
	{"etc/environment", "it sets the environment of programs that log somebody in"},
	{"etc/profile", "login shells run it"},
	{"etc/profile.d/", "login shells run it"},
	{"etc/bash.bashrc", "interactive shells run it"},
	{"etc/bashrc", "interactive shells run it"},
	{"etc/zsh/", "zsh runs it"},
	{"etc/zshenv", "zsh runs it"},
	{"etc/pip.conf", "pip takes packages from where it says"},
	{"etc/xdg/pip/pip.conf", "pip takes packages from where it says"},
	{"usr/pip.conf", "pip takes packages from where it says"},
	{"etc/uv/uv.toml", "uv takes packages from where it says"},
	{"etc/ssl/openssl.cnf", "programs with OpenSSL load the engines that it names"},
	{"usr/lib/ssl/openssl.cnf", "programs with OpenSSL load the engines that it names"},
	{"etc/perl/sitecustomize.pl", "perl runs it"},
}

// gconv are the tables of the modules that iconv(3) loads.
var gconv = regexp.MustCompile(`(^|/)gconv/gconv-modules(\.cache|\.d/.*|)$`)

// runnerSettings are what pytest (its reference, "Initialization: determining
// rootdir and configfile"), Node and Cargo look for in the folders above what
// they run.
var runnerSettings = regexp.MustCompile(`^(conftest\.py|\.?pytest\.(ini|toml)|tox\.ini|setup\.(cfg|py)|pyproject\.toml|package\.json|node_modules/.*|(jest|vitest|babel|vite)\.config\..*|\.mocharc\..*|\.babelrc.*|\.cargo/.*|go\.(mod|work)|__pycache__/conftest\..*)$`)

var (
	siteModule = regexp.MustCompile(`(^|/)(sitecustomize|usercustomize)(/__init__)?(\.[^/]*)?\.(py|pyc|so)$`)
	// What Python asks before it has a module of its own: an archive that is
	// first in sys.path, and the folder of its build, told beside the program
	// (CPython, Modules/getpath.py).
	siteStart  = regexp.MustCompile(`(^|/)(pybuilddir\.txt|lib(64)?/python3\d+t?\.zip)$`)
	siteFolder = regexp.MustCompile(`(^|/)(site|dist)-packages/[^/]*\.pth$`)
	entryTable = regexp.MustCompile(`(^|/)[^/]+\.(dist|egg)-info/entry_points\.txt$`)
	// Below a home.
	homeFiles = regexp.MustCompile(`^(\.(bash(rc|_profile|_login|_logout|_env)|profile|zsh(rc|env)|zprofile|kshrc|pdbrc(\.py)?|pythonrc(\.py)?|gdbinit|Rprofile|irbrc|npmrc|curlrc|wgetrc|condarc|perltidyrc)|\.config/(pip/pip\.conf|uv/uv\.toml|curlrc|fish/.*)|\.pip/pip\.conf|\.cargo/config(\.toml)?)$`)
	homeTools = regexp.MustCompile(`^\.(local|cargo)/bin/[^/]+$`)
	homeGit   = regexp.MustCompile(`^\.(gitconfig|config/git/config)$`)

	pycFile = regexp.MustCompile(`^(.*/)?__pycache__/([^/.]+)\.[^/]*\.pyc$`)

	// A folder of modules and, below it, the module.
	pythonFolder = regexp.MustCompile(`^((?:.*/)?lib(?:64)?/python3(?:\.\d+t?)?/(?:(?:site|dist)-packages|lib-dynload)|(?:.*/)?lib(?:64)?/python3\.\d+t?)/(.+)$`)
	perlFolder   = regexp.MustCompile(`^((?:etc/perl|usr/(?:local/)?(?:share|lib)/perl5?(?:/[\d.]+)?|usr/(?:local/)?lib/[^/]+/perl5?(?:-base)?(?:/[\d.]+)?))/(.+\.(?:p[lmh]|al|so))$`)
	libraryFile  = regexp.MustCompile(`^(?:usr/)?(?:local/)?lib(?:32|64|x32)?/(?:[^/]+-linux-[^/]+/)?(?:(?:glibc-hwcaps/[^/]+|gconv|security|tls|haswell|xeon_phi|avx512_1|x86_64|i[3-6]86|sse2|nosegneg|atomics|v8l|power\d+)/)*([^/]+\.so(?:\.[^/]*)?)$`)
	codeName     = regexp.MustCompile(`\.(so(\.[^/]*)?|py[cdo]?|p[lm]|m?js|cjs|node|sh|bash|rb|jar|class|lua|tcl|R|rds|rdb|egg|whl|zip)$`)
)

// systemPlaces are where the image's own programs and their parts are.
var systemPlaces = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc/alternatives"}

// places is what a path is judged by.
type places struct {
	path    []string // PATH folders, relative to the root, without links
	workdir string   // relative; "." if the tests start in the root
	private []string // what the agent's domain does not see
	homes   []string // relative; "." for the root
}

// inHome are what programs may take p for in somebody's home, the path from
// there: homes can lie in each other.
func (pl places) inHome(p string) (all []string) {
	if rest, ok := strings.CutPrefix(p, "home/"); ok { // those of users that an agent makes, too
		if _, rest, ok = strings.Cut(rest, "/"); ok {
			all = append(all, rest)
		}
	}
	for _, h := range pl.homes {
		if h == "." {
			all = append(all, p)
		} else if rest, ok := strings.CutPrefix(p, h+"/"); ok {
			all = append(all, rest)
		}
	}
	return all
}

// homeFolder says whether dir is somebody's home, one that such are made in, or
// one in which programs of theirs look for something.
func (pl places) homeFolder(dir string) bool {
	return slices.ContainsFunc(append(pl.inHome(dir+"/x"), pl.inHome(dir)...), homeFolders.MatchString) || dir == "home"
}

var homeFolders = regexp.MustCompile(`^(x|\.(local|cargo)(/bin)?|\.config(/(git|pip|uv|fish))?|\.pip)$`)

// skipped says of a path that it is no file of the container's, or the agent's
// and everybody's.
func skipped(p string) bool {
	return slices.ContainsFunc([]string{"proc", "sys", "dev", "tmp", "var/tmp", ".fence"}, func(dir string) bool { return under(p, dir) })
}

// kindOf says what programs do with what lies at p, a path relative to the
// root, and with hook what that file does.
func (pl places) kindOf(p string) (kind, string) {
	if skipped(p) || slices.ContainsFunc(pl.private, func(dir string) bool { return under(p, dir) }) {
		return nothing, ""
	}
	for _, h := range hooks {
		if under(h.path, p) && p != h.path && p != "." {
			return code, "" // a folder that was replaced by a link
		}
		if p == h.path || strings.HasSuffix(h.path, "/") && strings.HasPrefix(p, h.path) {
			return hook, h.does
		}
	}
	// An agent may have changed very many files: a look at a part of the name is
	// cheaper than a pattern.
	has := func(part string) bool { return strings.Contains(p, part) }
	home := func(what *regexp.Regexp) bool {
		return (has("/.") || strings.HasPrefix(p, ".")) && slices.ContainsFunc(pl.inHome(p), what.MatchString)
	}
	dir := path.Dir(p)
	switch {
	case p == "etc/ld.so.cache":
		return cache, ""
	case has("gconv/") && gconv.MatchString(p):
		return hook, "programs that convert text load the libraries that it names"
	case runnerSettings.MatchString(p):
		return above, ""
	case has("customize") && siteModule.MatchString(p), siteStart.MatchString(p), pl.venv(p):
		return site, ""
	case has(".pth") && siteFolder.MatchString(p):
		return pth, ""
	case has("entry_points") && entryTable.MatchString(p):
		return plugin, ""
	case p == "etc/gitconfig", has("git") && home(homeGit):
		return git, ""
	case has("/bin/") && !slices.Contains(pl.path, dir) && home(homeTools):
		return tool, ""
	case home(homeFiles):
		return startup, ""
	}
	for _, d := range pl.path {
		if dir == d {
			return command, ""
		}
		if under(d, p) && p != "." {
			return code, ""
		}
	}
	switch modules := has("/python3") && pythonFolder.MatchString(p); {
	case modules && has(".pyc") && pycFile.MatchString(p):
		return bytecode, ""
	case modules && (strings.HasSuffix(p, ".py") || codeName.MatchString(p)):
		return python, ""
	case modules:
		return nothing, ""
	case pl.startModule(p) != "":
		return beside, ""
	case pl.workdir != "." && under(p, pl.workdir):
		return nothing, ""
	case has("perl") && perlFolder.MatchString(p):
		return perl, ""
	case has(".so") && libraryFile.MatchString(p):
		return library, ""
	}
	if under(p, "usr/src") || under(p, "usr/share/doc") || under(p, "usr/share/man") || under(p, "usr/include") {
		return nothing, ""
	}
	for _, d := range systemPlaces {
		if under(p, d) {
			return code, ""
		}
	}
	return nothing, ""
}

// venv says whether a Python in a PATH folder takes p for the settings of its
// virtual environment: beside it or one folder up (site.py).
func (pl places) venv(p string) bool {
	return path.Base(p) == "pyvenv.cfg" && slices.ContainsFunc(pl.path, func(d string) bool { return path.Dir(p) == d || path.Dir(p) == path.Dir(d) })
}

var startFile = regexp.MustCompile(`^([^/.]+)(/__init__)?(\.[^/]*)?\.(py|pyc|so)$`)

// startModule is the Python module that is found in p because the tests start
// in the folder that it lies in; "" if it is none.
func (pl places) startModule(p string) string {
	if pl.workdir != "." {
		if !under(p, pl.workdir) || p == pl.workdir {
			return ""
		}
		p = p[len(pl.workdir)+1:]
	}
	if source := sourceOf(p); source != "" {
		p = source
	}
	if m := startFile.FindStringSubmatch(p); m != nil {
		return m[1]
	}
	return ""
}

// sourceOf is the Python module that p is the bytecode of; "" if it is none. If
// the bytecode is newer, Python opens it alone.
func sourceOf(p string) string {
	if m := pycFile.FindStringSubmatch(p); m != nil {
		return m[1] + m[2] + ".py"
	}
	return ""
}

// module is the name by which Python finds what lies at rel in a folder of
// modules: json for json.py, json/__init__.py and json.cpython-311.so.
func module(rel string) string {
	dir, name := path.Split(rel)
	name, _, _ = strings.Cut(name, ".")
	if name == "__init__" {
		return strings.TrimSuffix(dir, "/")
	}
	return dir + name
}

// under reports whether p is dir or below it.
func under(p, dir string) bool {
	return dir == "." || strings.HasPrefix(p, dir) && (len(p) == len(dir) || p[len(dir)] == '/')
}
