package dockerfile

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/internal/suggest"
)

// checkImage says what is wrong with the name of an image, needed or not.
func (b *builder) checkImage(image string) error {
	if image == "scratch" || b.named(image) != "" {
		return nil
	}
	if !imageName.MatchString(image) || imageID.MatchString(image) {
		hint := ""
		if s := b.byName[strings.ToLower(image)]; s != nil {
			hint = "FROM needs the stage's name in small letters: " + s.Name
		}
		return advise(hint, "%q is neither an earlier stage nor the name of an image", image)
	}
	return nil
}

// The grammar of image names is that of distribution/reference, which BuildKit uses.
const (
	hostPattern   = `(?:\[[a-fA-F0-9:]+\]|[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*)(?::[0-9]+)?`
	pathPattern   = `[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*`
	digestPattern = `[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}`
)

var (
	imageName = regexp.MustCompile(`^(?:` + hostPattern + `/)?` + pathPattern + `(?:/` + pathPattern + `)*(?::\w[\w.-]{0,127})?(?:@` + digestPattern + `)?$`)
	imageID   = regexp.MustCompile(`^[a-f0-9]{64}$`)
)

// named is the key of Options.Contexts that an image name means, or "".
func (b *builder) named(image string) string {
	for _, n := range []string{image, familiar(image)} {
		if _, ok := b.o.Contexts[n]; ok && n != "scratch" && n != "context" {
			return n
		}
	}
	return ""
}

// familiar is an image's name without what goes without saying.
func familiar(image string) string {
	image = strings.TrimPrefix(strings.TrimPrefix(image, "docker.io/"), "index.docker.io/")
	return strings.TrimSuffix(strings.TrimPrefix(image, "library/"), ":latest")
}

// from is the folder or image of that name.
func (b *builder) from(image string, platform v1.Platform) (From, error) {
	if image == "scratch" {
		return From{Scratch: true}, nil
	}
	if n := b.named(image); n != "" {
		return b.folder(n)
	}
	key := platformName(platform) + " " + image
	if f, ok := b.bases[key]; ok {
		return f, nil
	}
	if b.o.Base == nil {
		return From{}, fmt.Errorf("%s: there is nowhere to get an image from", image)
	}
	base, err := b.o.Base(b.ctx, image, platform)
	if err != nil {
		if b.ctx.Err() != nil {
			return From{}, b.ctx.Err()
		}
		if s := b.byName[strings.ToLower(image)]; s != nil {
			err = &advice{err, fmt.Sprintf("the stage %s begins on line %d, and FROM can only name an earlier one", s.Name, s.Line)}
		} else if near := suggest.Nearest(image, b.names()); near != "" {
			err = &advice{err, "did you mean the stage " + near + "?"}
		}
		return From{}, err
	}
	base.Name = image
	b.bases[key] = From{Base: &base}
	return b.bases[key], nil
}

// folder is the named context; "" is the context.
func (b *builder) folder(name string) (From, error) {
	if f, ok := b.contexts[name]; ok {
		return f, nil
	}
	dir := b.o.Context
	if name != "" {
		dir = b.o.Contexts[name]
	}
	if dir == "" {
		return From{}, &advice{errNoContext, "name the folder that the Dockerfile takes files from"}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return From{}, fmt.Errorf("finding the context folder %s: %w", dir, err)
	}
	f := From{Context: abs}
	if f.Ignore, err = b.ignore(abs, name == ""); err != nil {
		return From{}, err
	}
	b.contexts[name] = f
	return f, nil
}
