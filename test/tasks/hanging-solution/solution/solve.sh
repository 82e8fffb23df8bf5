#!/bin/sh
touch it
trap '' TERM HUP INT
(
    trap '' TERM HUP INT
    n=0
    while true; do
        n=$((n + 1))
        echo $n >beat
        sleep 0.1
    done
) &
echo "and now it hangs"
sleep 1000
