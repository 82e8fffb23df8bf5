// Package sifbuild holds the tests of sifbuild as a person uses it: the static
// program builds task folders as the test bed's ordinary user, and Apptainer
// runs what comes of it. What a Dockerfile means is tested in test/images.
package sifbuild
