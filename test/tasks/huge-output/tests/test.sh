#!/bin/sh
yes 'a line of the tests, which is not short and comes again and again' | head -n 300000
head -c 5000000 /dev/zero | tr '\0' x # one line
head -c 100000 /dev/urandom            # and what is no text
echo
[ -f /app/it ]
echo $((1 - $?)) >/logs/verifier/reward.txt
echo 'the last line of the tests'
