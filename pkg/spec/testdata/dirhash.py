"""Writes into dirhash.json what the package dirhash, which Harbor uses, makes of each folder.

    pip install dirhash==0.5.0; python dirhash.py dirhash.json

A text "-> X" is a link, a name with a slash at its end an empty folder.
"""

import importlib
import json
import os
import sys
import tempfile

sys.path.pop(0)  # this file has the package's name
dirhash = importlib.import_module("dirhash").dirhash


def plant(top, files):
    for path, text in files.items():
        full = os.path.join(top, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if path.endswith("/"):
            os.makedirs(full, exist_ok=True)
        elif text.startswith("-> "):
            os.symlink(text[3:], full)
        else:
            with open(full, "w", newline="", encoding="utf-8") as f:
                f.write(text)


cases = json.load(open(sys.argv[1], encoding="utf-8"))
for case in cases.values():
    with tempfile.TemporaryDirectory() as top:
        plant(top, case["files"])
        try:
            case["sum"] = dirhash(top, "sha256")
        except Exception as e:
            case["sum"] = "error: " + type(e).__name__
with open(sys.argv[1], "w", encoding="utf-8") as f:
    json.dump(cases, f, indent=1)
    f.write("\n")
