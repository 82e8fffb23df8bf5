#!/bin/sh
if [ "$(cat /app/out/answer)" = "done" ] && [ "$(cat /app/state)" = "collected" ] && [ ! -e /app/elsewhere ] && [ "$WHO" = verifier ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
