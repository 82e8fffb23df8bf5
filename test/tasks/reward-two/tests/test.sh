#!/bin/sh
# Harbor reads reward.json before reward.txt; that they disagree is noted.
if [ -f /app/it ]; then
    echo '{"reward": 1}' >/logs/verifier/reward.json
else
    echo '{"reward": 0}' >/logs/verifier/reward.json
fi
echo 0.5 >/logs/verifier/reward.txt
