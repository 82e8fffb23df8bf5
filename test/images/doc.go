// Package images has what is known about building images: one case a file in
// cases/, each with the filesystem and the image configuration that BuildKit
// made of it on this project's machines (oracle/ measures them again), and the
// code that reads cases, makes their contexts and bases, and lists a filesystem
// so that two of them can be compared line by line, wherever they come from.
//
// # A case
//
// A case is a txtar archive; its comment is one line that says what it shows.
// Its files:
//
//	Dockerfile  put into the context folder after setup, unless setup made one
//	setup       a script for sh -eu, umask 022, run in the empty context folder
//	args        one a line: target=STAGE, arg=NAME[=VALUE], context=NAME=FOLDER,
//	            secret=ID=FILE (both inside the context folder), platform=OS/ARCH,
//	            file=NAME (of the Dockerfile), serve=FOLDER (inside the context; it is
//	            served over HTTP at $URL, a build argument), and the word mtimes
//	want        what the image has that its base has not, see below
//	config      the configuration, as Canonical writes it
//	error       instead of both: a regular expression that our error matches,
//	            then lines that begin with # and are BuildKit's own words
//	differs     why ours is not the same, one line; written by a person
//
// A case has the images base, base2 and bare (see Bases) besides scratch.
//
// # want
//
// First "on base" or "on scratch", which is what the rest is relative to (the
// bases have the same files). Then one line for each path that differs, sorted
// by path. Times do not count unless args has the word mtimes, and then those
// of files only.
//
//	file MODE UID:GID PATH CONTENT
//	dir MODE UID:GID PATH
//	link UID:GID PATH -> TARGET
//	fifo MODE UID:GID PATH
//	char MODE UID:GID PATH MAJOR,MINOR    (and block)
//	gone PATH
//
// MODE is four octal digits. PATH and TARGET are Go-quoted if they hold
// anything but plain characters. CONTENT is Go-quoted if it is text of at most
// 400 bytes, "<busybox>" without quotes if it is the base's one program, else
// SIZE sha256:FIRST-12-HEX-DIGITS. A path that is the same inode as another one
// ends with " = OTHER", which is the first of them; " mtime=UNIX" comes last.
package images
