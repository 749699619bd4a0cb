#!/usr/bin/env python3
"""Make the Windows installer from a frozen folder, on any system that has NSIS with 64-bit stubs.

usage: build_windows.py [--payload dist/code-memory] [--out FOLDER] [--quick]

Debian's and Ubuntu's package `nsis` has the 64-bit stubs (NSIS's own download has only 32-bit
ones), so the release makes the installer on Linux from the folder that a Windows runner froze.
With CODE_MEMORY_SIGN set to a command, that command signs installer and uninstaller; the name of
the file takes the place of %1 in it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "build"))

import freeze
import icon


def build_installer(
    payload: Path, out: Path, *, version: str = "", quick: bool = False, name: str = ""
) -> Path:
    """Compile the installer for the onedir folder `payload`; return the .exe.

    `quick` packs lightly, for tests that only want another version of the same files.
    """
    if not (payload / "code-memory.exe").is_file():
        raise SystemExit(
            f"{payload} holds no code-memory.exe: run build/freeze.py on Windows first."
        )
    makensis = shutil.which("makensis")
    if makensis is None:
        raise SystemExit("makensis is missing: install the package nsis.")
    version = version or freeze.read_version()
    out.mkdir(parents=True, exist_ok=True)
    setup = (out / (name or f"code-memory-{version}-windows-x86_64-setup.exe")).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "code-memory.ico").write_bytes(icon.encode_ico())
        defines = {
            "VERSION": version,
            "PAYLOAD": str(payload.resolve()),
            "ICON": str(Path(scratch) / "code-memory.ico"),
            "OUT": str(setup),
            "SIZE_KB": str(freeze.count_bytes(payload) // 1024),
        }
        if os.environ.get("CODE_MEMORY_SIGN"):
            defines["SIGN"] = os.environ["CODE_MEMORY_SIGN"]
        if quick:
            defines["QUICK"] = "1"
        words = [f"-D{key}={value}" for key, value in defines.items()]
        subprocess.run(
            [makensis, "-V2", "-WX", "-INPUTCHARSET", "UTF8", *words, "code-memory.nsi"],
            cwd=HERE,
            env={**freeze.build_environment(), "LC_ALL": "C.UTF-8"},
            check=True,
        )
    return setup


def main(argv: list[str] | None = None) -> int:
    """Make the installer and say how large it is."""
    parser = argparse.ArgumentParser(description="Make the Windows installer.")
    parser.add_argument("--payload", type=Path, default=ROOT / "dist" / "code-memory")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--version", default="", help="another one than code_memory.py's")
    parser.add_argument("--quick", action="store_true", help="pack lightly, for tests")
    args = parser.parse_args(argv)
    setup = build_installer(args.payload, args.out, version=args.version, quick=args.quick)
    print(f"{setup.stat().st_size / 1e6:7.1f} MB  {setup.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
