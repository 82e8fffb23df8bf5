#!/bin/sh
if [ "$(pwd)" = /srv ] && cmp /tests/data/want /app/out/answer && [ -f /etc/of-the-verifier ] && [ "$WHERE" = "a container of its own" ]; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
