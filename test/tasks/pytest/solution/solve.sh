#!/bin/sh
cat >double.py <<'EOF'
def double(x):
    return 2 * x
EOF
