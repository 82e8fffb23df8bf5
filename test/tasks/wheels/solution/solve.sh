#!/bin/sh
set -e
# This image has neither pip nor unzip's Python module: what counts is that the
# wheelhouse is where pip's own variable says.
mkdir lib
busybox unzip -q "$(find "${PIP_FIND_LINKS:?no wheelhouse}" -name 'colorama-*.whl')" -d lib
