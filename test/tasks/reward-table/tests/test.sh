#!/bin/sh
if [ -f /app/it ]; then
    echo '{"reward": 0.75, "speed": 2, "style": -1.5}' >/logs/verifier/reward.json
else
    echo '{"reward": 0, "speed": 0, "style": 0}' >/logs/verifier/reward.json
fi
exit 1 # the exit code does not count
