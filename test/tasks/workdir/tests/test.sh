#!/bin/sh
if [ "$(pwd)" = /srv/place ] && [ -f /srv/place/answer ] && [ ! -e /app/answer ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
