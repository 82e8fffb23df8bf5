// Package guide holds the tests of what a person on a cluster does with fence
// and probe: the commands of README.md and of the guide, typed as they stand
// there, by the test bed's ordinary user, in a folder on the site's shared
// storage, through a real Apptainer whose site binds that storage into every
// container, on a terminal and in jobs of a real Slurm.
//
// Every denial stands beside a control: the same command in the same
// container without the fence.
package guide
