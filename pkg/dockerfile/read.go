package dockerfile

import "fence/pkg/internal/readfile"

// fileMax is how large a Dockerfile may be, in bytes.
const fileMax = 16 << 20

// Read reads a Dockerfile. What is no regular file, or too large for one, is
// refused.
func Read(name string) ([]byte, error) { return readfile.Regular(name, fileMax) }
