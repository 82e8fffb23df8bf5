#!/bin/sh
set -e
script -qec tty /dev/null | tr -d '\r' >tty
python3 - >shm <<'EOF'
import os

with open("/dev/shm/it", "w+b") as f:
    f.truncate(1 << 20)
    if os.fork() == 0:
        os.pwrite(f.fileno(), b"shared", 0)
        os._exit(0)
    os.wait()
    print(os.pread(f.fileno(), 6, 0).decode(), os.stat("/dev/shm/it").st_size)
EOF
