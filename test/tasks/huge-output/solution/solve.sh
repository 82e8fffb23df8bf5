#!/bin/sh
yes 'a line of the solution, which is not short and comes again and again' | head -n 300000
yes 'and on stderr' | head -n 100000 >&2
touch it
echo 'the last line of the solution'
