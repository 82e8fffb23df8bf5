package tree

import "errors"

// CopyRequest is what one COPY or ADD puts into a root folder.
type CopyRequest struct {
	Root    string  // folder that Matches are in
	Matches []Match // of Select; a SHA256 that is set is checked
	Files   []File  // more files, after the matches
	Dest    string  // absolute, in the root folder copied to; a slash at the end means a folder

	// Owner is of everything that is made; nil means 0:0, or with KeepOwners
	// whoever Root notes.
	Owner      *Owner
	KeepOwners bool      // Root is of a stage or an image, not of a context
	Specials   []Special // of Root, for KeepOwners and for devices

	Chmod  string // octal or symbolic, as of --chmod; "" keeps modes
	Unpack bool   // ADD: a match that is a tar, compressed or not, is unpacked to Dest instead
	Limits Limits // for Unpack
}

// File is a file whose bytes are at hand.
type File struct {
	Name string // its last element is the name in a destination folder
	Data []byte
	Mode uint32 // permission bits
}

// ChangedError says that a file is not what it was when the copy was planned.
type ChangedError struct{ Path string }

func (e *ChangedError) Error() string { return "" }

// Copy puts files into the root folder dst, as BuildKit does, and returns what
// the disk cannot hold of them:
//
//   - The contents of a folder are merged into Dest. A folder that is there
//     keeps its mode and owner if it is Dest itself and takes those of the
//     source if it is below. Another match is called Dest, or goes into it if
//     that is a folder or ends with a slash.
//   - Folders that lead to Dest are made with mode 0755, or that of an octal
//     Chmod, and Owner. Links among them, and Dest itself, are followed inside
//     dst; links below Dest are not.
//   - A file replaces anything but a folder. Hard links within a match stay.
//   - Modes are exact, whatever the umask; mtimes are the sources'.
//   - Chmod counts for folders and files, never for links; a tar's members have
//     their own modes, and owners unless Owner is set.
//
// Special entries with an owner 0:0 stand where something was replaced that may
// have had another.
func Copy(dst string, c CopyRequest) ([]Special, error) {
	return nil, errors.ErrUnsupported
}

// Mkdir makes the folder p (absolute) of WORKDIR in the root folder dst, and
// those that lead to it, with mode 0755 and the given owner. Links are followed
// inside dst. A folder that is there is left as it is, something else in the
// way is an error.
func Mkdir(dst, p string, owner Owner) error {
	return errors.ErrUnsupported
}
