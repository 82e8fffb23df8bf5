// Package sif makes and reads images in the Singularity Image Format as
// Apptainer runs them: one squashfs partition that holds the root, and beside
// it the configuration, the labels, and what a squashfs packed by an ordinary
// user cannot say, namely who owns what.
//
// Nothing here needs Apptainer, root or a mount. Packing needs mksquashfs.
package sif

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/apptainer/sif/v2/pkg/sif"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"fence/pkg/internal/atomicfile"
)

// Names of the JSON objects in an image. The first two are Apptainer's: the
// inner "config" of an OCI image configuration, and what "apptainer inspect"
// prints (seen in images that Apptainer 1.4.5 built).
const (
	configObject  = "oci-config.json"
	inspectObject = "inspect-metadata.json"
	ownersObject  = "sifbuild.owners.json"
	reportObject  = "sifbuild.report.json"
)

// Meta is what an image says about itself, apart from its root.
type Meta struct {
	Arch   string    // as Go writes it: amd64, arm64
	Config v1.Config // of the image
	// StartInterval belongs to Config.Healthcheck, which has no place for it.
	StartInterval time.Duration
	Labels        map[string]string // beside those of Config, which they replace
	Owners        []Owner           // everything that is not 0:0, and devices; sorted by path when written
	Report        json.RawMessage   // how the image was built; nil for none
}

// Owner is who would own a path of the image, had the builder had more than
// one user; or a device node, which the builder could not make.
type Owner struct {
	Path string `json:"path"` // relative to the root, without leading slash
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	// Device is "", "c" or "b".
	Device string `json:"device,omitempty"`
	Mode   uint32 `json:"mode,omitempty"` // permission bits, of a device
	Major  uint32 `json:"major,omitempty"`
	Minor  uint32 `json:"minor,omitempty"`
}

// Write makes the image path from the file squashfs. The same input gives the
// same bytes: no time, no random identifier. The image appears whole or not
// at all.
func Write(path, squashfs string, meta Meta) error {
	root, err := os.Open(squashfs)
	if err != nil {
		return fmt.Errorf("writing the image %s: %w", path, err)
	}
	defer root.Close()
	objects, err := meta.objects()
	if err != nil {
		return fmt.Errorf("writing the image %s: %w", path, err)
	}
	part, err := sif.NewDescriptorInput(sif.DataPartition, root, sif.OptPartitionMetadata(sif.FsSquash, sif.PartPrimSys, meta.Arch))
	if err != nil {
		return fmt.Errorf("writing the image %s for the architecture %q: %w", path, meta.Arch, err)
	}
	err = atomicfile.Write(path, func(w io.Writer) error {
		rw, ok := w.(sif.ReadWriter)
		if !ok {
			return errors.New("BUG: an image needs a file that can be read and sought")
		}
		_, err := sif.CreateContainer(rw, sif.OptCreateDeterministic(), sif.OptCreateWithLaunchScript("#!/usr/bin/env run-singularity\n"),
			sif.OptCreateWithDescriptors(append(objects, part)...), sif.OptCreateWithCloseOnUnload(false))
		return err
	})
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("writing the image %s: %w", path, ErrDiskFull)
	case err != nil:
		return fmt.Errorf("writing the image %s: %w", path, err)
	}
	return nil
}

// objects are the JSON objects of the image, by name as Apptainer orders them.
func (m Meta) objects() ([]sif.DescriptorInput, error) {
	owners := slices.Clone(m.Owners)
	slices.SortFunc(owners, func(a, b Owner) int { return strings.Compare(a.Path, b.Path) })
	config, err := m.config()
	if err != nil {
		return nil, err
	}
	values := map[string]any{configObject: config, inspectObject: m.inspect(), ownersObject: owners}
	if m.Report != nil {
		values[reportObject] = m.Report
	}
	var all []sif.DescriptorInput
	for _, name := range slices.Sorted(maps.Keys(values)) {
		data, err := json.Marshal(values[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		in, err := sif.NewDescriptorInput(sif.DataGenericJSON, bytes.NewReader(data), sif.OptObjectName(name))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, in)
	}
	return all, nil
}

// config is the configuration as Docker writes it.
func (m Meta) config() (any, error) {
	if m.StartInterval == 0 || m.Config.Healthcheck == nil {
		return m.Config, nil
	}
	data, err := json.Marshal(m.Config)
	if err != nil {
		return nil, err
	}
	var all map[string]any
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, err
	}
	all["Healthcheck"] = struct {
		v1.HealthConfig
		StartInterval time.Duration
	}{*m.Config.Healthcheck, m.StartInterval}
	return all, nil
}

// inspect is what "apptainer inspect" prints without running the image.
func (m Meta) inspect() any {
	env, _ := EnvScript(m.Config)
	return map[string]any{
		"type": "container",
		"data": map[string]any{"attributes": map[string]any{
			"environment": map[string]string{"/" + envPath: string(env)},
			"labels":      labels(m.Config, m.Labels),
			"runscript":   string(Runscript(m.Config)),
			"startscript": startscript,
		}},
	}
}
