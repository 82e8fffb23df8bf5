#!/bin/sh
# The work was done before the time was up, so it counts. Nothing of the agent's runs on after a timeout.
sleep 0.5
before=$(cat /app/beat)
sleep 1
if [ -f /app/it ] && [ "$(cat /app/beat)" = "$before" ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
