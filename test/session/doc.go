// Package session holds the tests of sessions (fence serve, run, put, get) on
// a real rootless Apptainer, as the test bed's ordinary user, in both forms of
// the fence.
package session
