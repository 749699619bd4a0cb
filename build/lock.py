#!/usr/bin/env python3
"""Write build/requirements-<system>.lock again: every package of a frozen program, with hashes.

usage: lock.py [SYSTEM ...]      needs `uv` (pip install uv)

The inputs are pyproject.toml (the program's own dependencies) and requirements-freeze.in. Only
wheels are admitted, so nothing is compiled while freezing, and no index address is written down.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

BUILD = Path(__file__).resolve().parent
ROOT = BUILD.parent

# The Python that the program is frozen with, on every system (Wine's test uses it too).
PYTHON_VERSION = "3.12"

# Name in the file name -> uv's name of the platform. The two macOS builds differ: some packages
# no longer publish x86-64 wheels of their newest version.
SYSTEMS = {
    "linux": "x86_64-manylinux_2_28",
    "windows": "x86_64-pc-windows-msvc",
    "macos-arm64": "aarch64-apple-darwin",
    "macos-x86_64": "x86_64-apple-darwin",
}


def write_lock(system: str) -> Path:
    """Resolve one system's packages and return the lock file."""
    uv = shutil.which("uv")
    if uv is None:
        raise SystemExit("lock.py needs uv: pip install uv")
    out = BUILD / f"requirements-{system}.lock"
    command = [
        uv, "pip", "compile", "--quiet", "--upgrade", "--generate-hashes", "--only-binary", ":all:",
        "--no-emit-index-url", "--no-emit-find-links", "--no-annotate",
        "--python-version", PYTHON_VERSION, "--python-platform", SYSTEMS[system],
        "--custom-compile-command", "python build/lock.py",
        "--output-file", str(out), "pyproject.toml", "build/requirements-freeze.in",
    ]  # fmt: skip
    out.unlink(missing_ok=True)
    subprocess.run(command, cwd=ROOT, check=True)
    return out


if __name__ == "__main__":
    for name in sys.argv[1:] or SYSTEMS:
        print(write_lock(name).relative_to(ROOT))
