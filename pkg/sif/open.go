package sif

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"github.com/apptainer/sif/v2/pkg/sif"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/sylabs/squashfs"
)

// objectLimit is how long a JSON object of an image may be, in bytes. The
// owners of an image with a million files take less.
const objectLimit = 256 << 20

// Image is a SIF that was opened for reading. Its content comes from whoever
// made it: nothing in it is trusted.
type Image struct {
	Path       string
	Size       int64  // of the file, bytes
	Arch       string // of the primary partition, as Go writes it
	Config     v1.Config
	HasConfig  bool            // whether the image says what it is configured as; Apptainer's own builds from a folder do not
	ConfigJSON json.RawMessage // Config as it stands in the image
	Labels     map[string]string
	Owners     []Owner         // nil for images that sifbuild did not make
	Report     json.RawMessage // nil for images that sifbuild did not make
	Made       bool            // by sifbuild: Owners are complete

	file *os.File
	root *squashfs.Reader
}

// Open opens the image. It has to have one primary partition that is a plain
// squashfs, for whatever architecture. Errors are one sentence that begins
// with the path and says what can be done.
func Open(name string) (*Image, error) {
	f, err := os.OpenFile(name, syscall.O_NONBLOCK, 0) // a FIFO is not waited for
	if err != nil {
		return nil, fmt.Errorf("opening the image: %w", err)
	}
	img := &Image{Path: name, file: f}
	if err := guard(img.load); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s %w", name, err)
	}
	return img, nil
}

// Close closes the image's file.
func (img *Image) Close() error { return img.file.Close() }

// FS is the image's root as it is stored: links are not followed, and the
// permission bits of a mode include setuid (04000), setgid and sticky as in
// stat(2). The reader panics on some damaged images: see Walk.
func (img *Image) FS() fs.FS { return img.root }

// ReadFile is the content of a file in the image, by its path without a leading
// slash. What is longer than most bytes, and what is no file or lies behind a
// link, is an error: one of io/fs, or one sentence that begins with the path.
func (img *Image) ReadFile(name string, most int64) (data []byte, err error) {
	err = guard(func() error {
		f, err := img.root.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		switch {
		case err != nil:
			return err
		case !st.Mode().IsRegular():
			return &fs.PathError{Op: "read", Path: name, Err: errors.New("it is no regular file")}
		}
		data, err = io.ReadAll(io.LimitReader(f, most+1))
		if err == nil && int64(len(data)) > most {
			err = &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("it is longer than %d bytes", most)}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", img.Path, err)
	}
	return data, nil
}

// Runs says in one sentence why a node of this architecture cannot run the
// image, and what to do; nil if it can.
func (img *Image) Runs(arch string) error {
	if img.Arch == arch {
		return nil
	}
	return fmt.Errorf("%s is for %s, this node is %s: build it from its Dockerfile here, or run it on an %[2]s node", img.Path, img.Arch, arch)
}

func (img *Image) load() error {
	st, err := img.file.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return errors.New("is not a SIF image: it is not a regular file")
	}
	img.Size = st.Size()
	head := make([]byte, 96)
	n, _ := img.file.ReadAt(head, 0)
	if err := magic(head[:n], img.Size); err != nil {
		return err
	}
	si, err := sif.LoadContainer(img.file, sif.OptLoadWithCloseOnUnload(false))
	if err != nil {
		return fmt.Errorf("is a damaged SIF image (%w): build or copy it again", err)
	}
	part, err := img.primary(si)
	if err != nil {
		return err
	}
	if img.root, err = squashfs.NewReader(io.NewSectionReader(img.file, part.Offset(), part.Size())); err != nil {
		return fmt.Errorf("is a damaged SIF image (its squashfs: %w): build or copy it again", err)
	}
	return img.objects(si)
}

// magic says what a file is that is no SIF. The first bytes of a SIF are a
// launch script of 32 bytes, then SIF_MAGIC; the number of its objects is at
// byte 88, and the library takes memory for as many as it says.
func magic(head []byte, size int64) error {
	switch {
	case len(head) >= 41 && string(head[32:41]) == "SIF_MAGIC":
		if len(head) >= 96 {
			if n := binary.LittleEndian.Uint64(head[88:]); n > uint64(size) {
				return fmt.Errorf("is a damaged SIF image (it promises %d objects): build or copy it again", n)
			}
		}
		return nil
	case size == 0:
		return errors.New("is not a SIF image: it is empty")
	case len(head) >= 4 && string(head[:4]) == "hsqs":
		return errors.New("is not a SIF image: it is a bare squashfs")
	}
	return errors.New("is not a SIF image")
}

// primary is the partition with the root.
func (img *Image) primary(si *sif.FileImage) (sif.Descriptor, error) {
	part, err := si.GetDescriptor(sif.WithPartitionType(sif.PartPrimSys))
	if errors.Is(err, sif.ErrMultipleObjectsFound) {
		return part, errors.New("is a damaged SIF image: it has several root partitions")
	} else if err != nil {
		return part, errors.New("is a SIF image without a root partition: it is no container image")
	}
	fstype, _, arch, err := part.PartitionMetadata()
	if err != nil {
		return part, fmt.Errorf("is a damaged SIF image (%w): build or copy it again", err)
	}
	switch fstype {
	case sif.FsSquash:
	case sif.FsEncryptedSquashfs, sif.FsGocryptfsSquashfs:
		return part, errors.New("is encrypted: make an image of it that is not, with the key and apptainer build")
	case sif.FsExt3:
		return part, errors.New("holds an ext3 file system, which only the kernel can read: make a squashfs of it with apptainer build")
	default:
		return part, fmt.Errorf("holds a root of the type %s, not squashfs", fstype)
	}
	img.Arch = arch
	if !whole(part, img.Size) {
		return part, fmt.Errorf("is cut off: its root should end at byte %d, the file ends at %d: build or copy it again", part.Offset()+part.Size(), img.Size)
	}
	return part, nil
}

// whole says whether an object lies within a file of this size.
func whole(d sif.Descriptor, size int64) bool {
	return d.Offset() >= 0 && d.Size() >= 0 && d.Size() <= size && d.Offset() <= size-d.Size()
}

// objects reads the JSON objects that Write writes.
func (img *Image) objects(si *sif.FileImage) error {
	var inspect struct {
		Data struct {
			Attributes struct{ Labels map[string]string }
		}
	}
	for name, into := range map[string]any{configObject: &img.Config, ownersObject: &img.Owners, reportObject: &img.Report, inspectObject: &inspect} {
		all, err := si.GetDescriptors(sif.WithDataType(sif.DataGenericJSON), func(d sif.Descriptor) (bool, error) { return d.Name() == name, nil })
		if err != nil || len(all) == 0 {
			continue
		}
		d := all[0]
		if !whole(d, img.Size) || d.Size() > objectLimit {
			return fmt.Errorf("is a damaged SIF image (its %s lies outside the file): build or copy it again", name)
		}
		data, err := d.GetData()
		if err == nil {
			err = json.Unmarshal(data, into)
		}
		if err != nil {
			return fmt.Errorf("is a damaged SIF image (its %s: %w): build or copy it again", name, err)
		}
		if name == configObject {
			img.ConfigJSON = data
		}
		img.HasConfig = img.HasConfig || name == configObject
		img.Made = img.Made || name == ownersObject
	}
	img.Labels = inspect.Data.Attributes.Labels
	for _, o := range img.Owners {
		if !fs.ValidPath(o.Path) || path.Clean(o.Path) != o.Path {
			return fmt.Errorf("is a damaged SIF image (its %s names the path %q)", ownersObject, o.Path)
		}
	}
	return nil
}

// guard turns a panic of the squashfs reader, which trusts what it reads,
// into an error about the image.
func guard(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("is a damaged SIF image (%v): build or copy it again", p)
		}
	}()
	return do()
}
