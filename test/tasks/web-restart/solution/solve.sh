#!/bin/sh
cat >server.py <<'EOF'
import os, socket

os.makedirs("/app/state", exist_ok=True)
with socket.create_server(("127.0.0.1", 8081), reuse_port=False) as s:
    while True:
        c, _ = s.accept()
        with c:
            c.recv(100)
            try:
                n = int(open("/app/state/count").read())
            except FileNotFoundError:
                n = 0
            open("/app/state/count", "w").write(str(n + 1))
            c.sendall(b"%d\n" % (n + 1))
EOF
setsid python3 server.py >/dev/null 2>&1 &
