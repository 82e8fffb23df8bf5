// Package supervise tries to break the supervisor of connections (pkg/supervise) as a hostile command
// would, and checks that a process above the command makes no difference to whoever started it. The
// guide's tests (test/guide) have what tasks do with it.
package supervise
