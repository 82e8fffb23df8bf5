#!/bin/sh
if [ "$(cat /app/greeting)" = "hello from stage one" ] && [ ! -e /build ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
