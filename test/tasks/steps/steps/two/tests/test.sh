#!/bin/sh
# /app/one is of the step before, and what its tests left is not there.
if [ -f /app/one ] && [ ! -e /logs/verifier/reward.txt ] && [ "$(cat /app/two)" = "for two
set up" ]; then
    echo "{\"reward\": $FULL, \"speed\": 0.5}" >/logs/verifier/reward.json
else
    echo '{"reward": 0, "speed": 0}' >/logs/verifier/reward.json
fi
