#!/bin/sh
ask() {
    for i in 1 2 3 4 5 6 7 8 9 10; do
        answer=$(echo | nc -w 5 127.0.0.1 8081) && [ -n "$answer" ] && echo "$answer" && return
        sleep 0.2
    done
    echo none
}
before=$(ask)
pkill -f server.py # the agent's own server still runs, and is the verifier's to end
python3 /app/server.py &
after=$(ask)
kill $!
echo "before $before, after $after"
if [ "$before" = 1 ] && [ "$after" = 2 ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
