package box

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/user"

	"fence/pkg/sif"
)

// Config is what an image says of the commands in it.
type Config struct {
	Env     map[string]string
	Workdir string // absolute, "" if it says none
	User    string // as in USER, "" if it says none
}

// Account is a user of the container's.
type Account struct {
	UID, GID int
	Home     string
}

// people are the users of a box: who the commands of each domain are, and in
// which a user of the agent's side has them.
type people struct {
	in     map[string]Account
	domain map[string]string
}

// add gives a user a domain, unless there is one whose commands are his.
func (p people) add(user string, a Account) {
	for _, d := range p.low() {
		if was := p.in[d]; was.UID == a.UID && was.GID == a.GID {
			p.domain[user] = d
			return
		}
	}
	d := Agent
	if n := len(p.domain); n > 0 {
		d = fmt.Sprintf("%s-%d", Agent, n)
	}
	p.in[d], p.domain[user] = a, d
}

// low are the domains below the verifier's, the agent's first.
func (p people) low() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(p.in)), func(d string) bool { return d == Verifier })
}

// accountsLimit is for /etc/passwd and /etc/group of an image, in bytes.
const accountsLimit = 4 << 20

// inspect reads the image, as data: who the domains' users are, and where
// commands begin.
func (o Options) inspect() (Config, people, error) {
	img, err := sif.Open(o.Image)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Config{}, people{}, &Error{Class: "image_missing", Cause: "infra", Message: err.Error(), Hint: "sifbuild build makes it"}
	case err != nil:
		return Config{}, people{}, invalid(err)
	}
	defer img.Close()
	if err := img.Runs(runtime.GOARCH); err != nil {
		return Config{}, people{}, invalid(err)
	}
	c := Config{Env: map[string]string{}, User: img.Config.User}
	vars, _ := sif.Environment(img.Config)
	for _, v := range vars {
		c.Env[v[0]] = v[1]
	}
	dir := img.Config.WorkingDir
	if dir == "" {
		dir = img.Labels[sif.WorkdirLabel]
	}
	if dir != "" {
		c.Workdir = path.Clean("/" + dir)
	}
	files := map[string][]byte{}
	for _, name := range []string{"etc/passwd", "etc/group"} {
		data, err := img.ReadFile(name, accountsLimit)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Config{}, people{}, invalid(err)
		}
		files[name] = data
	}
	users := people{map[string]Account{}, map[string]string{}}
	for i, spec := range append([]string{o.VerifierUser, o.AgentUser}, o.Users...) {
		a, err := account(cmp.Or(spec, c.User), files["etc/passwd"], files["etc/group"])
		switch {
		case err != nil:
			return Config{}, people{}, &Error{Class: "start_failed", Cause: "task", Message: fmt.Sprintf("%s: the user %q: %v", o.Image, cmp.Or(spec, c.User), err), Hint: "a name must stand in the image's /etc/passwd; a number always does"}
		case i == 0:
			users.in[Verifier] = a
		default:
			users.add(spec, a)
		}
	}
	return c, users, nil
}

// folders makes Folders, and those around them, in the overlay that is to be.
func (o Options) folders() error {
	if len(o.Folders) == 0 {
		return nil
	}
	img, err := sif.Open(o.Image)
	if err != nil {
		return err
	}
	defer img.Close()
	upper := filepath.Join(o.in("overlay"), "upper")
	if err := os.Mkdir(upper, 0o755); err != nil {
		return err
	}
	made := map[string]sif.Entry{}
	for _, dir := range o.Folders {
		parts := strings.Split(dir, "/")
		for i := range parts {
			p := path.Join(parts[:i+1]...)
			if _, ok := made[p]; ok {
				continue
			}
			e, err := img.Lookup(p)
			if err != nil || !e.Mode.IsDir() {
				break
			}
			if err := os.Mkdir(filepath.Join(upper, p), 0o700); err != nil {
				return err
			}
			made[p] = e
		}
	}
	for _, p := range slices.Backward(slices.Sorted(maps.Keys(made))) { // what is in them first
		at := filepath.Join(upper, p)
		if err := errors.Join(os.Chmod(at, made[p].Mode), os.Chtimes(at, time.Time{}, made[p].MTime)); err != nil {
			return err
		}
	}
	return nil
}

func invalid(err error) error {
	return &Error{Class: "image_invalid", Cause: "infra", Message: err.Error()}
}

// account looks up a user as USER does: "name", "uid", with ":group" or ":gid".
// "" is root.
func account(spec string, passwd, group []byte) (Account, error) {
	if spec == "" {
		spec = "0"
	}
	u, err := user.GetExecUser(spec, &user.ExecUser{Home: "/"}, bytes.NewReader(passwd), bytes.NewReader(group))
	if err != nil {
		return Account{}, err
	}
	a := Account{UID: u.Uid, GID: u.Gid, Home: u.Home}
	if a.UID == 0 && a.Home == "/" && !strings.Contains(string(passwd), "root:") {
		a.Home = "/root"
	}
	if !path.IsAbs(a.Home) {
		a.Home = "/"
	}
	return a, nil
}
