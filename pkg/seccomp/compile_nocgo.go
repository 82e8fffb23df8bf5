//go:build !cgo

package seccomp

import "errors"

// Compile cannot make a program in this build: only the standard specs work.
func Compile(Spec) ([]byte, error) {
	return nil, errors.New("seccomp: built without libseccomp: no filter but the standard ones")
}
