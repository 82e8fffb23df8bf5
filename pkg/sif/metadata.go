package sif

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// metaDir is where Apptainer looks for an image's own scripts.
const metaDir = ".singularity.d"

// envPath is where Apptainer's own builds put the environment of a definition
// file, and what it runs before every command in the image.
const envPath = metaDir + "/env/90-environment.sh"

// DefaultPath is PATH where an image sets none, as in docker build and run.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// WorkdirLabel says where the image's commands begin. Apptainer's exec and
// shell begin in the caller's folder whatever the image says; a runner can
// pass the label's value to --pwd.
const WorkdirLabel = "sifbuild.workdir"

// startscript is what an instance runs: nothing. The instance stays.
const startscript = "#!/bin/sh\n"

// File is something to add to a root before it is packed.
type File struct {
	Path string      // relative to the root
	Mode fs.FileMode // type (a folder, a link or none of both) and permissions
	Data []byte      // of a file
	Link string      // where a link leads
	Keep bool        // whatever is there already stays
}

// Overlay is what a root needs so that Apptainer runs it as an image with this
// configuration: its folder /.singularity.d, and the folders and files that
// Apptainer mounts over (without /dev, "apptainer exec -C" refuses to start).
// Folders come before what is in them.
func Overlay(config v1.Config, more map[string]string) []File {
	env, _ := EnvScript(config)
	lab, err := json.MarshalIndent(labels(config, more), "", "\t")
	if err != nil {
		panic("BUG: strings do not encode: " + err.Error())
	}
	dir := func(p string, mode fs.FileMode, keep bool) File {
		return File{Path: p, Mode: fs.ModeDir | mode, Keep: keep}
	}
	return []File{
		dir("dev", 0o755, true), dir("etc", 0o755, true), dir("home", 0o755, true), dir("proc", 0o755, true),
		dir("root", 0o700, true), dir("sys", 0o755, true), dir("tmp", 0o777|fs.ModeSticky, true),
		dir("var", 0o755, true), dir("var/tmp", 0o777|fs.ModeSticky, true),
		{Path: "etc/hosts", Mode: 0o644, Keep: true},
		{Path: "etc/resolv.conf", Mode: 0o644, Keep: true},
		dir(metaDir, 0o755, false), dir(metaDir+"/env", 0o755, false), dir(metaDir+"/libs", 0o755, false),
		{Path: envPath, Mode: 0o755, Data: env},
		{Path: metaDir + "/env/99-base.sh", Mode: 0o755, Data: []byte(baseScript)},
		{Path: metaDir + "/labels.json", Mode: 0o644, Data: append(lab, '\n')},
		{Path: metaDir + "/runscript", Mode: 0o755, Data: Runscript(config)},
		{Path: metaDir + "/startscript", Mode: 0o755, Data: []byte(startscript)},
	}
}

// baseScript has to be there, by the name 99-base.sh: right after it Apptainer
// sets what its caller asks for with --env (read in Apptainer 1.4.5's action
// script). It lets programs find the host's GPU libraries where "apptainer
// exec --nv" has bound them, and otherwise leaves the environment alone.
const baseScript = `#!/bin/sh
for sifbuild_lib in /.singularity.d/libs/*.so*; do
    if [ -e "$sifbuild_lib" ]; then
        export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/.singularity.d/libs"
        break
    fi
done
unset sifbuild_lib
`

// Add puts files into the folder root, whose /.singularity.d is removed
// first: what an image brings there would run before every command. Links in
// the root are not followed out of it.
func Add(root string, files []File) error {
	r, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("adding Apptainer's files: %w", err)
	}
	defer r.Close()
	if err := r.RemoveAll(metaDir); err != nil {
		return fmt.Errorf("adding Apptainer's files to %s: %w", root, err)
	}
	for _, f := range files {
		if err := add(r, f); err != nil {
			return fmt.Errorf("adding Apptainer's files to %s: %w", root, err)
		}
	}
	return nil
}

func add(r *os.Root, f File) error {
	switch _, err := r.Lstat(f.Path); {
	case err == nil && f.Keep:
		return nil
	case err != nil && f.Keep && !errors.Is(err, fs.ErrNotExist):
		return nil // below something that is no folder, or a link that leads out: the image's own
	case err == nil:
		if err := r.RemoveAll(f.Path); err != nil {
			return err
		}
	}
	switch {
	case f.Mode.IsDir():
		if err := r.Mkdir(f.Path, 0o700); err != nil {
			return err
		}
	case f.Mode&fs.ModeSymlink != 0:
		return r.Symlink(f.Link, f.Path)
	default:
		w, err := r.OpenFile(f.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = w.Write(f.Data)
		if err := errors.Join(err, w.Close()); err != nil {
			return err
		}
	}
	return r.Chmod(f.Path, f.Mode&^fs.ModeType) // the umask does not count
}

var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// EnvScript is a shell script that sets the configuration's environment,
// exactly, whatever is in the values. Unlike the script of Apptainer's own
// builds from Docker images, a variable of the host's does not win over the
// image's. PATH is always set. What a shell cannot set is left out and named
// in the warnings. (Apptainer unsets a variable that is empty in the image and
// not in the caller's environment, unless started with --cleanenv.)
func EnvScript(config v1.Config) (script []byte, warnings []string) {
	vars, warnings := Environment(config)
	var b strings.Builder
	b.WriteString("#!/bin/sh\n")
	for _, v := range vars {
		fmt.Fprintf(&b, "export %s=%s\n", v[0], quote(v[1]))
	}
	return []byte(b.String()), warnings
}

// Environment is what EnvScript sets: names and values, in order. Of a name
// that is there twice the last counts.
func Environment(config v1.Config) (vars [][2]string, warnings []string) {
	path := false
	for _, kv := range config.Env {
		name, value, ok := strings.Cut(kv, "=")
		switch {
		case !ok:
			warnings = append(warnings, fmt.Sprintf("the variable %q has no value: it is not set in the image", kv))
			continue
		case !shellName.MatchString(name):
			warnings = append(warnings, fmt.Sprintf("no shell can set a variable named %q: it is not set when the image runs", name))
			continue
		case name == "UID" || name == "EUID" || name == "GID":
			warnings = append(warnings, fmt.Sprintf("Apptainer's shell keeps %s for itself: it is not set when the image runs", name))
			continue
		case name == "key" || name == "e" || name == "__script__":
			warnings = append(warnings, fmt.Sprintf("Apptainer's start script uses the name %s too: the image's value is lost when it runs", name))
		}
		if !utf8.ValidString(value) {
			// As in the image's configuration, which is JSON. One such byte would make
			// Apptainer (1.4.5) drop the whole script without a word.
			value = strings.ToValidUTF8(value, "\uFFFD")
			warnings = append(warnings, fmt.Sprintf("the value of %s is not UTF-8: what is not becomes \uFFFD", name))
		}
		path = path || name == "PATH"
		vars = append(vars, [2]string{name, value})
	}
	if !path {
		vars = append(vars, [2]string{"PATH", DefaultPath})
	}
	return vars, warnings
}

// Runscript is what "apptainer run" executes: as docker run, the entry point
// with its arguments, which the caller's replace, in the image's folder. An
// image with neither runs a shell, as Apptainer does.
func Runscript(config v1.Config) []byte {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n")
	if dir := config.WorkingDir; dir != "" {
		fmt.Fprintf(&b, "cd %s || exit 126\n", quote(path.Clean("/"+dir)))
	}
	cmd := config.Cmd
	if len(cmd) == 0 && len(config.Entrypoint) == 0 {
		cmd = []string{"/bin/sh"}
	}
	if len(cmd) > 0 {
		fmt.Fprintf(&b, "[ $# -gt 0 ] || set --%s\n", words(cmd))
	}
	fmt.Fprintf(&b, "exec%s \"$@\"\n", words(config.Entrypoint))
	return []byte(b.String())
}

// labels are the image's, those that more adds, and where it begins.
func labels(config v1.Config, more map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, config.Labels)
	if config.WorkingDir != "" {
		all[WorkdirLabel] = config.WorkingDir
	}
	maps.Copy(all, more)
	return all
}

// quote is s as one word of a POSIX shell. The shell that Apptainer brings and
// reads the environment with (1.4.5) keeps the backslash of the usual form of
// a single quote, '\”, and drops a carriage return before a line's end, so
// both are written in another way.
func quote(s string) string { return "'" + quoted.Replace(s) + "'" }

var quoted = strings.NewReplacer("'", `'"'"'`, "\r\n", "\r''\n")

func words(list []string) string {
	var b strings.Builder
	for _, s := range list {
		b.WriteString(" " + quote(s))
	}
	return b.String()
}
