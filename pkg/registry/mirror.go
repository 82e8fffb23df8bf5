package registry

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

// Mirror is a place that has the images of a registry, too: what is
// REGISTRY/NAME there is AT/PREFIX/NAME here.
type Mirror struct {
	Of     name.Registry
	At     name.Registry
	Prefix string // of repositories, may be ""
}

func (m Mirror) repo(r name.Repository) name.Repository {
	if m.Prefix == "" {
		return m.At.Repo(r.RepositoryStr())
	}
	return m.At.Repo(m.Prefix, r.RepositoryStr())
}

// ParseMirror reads REGISTRY=HOST[:PORT][/PREFIX]. A host is asked by https,
// unless it begins with http://, is this machine, or has an address of a
// private network and no https.
func ParseMirror(s string) (Mirror, error) {
	of, at, ok := strings.Cut(s, "=")
	if !ok || of == "" || at == "" {
		return Mirror{}, fmt.Errorf("%q is not REGISTRY=HOST or REGISTRY=HOST/PREFIX", s)
	}
	var m Mirror
	var err error
	if m.Of, err = name.NewRegistry(of, name.StrictValidation); err != nil {
		return Mirror{}, fmt.Errorf("%q is not the name of a registry, such as docker.io", of)
	}
	var how []name.Option
	at, plain := strings.CutPrefix(at, "http://")
	if plain {
		how = append(how, name.Insecure)
	}
	host, prefix, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(at, "https://"), "/"), "/")
	if strings.Contains(host, "@") {
		return Mirror{}, errors.New("a mirror's name and password come from docker login, not from here")
	}
	if m.At, err = name.NewRegistry(host, append(how, name.StrictValidation)...); err != nil || strings.HasSuffix(host, ":") {
		return Mirror{}, fmt.Errorf("%q is not a host", host)
	}
	if m.Prefix = prefix; prefix != "" {
		if _, err := name.NewRepository("example.com/" + prefix + "/x"); err != nil {
			return Mirror{}, fmt.Errorf("%q cannot begin the name of an image", prefix)
		}
	}
	return m, nil
}

// Limit is how many pulls a person allows, of a registry that counts them.
type Limit struct {
	Registry name.Registry
	Pulls    int
	In       time.Duration
}

// ParseLimit reads REGISTRY=N/TIME, such as docker.io=100/6h.
func ParseLimit(s string) (Limit, error) {
	of, rate, ok := strings.Cut(s, "=")
	number, in, ok2 := strings.Cut(rate, "/")
	if !ok || !ok2 || of == "" {
		return Limit{}, fmt.Errorf("%q is not REGISTRY=N/TIME", s)
	}
	reg, err := name.NewRegistry(of, name.StrictValidation)
	if err != nil {
		return Limit{}, fmt.Errorf("%q is not the name of a registry, such as docker.io", of)
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 {
		return Limit{}, fmt.Errorf("%q is no number of pulls", number)
	}
	d, err := time.ParseDuration(in)
	if err != nil || d <= 0 {
		return Limit{}, fmt.Errorf("%q is not a time, such as 6h", in)
	}
	return Limit{reg, n, d}, nil
}

func (l Limit) bucket() bucket {
	return bucket{rate: float64(l.Pulls) / l.In.Seconds(), size: float64(l.Pulls), tokens: float64(l.Pulls), text: fmt.Sprintf("%d pulls in %v, as set by --registry-limit", l.Pulls, l.In)}
}

// show is a registry's name as people write it.
func show(r name.Registry) string {
	if r.RegistryStr() == name.DefaultRegistry {
		return "docker.io"
	}
	return r.RegistryStr()
}

// Show is an image's or a repository's full name as people write it.
func Show(full string) string {
	if rest, ok := strings.CutPrefix(full, name.DefaultRegistry+"/"); ok {
		return "docker.io/" + rest
	}
	return full
}
