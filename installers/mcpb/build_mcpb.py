#!/usr/bin/env python3
"""Pack the frozen Windows folder as code-memory.mcpb, Claude Desktop's own kind of bundle.

usage: build_mcpb.py [--payload dist/code-memory] [--out FOLDER] [--manifest]

For Windows only: a bundle cannot say for which processor it is, and on a Mac Claude Desktop is
reported to unpack programs without the right to run them. It stays unsigned: the signature that
the `mcpb` tool appends makes Claude Desktop refuse the file. `--manifest` prints the manifest.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "build"))

import freeze
import icon

# Shown by Claude Desktop before the server has run; tests compare the names with the server's.
TOOLS = {
    "mem-search": "Search past coding sessions by words and by meaning.",
    "mem-timeline": "Show what happened around a memory.",
    "mem-details": "Show memories or sessions in full.",
    "mem-stats": "Show what is remembered, since when, and how complete it is.",
}


def build_manifest(version: str) -> dict[str, object]:
    """Return the manifest, in version 0.3 of its format."""
    exe = "server/code-memory.exe"
    return {
        "manifest_version": "0.3",
        "name": "code-memory",
        "display_name": "code-memory",
        "version": version,
        "description": "Search your past coding sessions from Claude Desktop.",
        "long_description": (
            "code-memory keeps your conversations with Claude Code on this computer, also after "
            "Claude Code has deleted them, and gives Claude four tools to recall them. Nothing "
            "leaves the computer."
        ),
        "author": {"name": "code-memory contributors"},
        "license": "MIT",
        "icon": "icon.png",
        "keywords": ["memory", "search", "claude-code", "history"],
        "server": {
            "type": "binary",
            "entry_point": exe,
            "mcp_config": {
                "command": f"${{__dirname}}/{exe}",
                "args": ["mcp", "serve"],
                "env": {},
            },
        },
        "tools": [{"name": name, "description": text} for name, text in TOOLS.items()],
        "prompts_generated": True,
        "compatibility": {"platforms": ["win32"]},
    }


def pack(payload: Path, out: Path) -> Path:
    """Write the bundle: a zip with the manifest first; same files, same bytes."""
    if not (payload / "code-memory.exe").is_file():
        raise SystemExit(
            f"{payload} holds no code-memory.exe: run build/freeze.py on Windows first."
        )
    version = freeze.read_version()
    out.mkdir(parents=True, exist_ok=True)
    bundle = out / f"code-memory-{version}-windows-x86_64.mcpb"
    stamp = time.gmtime(int(freeze.build_environment()["SOURCE_DATE_EPOCH"]))[:6]
    with zipfile.ZipFile(bundle, "w") as zipped:
        picture = icon.encode_png(512, icon.draw(512))
        manifest = json.dumps(build_manifest(version), indent=2).encode()

        def add(name: str, data: bytes) -> None:
            entry = zipfile.ZipInfo(name, stamp)
            entry.create_system = 3
            entry.external_attr = (0o755 if name.endswith(".exe") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            zipped.writestr(entry, data, compresslevel=9)

        add("manifest.json", manifest)
        add("icon.png", picture)
        for path in sorted(payload.rglob("*"), key=lambda p: p.as_posix()):
            if path.is_file():
                add(f"server/{path.relative_to(payload).as_posix()}", path.read_bytes())
    return bundle


def main(argv: list[str] | None = None) -> int:
    """Pack the bundle and say how large it is."""
    parser = argparse.ArgumentParser(description="Pack code-memory.mcpb for Windows.")
    parser.add_argument("--payload", type=Path, default=ROOT / "dist" / "code-memory")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--manifest", action="store_true", help="print the manifest")
    args = parser.parse_args(argv)
    if args.manifest:
        print(json.dumps(build_manifest(freeze.read_version()), indent=2))
        return 0
    bundle = pack(args.payload, args.out)
    print(f"{bundle.stat().st_size / 1e6:7.1f} MB  {bundle.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
