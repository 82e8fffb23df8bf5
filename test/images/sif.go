package images

import (
	"fmt"
	"iter"
	"os"

	"fence/pkg/sif"
)

// Contents are the files of an image with the owners that it notes.
func Contents(image *sif.Image) iter.Seq2[Entry, error] {
	owners := map[string]sif.Owner{}
	for _, o := range image.Owners {
		owners[o.Path] = o
	}
	return func(yield func(Entry, error) bool) {
		stop := fmt.Errorf("enough")
		err := image.Walk(func(e sif.Entry) error {
			o := owners[e.Path]
			if e.Path == "." {
				o = owners[""]
			}
			out := Entry{Path: e.Path, Mode: uint32(e.Mode.Perm()), UID: o.UID, GID: o.GID, Link: e.Link, Major: e.Major, Minor: e.Minor, MTime: e.MTime}
			for bit, mode := range map[os.FileMode]uint32{os.ModeSetuid: 0o4000, os.ModeSetgid: 0o2000, os.ModeSticky: 0o1000} {
				if e.Mode&bit != 0 {
					out.Mode |= mode
				}
			}
			switch e.Mode.Type() {
			case os.ModeDir:
				out.Type = "dir"
			case os.ModeSymlink:
				out.Type = "link"
			case os.ModeNamedPipe:
				out.Type = "fifo"
			case os.ModeDevice:
				out.Type = "block"
			case os.ModeDevice | os.ModeCharDevice:
				out.Type = "char"
			case os.ModeSocket:
				out.Type = "socket"
			default:
				out.Type, out.Inode = "file", fmt.Sprint(e.Inode)
				r, err := e.Open()
				if err != nil {
					return err
				}
				out.Content = r
			}
			if !yield(out, nil) {
				return stop
			}
			return nil
		})
		if err != nil && err != stop {
			yield(Entry{}, err)
		}
	}
}
