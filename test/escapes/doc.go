// Package escapes tries to get out of fence.
//
// Each row of the table (table_test.go) is something a hostile command would try. A small C
// program (attempt) makes the attempts by raw system calls, against a victim of the same user
// outside: a process with sockets, shared memory, a token in its environment, and files. Each row
// runs in several arms: with no fence at all, which is the control that the attempt works; under
// Landlock alone; under fence in both of its forms; and the same in a container. Every outcome is
// one exact error, and afterwards the victim is alive and unchanged but for what the table says.
//
// docs/escapes.md is the table with what was measured: go test ./test/escapes -update writes it.
//
// The other tests are about what one command does to the next one's fence, and about ways back
// into what is hidden.
package escapes
