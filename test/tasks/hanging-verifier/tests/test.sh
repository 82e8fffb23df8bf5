#!/bin/sh
# A reward from tests that did not come to an end is none.
echo 1 >/logs/verifier/reward.txt
trap '' TERM HUP INT
sleep 1000 &
sleep 1000
