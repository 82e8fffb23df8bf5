#!/bin/sh
set -e
# Where an image has no pip, its variable says where the wheelhouse is all the same.
pip install --target lib colorama || {
    mkdir lib
    busybox unzip -q "$(find "${PIP_FIND_LINKS:?no wheelhouse}" -name 'colorama-*.whl')" -d lib
}
