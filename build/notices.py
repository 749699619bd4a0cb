"""What a frozen program is made of: the licences of its parts, and its bill of materials.

Both are read from what PyInstaller really collected, not from the list of what was installed, so
a build tool that stays outside is not named and a library that slipped in is. Same parts, same
bytes: nothing here depends on the day or the machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LICENCE_FILE = re.compile(r"(licen[cs]e|copying|notice|authors|copyright)", re.IGNORECASE)

# Libraries that come with Python or the system rather than with a package: how their file names
# begin (without "lib"), their name, and their licence in SPDX terms.
SYSTEM_LIBRARIES = (
    ("python", "Python", "PSF-2.0"),
    ("crypto", "OpenSSL", "Apache-2.0"),
    ("ssl", "OpenSSL", "Apache-2.0"),
    ("ffi", "libffi", "MIT"),
    ("z.", "zlib", "Zlib"),
    ("zlib", "zlib", "Zlib"),
    ("zstd", "Zstandard", "BSD-3-Clause"),
    ("bz2", "bzip2", "bzip2-1.0.6"),
    ("lzma", "XZ Utils", "0BSD"),
    ("sqlite3", "SQLite", "blessing"),
    ("expat", "Expat", "MIT"),
    ("mpdec", "libmpdec", "BSD-2-Clause"),
    ("uuid", "libuuid", "BSD-3-Clause"),
    ("ncurses", "ncurses", "X11-distribute-modifications-variant"),
    ("tinfo", "ncurses", "X11-distribute-modifications-variant"),
    ("gcc_s", "GCC runtime library", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    ("stdc++", "GCC runtime library", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    ("vcruntime", "Microsoft Visual C++ runtime", "LicenseRef-Microsoft-Redistributable"),
    ("msvcp", "Microsoft Visual C++ runtime", "LicenseRef-Microsoft-Redistributable"),
    ("ucrtbase", "Microsoft C runtime", "LicenseRef-Microsoft-Redistributable"),
    ("api-ms-win", "Microsoft C runtime", "LicenseRef-Microsoft-Redistributable"),
)


def find_distributions(sources: Iterable[str]) -> tuple[list[metadata.Distribution], list[str]]:
    """Return the installed packages that the files belong to, by name, and the libraries among
    the files that belong to none and lie outside Python's own folders."""
    owner: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions():
        for file in distribution.files or ():
            owner[os.path.realpath(str(distribution.locate_file(file)))] = distribution
    found: dict[str, metadata.Distribution] = {}
    strays: set[str] = set()
    library = os.path.realpath(os.path.dirname(os.__file__))
    for source in sources:
        path = os.path.realpath(source or "-")
        if path in owner:
            found[owner[path].metadata["Name"].lower()] = owner[path]
        elif re.search(r"(\.so[.\d]*|\.dylib|\.dll)$", path) and not path.startswith(library):
            strays.add(os.path.basename(path))
    return [found[name] for name in sorted(found)], sorted(strays)


def name_licence(distribution: metadata.Distribution) -> tuple[str, bool]:
    """Return a package's licence, and whether it is an SPDX expression."""
    about = distribution.metadata
    if about.get("License-Expression"):
        return about["License-Expression"], True
    classifiers = [c for c in about.get_all("Classifier") or () if c.startswith("License ::")]
    if classifiers:
        return ", ".join(c.rsplit(" :: ", 1)[-1] for c in classifiers), False
    return (about.get("License") or "see its files").strip().splitlines()[0], False


def read_licence_texts(distribution: metadata.Distribution) -> list[tuple[str, str]]:
    """Return (file name, text) of every licence file that a package carries, in order of name."""
    texts = []
    for file in sorted(distribution.files or (), key=str):
        in_metadata = file.parts[0].endswith(".dist-info")
        if in_metadata and LICENCE_FILE.search(file.name) and file.suffix not in (".py", ".pyc"):
            path = Path(str(distribution.locate_file(file)))
            texts.append((file.name, path.read_text(encoding="utf-8", errors="replace").strip()))
    return texts


def find_python_licence() -> Path:
    """Return Python's own LICENSE file, wherever this build of it keeps one."""
    library = Path(os.__file__).parent
    for folder in (library, Path(sys.base_prefix), library.parent):
        for name in ("LICENSE.txt", "LICENSE"):
            if (folder / name).is_file():
                return folder / name
    raise SystemExit(f"Python's LICENSE.txt is neither in {library} nor in {sys.base_prefix}")


def _name_system_library(file_name: str) -> tuple[str, str]:
    bare = file_name.lower().removeprefix("lib")
    for start, name, licence in SYSTEM_LIBRARIES:
        if bare.startswith(start) or file_name.lower().startswith(start):
            return name, licence
    print(f"notices: no licence is known for {file_name}: add it to SYSTEM_LIBRARIES")
    return file_name, "NOASSERTION"


def render_licences(
    distributions: list[metadata.Distribution], libraries: list[tuple[str, str]]
) -> str:
    """Return the text of THIRD_PARTY_LICENSES: an overview, then every licence in full."""
    lines = [
        "code-memory is published under the MIT licence (see LICENSE). It contains the parts below,",
        "each under its own licence.",
        "",
    ]
    for distribution in distributions:
        licence, _ = name_licence(distribution)
        lines.append(f"- {distribution.metadata['Name']} {distribution.version}: {licence}")
    lines.append(f"- Python {sys.version.split()[0]}: PSF-2.0")
    lines.append("- PyInstaller's bootloader: GPL-2.0-or-later WITH Bootloader-exception")
    lines += [f"- {name}: {licence}" for name, licence in libraries if name != "Python"]
    sections = [
        (f"{d.metadata['Name']} {d.version}, {name}", text)
        for d in distributions
        for name, text in read_licence_texts(d)
    ]
    python_licence = find_python_licence().read_text(encoding="utf-8", errors="replace").strip()
    sections.append((f"Python {sys.version.split()[0]}", python_licence))
    for path in sorted((ROOT / "model").glob("*")):
        if LICENCE_FILE.search(path.name):
            sections.append((f"embedding model, {path.name}", path.read_text("utf-8").strip()))
    for title, text in sections:
        lines += ["", "=" * 78, title, "=" * 78, "", text]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"


def build_sbom(
    distributions: list[metadata.Distribution], libraries: list[tuple[str, str]], version: str
) -> dict[str, object]:
    """Return the bill of materials as CycloneDX 1.6."""
    components: list[dict[str, object]] = []
    for distribution in distributions:
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        licence, is_expression = name_licence(distribution)
        purl = f"pkg:pypi/{name}@{distribution.version}"
        components.append(
            {
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": distribution.version,
                "purl": purl,
                "licenses": [
                    {"expression": licence} if is_expression else {"license": {"name": licence}}
                ],
            }
        )
    python = sys.version.split()[0]
    components.append(
        {
            "type": "platform",
            "bom-ref": f"pkg:generic/python@{python}",
            "name": "python",
            "version": python,
            "purl": f"pkg:generic/python@{python}",
            "licenses": [{"expression": "PSF-2.0"}],
        }
    )
    for name, licence in libraries:
        if name != "Python":
            components.append(
                {
                    "type": "library",
                    "bom-ref": f"system:{name}",
                    "name": name,
                    "licenses": [{"license": {"name": licence}}],
                }
            )
    model = ROOT / "model" / "model.safetensors"
    if model.is_file():
        digest = hashlib.sha256(model.read_bytes()).hexdigest()
        components.append(
            {
                "type": "machine-learning-model",
                "bom-ref": f"model:{digest[:12]}",
                "name": "code-memory embedding model",
                "version": digest[:12],
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
        )
    made = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    whole = json.dumps(components, sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, whole)}",
        "version": 1,
        "metadata": {
            "timestamp": made.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": f"code-memory@{version}",
                "name": "code-memory",
                "version": version,
                "licenses": [{"license": {"id": "MIT"}}],
            },
        },
        "components": components,
    }


def write_notices(folder: Path, sources: Iterable[str], version: str) -> list[Path]:
    """Write both files for the program that is made of the given source files."""
    distributions, strays = find_distributions(sources)
    libraries = sorted({_name_system_library(name) for name in strays})
    folder.mkdir(parents=True, exist_ok=True)
    licences, sbom = folder / "THIRD_PARTY_LICENSES.txt", folder / "sbom.cdx.json"
    licences.write_bytes(render_licences(distributions, libraries).encode())
    content = json.dumps(build_sbom(distributions, libraries, version), indent=1) + "\n"
    sbom.write_bytes(content.encode())
    return [licences, sbom]
