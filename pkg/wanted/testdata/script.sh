#!/bin/bash
# What graders and solutions write; wanted_test.go says what is taken from it.
apt-get update && apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
source $HOME/.local/bin/env
uvx \
  -p 3.13 \
  -w pytest==8.4.1 \
  -w pytest-json-ctrf==0.3.5 \
  pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA
pip install -qU "numpy>=1,<2" scipy==$V 'x[y]~=1.0' requests==$(cat v)
P=pandas==2.1
if true; then python3 -m pip install --no-cache-dir $P; fi
sudo -H pip3.11 install -r r.txt
$VENV/bin/pip install six
bash -c "uv pip install --system attrs"
xargs pip install < foo
pip install -e . ./x.whl git+https://git.test/b
for i in a b; do pip install $i; done
uv run --with 'rich>=13,<14' --python 3.12 python x.py
uv init; uv add pytest==8.4.1; uv run pytest
echo "pip install nothing"
pip install --weird x
pip -q install --index-url https://index.test/cpu torch
uv tool install ruff@0.5.0
uvx --from httpie http GET localhost
PIP_INDEX_URL=https://other.test/simple pip install --no-deps -- flask
pip install -r https://files.test/r.txt
cat > y.sh <<EOF
pip install not-here
EOF
bash <<EOF
pip install inner
EOF
poetry install
uv sync
pip install --no-index --find-links=/wheels offline
pip install -c /tests/constraints.txt django
pip list; pip --version; pip uninstall -y six
