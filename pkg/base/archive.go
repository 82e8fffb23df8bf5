package base

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/internal/blobs"
	"fence/pkg/registry"
)

// archive is a tar file that docker save, podman save or skopeo wrote: an OCI
// layout or the older form with manifest.json, whose blobs are read in place.
type archive struct {
	path  string
	where map[string][2]int64 // offset and size, by cleaned name
}

func (a archive) section(name string) (io.ReadCloser, error) {
	at, ok := a.where[name]
	if !ok {
		return nil, fmt.Errorf("%s is not in it", name)
	}
	f, err := os.Open(a.path)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, at[0], at[1]), f}, nil
}

func (a archive) open(_ context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	return a.section(blobs.Path(d.Digest))
}

// readArchive notes where the files of a tar lie. A file that is another name
// of one (docker save wrote layers so that stand in several images) is that one.
func readArchive(file string) (archive, error) {
	a := archive{file, map[string][2]int64{}}
	f, err := os.Open(file)
	if err != nil {
		return a, err
	}
	defer f.Close()
	links := map[string]string{}
	t := tar.NewReader(f)
	for {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return a, fmt.Errorf("neither an image archive (tar) nor a SIF nor a folder: %w", err)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		switch h.Typeflag {
		case tar.TypeReg:
			at, err := f.Seek(0, io.SeekCurrent) // tar.Reader reads no further than the header
			if err != nil {
				return a, err
			}
			a.where[name] = [2]int64{at, h.Size}
		case tar.TypeSymlink:
			links[name] = path.Join(path.Dir(name), h.Linkname)
		case tar.TypeLink:
			links[name] = strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
		}
	}
	for name, to := range links {
		if at, ok := a.where[to]; ok {
			a.where[name] = at
		}
	}
	return a, nil
}

func (a archive) small(name string) ([]byte, error) {
	r, err := a.section(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, registry.DocumentLimit+1))
	if err == nil && len(data) > registry.DocumentLimit {
		err = fmt.Errorf("its %s is too long for what describes an image", name)
	}
	return data, err
}

func (s *Store) archive(ctx context.Context, image, file string, platform v1.Platform) (Base, error) {
	a, err := readArchive(file)
	if err != nil {
		return Base{}, err
	}
	if _, ok := a.where["index.json"]; ok {
		data, err := a.small("index.json")
		if err != nil {
			return Base{}, err
		}
		return s.indexed(ctx, image, data, a, platform)
	}
	if _, ok := a.where["manifest.json"]; ok {
		return s.docker(image, a, platform)
	}
	return Base{}, errors.New("a tar file with neither index.json nor manifest.json: it is no image archive (docker save makes one; a root folder has to be unpacked first)")
}

// docker is the base in an archive of the older form: a list of images, each
// with a configuration and uncompressed layers in files.
func (s *Store) docker(image string, a archive, platform v1.Platform) (Base, error) {
	var list []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	data, err := a.small("manifest.json")
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return Base{}, fmt.Errorf("its manifest.json: %w", err)
	}
	at := 0
	if len(list) != 1 {
		at = -1
		var tags []string
		for i, m := range list {
			tags = append(tags, m.RepoTags...)
			if slices.ContainsFunc(m.RepoTags, func(t string) bool { return canonical(t) == canonical(image) }) {
				at = i
			}
		}
		if at < 0 {
			return Base{}, fmt.Errorf("it holds %d images (%s), none by this name", len(list), strings.Join(tags, ", "))
		}
	}
	m := list[at]
	raw, err := a.small(path.Clean(m.Config))
	var config v1.ConfigFile
	if err == nil {
		err = json.Unmarshal(raw, &config)
	}
	if err != nil {
		return Base{}, fmt.Errorf("its configuration %s: %w", m.Config, err)
	}
	if is := platformOf(config); !fits(is, platform) {
		return Base{}, s.errPlatform(platform, []string{is.String()})
	}
	if len(m.Layers) != len(config.RootFS.DiffIDs) {
		return Base{}, fmt.Errorf("it is damaged: %d layers, and %d in its configuration", len(m.Layers), len(config.RootFS.DiffIDs))
	}
	var layers []Layer
	for i, file := range m.Layers {
		file, id := path.Clean(file), config.RootFS.DiffIDs[i]
		if _, ok := a.where[file]; !ok {
			return Base{}, fmt.Errorf("it is damaged: its layer %s is missing", file)
		}
		layers = append(layers, Layer{Digest: id.String(), Open: func() (io.ReadCloser, error) {
			r, err := a.section(file)
			if err != nil {
				return nil, err
			}
			plain, err := decompress(r)
			if err != nil {
				return nil, err
			}
			return blobs.Verify(plain, v1.Descriptor{Digest: id})
		}})
	}
	// The configuration holds the digests of the layers, so its own digest,
	// Docker's image id, identifies all of the content.
	id, _, err := v1.SHA256(strings.NewReader(string(raw)))
	if err != nil {
		return Base{}, err
	}
	return Base{Digest: id.String(), Config: config.Config, layers: func(context.Context) ([]Layer, error) { return layers, nil }}, nil
}
