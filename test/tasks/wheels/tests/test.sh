#!/bin/sh
if [ -f /app/lib/colorama/__init__.py ] && python3 -c 'import sys; sys.path.insert(0, "/app/lib"); import colorama; assert colorama.Fore.RED'; then
    echo 1 >/logs/verifier/reward.txt
else
    echo 0 >/logs/verifier/reward.txt
fi
