#!/usr/bin/env python3
"""The small steps of a release that are not a tool's: used by .github/workflows/release.yml.

usage: release.py check TAG                         fail unless the tag is "v" and the version
       release.py notes                             print the version's part of CHANGELOG.md
       release.py sums FOLDER                       write FOLDER/SHA256SUMS
       release.py manifests FOLDER --downloads ADDRESS --to FOLDER
                                                    write winget's, Homebrew's and scoop's manifests
"""

from __future__ import annotations

import argparse
import hashlib
import re
import string
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "build"))

import freeze

# The template's names of hashes -> the end of the file that each belongs to.
HASHED_FILES = {
    "setup_sha256": "-windows-x86_64-setup.exe",
    "portable_sha256": "code-memory-windows-x86_64.exe",
    "macos_arm64_sha256": "-macos-arm64.tar.xz",
    "macos_x86_64_sha256": "-macos-x86_64.tar.xz",
}


def check_tag(tag: str, version: str) -> None:
    """Fail unless a release of this version is called by this tag."""
    if tag != f"v{version}":
        raise SystemExit(f"The tag is {tag}, but VERSION in code_memory.py is {version}.")


def find_notes(changelog: str, version: str) -> str:
    """Return the version's section of the changelog, without its heading."""
    heading = rf"^## \[?{re.escape(version)}\]?(?![\d.]).*$"
    parts = re.split(heading, changelog, maxsplit=1, flags=re.MULTILINE)
    if len(parts) != 2:
        raise SystemExit(f"CHANGELOG.md has no section for {version}.")
    return re.split(r"^## ", parts[1], maxsplit=1, flags=re.MULTILINE)[0].strip() + "\n"


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: Path) -> Path:
    """Write SHA256SUMS in the form that `sha256sum --check` reads."""
    sums = folder / "SHA256SUMS"
    files = sorted(path for path in folder.iterdir() if path.is_file() and path != sums)
    text = "".join(f"{hash_file(path)}  {path.name}\n" for path in files)
    sums.write_bytes(text.encode("utf-8"))
    return sums


def render_manifests(files: Path, downloads: str, version: str) -> dict[str, str]:
    """Return every manifest by its path, for the release files in the folder."""
    values = {"version": version, "downloads": downloads}
    values["homepage"] = downloads.partition("/releases/")[0]
    for name, ending in HASHED_FILES.items():
        found = [path for path in files.iterdir() if path.name.endswith(ending)]
        if len(found) != 1:
            raise SystemExit(f"{files} should hold one file *{ending}, not {len(found)}.")
        values[name] = hash_file(found[0])
    template = (HERE / "package-managers.template").read_text(encoding="utf-8")
    text = string.Template(template).substitute(values)
    parts = re.split(r"^=== (\S+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[0::2], parts[1::2], strict=True))


def main(argv: list[str] | None = None) -> int:
    """Run one step."""
    parser = argparse.ArgumentParser(description="Steps of a release.")
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("check").add_argument("tag")
    steps.add_parser("notes")
    steps.add_parser("sums").add_argument("folder", type=Path)
    manifests = steps.add_parser("manifests")
    manifests.add_argument("folder", type=Path)
    manifests.add_argument("--downloads", required=True)
    manifests.add_argument("--to", type=Path, required=True)
    args = parser.parse_args(argv)
    version = freeze.read_version()
    if args.step == "check":
        check_tag(args.tag, version)
    elif args.step == "notes":
        changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        sys.stdout.write(find_notes(changelog, version))
    elif args.step == "sums":
        print(write_sums(args.folder))
    else:
        for name, text in render_manifests(args.folder, args.downloads, version).items():
            path = args.to / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8"))
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
