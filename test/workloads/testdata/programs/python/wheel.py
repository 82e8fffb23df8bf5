"""Makes a wheel of one module and one command in the folder wheels."""
import base64
import hashlib
import os
import zipfile

files = {
    "demo/__init__.py": "def main():\n    print('demo from a wheel')\n",
    "demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
    "demo-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "demo-1.0.dist-info/entry_points.txt": "[console_scripts]\ndemo = demo:main\n",
}
record = "demo-1.0.dist-info/RECORD,,\n"
os.makedirs("wheels")
with zipfile.ZipFile("wheels/demo-1.0-py3-none-any.whl", "w") as z:
    for name, text in files.items():
        z.writestr(name, text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text)}\n"
    z.writestr("demo-1.0.dist-info/RECORD", record)
