#!/usr/bin/env python3
"""Make the macOS package from a frozen folder, on a Mac: one person's program, no administrator.

usage: build_macos.py [--payload dist/code-memory] [--out FOLDER] [--arch arm64|x86_64] [--entitlements]

    ~/Library/Application Support/code-memory/   the program
    ~/Applications/code-memory/                  browse, check, forget, remove: by double-click
    at the end                                   code-memory mcp install (scripts/postinstall)

Signing is a matter of the environment. Without these the package is the same, but unsigned:

    CODESIGN_IDENTITY      "Developer ID Application: ..."; read by build/freeze.py too, which signs
                           every library of the program, with CODESIGN_ENTITLEMENTS
    INSTALLER_IDENTITY     "Developer ID Installer: ..."
    NOTARY_KEY, NOTARY_KEY_ID, NOTARY_ISSUER    an App Store Connect key: its file, id and issuer

`build_macos.py --entitlements` prints the entitlements file, for CODESIGN_ENTITLEMENTS.
"""

from __future__ import annotations

import argparse
import os
import platform
import plistlib
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "build"))

import freeze

IDENTIFIER = "io.github.code-memory"
PROGRAM_FOLDER = "Library/Application Support/code-memory"
ENTRIES_FOLDER = "Applications/code-memory"

# Name that a person reads -> the command behind it.
ENTRIES = {
    "Browse memories": "browse",
    "Check that it works": "doctor",
    "Forget memories": "forget",
    "Remove code-memory": "uninstall",
}

# The hardened runtime lets a program load only libraries of Apple and of its own team; a build
# that is signed by nobody in particular, or a library that somebody adds, would fail. It is the
# one thing asked for: nothing here writes machine code at run time.
ENTITLEMENTS = {"com.apple.security.cs.disable-library-validation": True}

WELCOME = {
    "en": (
        "code-memory keeps your past coding sessions on this Mac and lets Claude Desktop search them.",
        "Nothing leaves this Mac. No administrator is needed.",
        "If Claude Desktop is open, please quit it first (Claude menu, then Quit).",
    ),
    "ko": (
        "code-memory는 지난 코딩 대화를 이 Mac에 보관하고 Claude Desktop이 검색할 수 있게 합니다.",
        "아무것도 이 Mac 밖으로 나가지 않습니다. 관리자 권한은 필요 없습니다.",
        "Claude Desktop이 열려 있으면 먼저 종료해 주세요(Claude 메뉴에서 종료).",
    ),
    "ja": (
        "code-memory は過去のコーディングの会話をこの Mac に保管し、Claude Desktop から検索できるようにします。",
        "データが外に出ることはありません。管理者の権限は不要です。",
        "Claude Desktop が開いている場合は、先に終了してください(Claude メニューの「終了」)。",
    ),
    "zh-Hans": (
        "code-memory 把您过去的编程对话保存在这台 Mac 上，并让 Claude Desktop 可以搜索它们。",
        "任何内容都不会离开这台 Mac，也不需要管理员权限。",
        "如果 Claude Desktop 已打开，请先退出它（Claude 菜单中的退出）。",
    ),
}
CONCLUSION = {
    "en": (
        "Quit Claude Desktop and open it again. Then ask, for example: “What did I work on last week?”",
        "The folder code-memory in Applications, in your home folder, lets you look through your "
        + "memories, check that everything works, and remove it.",
    ),
    "ko": (
        "Claude Desktop을 종료했다가 다시 여세요. 그리고 “지난주에 내가 무슨 작업을 했지?”라고 물어보세요.",
        "응용 프로그램 폴더 안의 code-memory 폴더에서 기억을 살펴보고, 확인하고, 제거할 수 있습니다.",
    ),
    "ja": (
        "Claude Desktop を終了し、もう一度開いてください。そして「先週は何の作業をしていた?」と聞いてみてください。",
        "アプリケーションフォルダーの code-memory から、記憶を見る、確認する、削除することができます。",
    ),
    "zh-Hans": (
        "请退出 Claude Desktop，然后重新打开，并试着提问：“我上周做了什么？”",
        "“应用程序”文件夹里的 code-memory 文件夹可用来查看记忆、检查和卸载。",
    ),
}


def run(*command: str | Path) -> None:
    """Run one of Apple's tools; a failure ends the build."""
    subprocess.run([str(word) for word in command], check=True)


def render_entitlements() -> bytes:
    """Return the entitlements as a property list."""
    return plistlib.dumps(ENTITLEMENTS)


def render_page(lines: tuple[str, ...]) -> str:
    """Return a page of the installer: it follows the person's light or dark window."""
    paragraphs = "".join(f"<p>{line}</p>\n" for line in lines)
    style = "body { font: 13px -apple-system; } :root { color-scheme: light dark; }"
    head = f'<head><meta charset="utf-8"><style>{style}</style></head>'
    return f"<!DOCTYPE html>\n<html>{head}<body>\n{paragraphs}</body></html>\n"


def render_distribution(version: str, arch: str) -> str:
    """Return productbuild's description: into the home folder only, on this processor only."""
    root = ET.Element("installer-gui-script", minSpecVersion="2")
    ET.SubElement(root, "title").text = "code-memory"
    ET.SubElement(
        root,
        "options",
        {"customize": "never", "require-scripts": "false", "hostArchitectures": arch},
    )
    ET.SubElement(
        root,
        "domains",
        enable_anywhere="false",
        enable_currentUserHome="true",
        enable_localSystem="false",
    )
    allowed = ET.SubElement(ET.SubElement(root, "volume-check"), "allowed-os-versions")
    ET.SubElement(allowed, "os-version", min=freeze.MACOS_FLOOR.replace("_", "."))
    ET.SubElement(root, "welcome", {"file": "welcome.html", "mime-type": "text/html"})
    ET.SubElement(root, "conclusion", {"file": "conclusion.html", "mime-type": "text/html"})
    outline = ET.SubElement(root, "choices-outline")
    ET.SubElement(outline, "line", choice="all")
    choice = ET.SubElement(root, "choice", id="all", title="code-memory")
    ET.SubElement(choice, "pkg-ref", id=IDENTIFIER)
    reference = ET.SubElement(root, "pkg-ref", id=IDENTIFIER, version=version, onConclusion="none")
    reference.text = "program.pkg"
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def stage_files(payload: Path, root: Path) -> None:
    """Lay out what the package brings, as it will lie below the home folder."""
    # links stay links: PyInstaller makes them, and a signature covers them as such
    shutil.copytree(payload, root / PROGRAM_FOLDER, symlinks=True)
    folder = root / ENTRIES_FOLDER
    folder.mkdir(parents=True)
    template = (HERE / "entry.command").read_text(encoding="utf-8")
    for name, command in ENTRIES.items():
        entry = folder / f"{name}.command"
        entry.write_text(template.replace('code-memory" COMMAND', f'code-memory" {command}'))
        entry.chmod(0o755)


def stage_scripts(folder: Path) -> None:
    """Copy the two scripts that the installer runs."""
    folder.mkdir(parents=True)
    for script in (HERE / "scripts").iterdir():
        copy = folder / script.name
        shutil.copyfile(script, copy)
        copy.chmod(0o755)


def stage_resources(folder: Path) -> None:
    """Write the installer's two pages in every language."""
    for pages, name in ((WELCOME, "welcome.html"), (CONCLUSION, "conclusion.html")):
        for language, lines in pages.items():
            page = folder / f"{language}.lproj" / name
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(render_page(lines), encoding="utf-8")


def build_package(payload: Path, out: Path, arch: str, env: Mapping[str, str]) -> Path:
    """Make, and where the environment allows it sign, notarise and staple, the package."""
    program = payload / "code-memory"
    if not program.is_file():
        raise SystemExit(f"{payload} holds no code-memory: run build/freeze.py on this Mac first.")
    version = freeze.read_version()
    out.mkdir(parents=True, exist_ok=True)
    package = out / f"code-memory-{version}-macos-{arch}.pkg"
    if env.get("CODESIGN_IDENTITY"):
        run("codesign", "--verify", "--strict", "--verbose=2", program)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        stage_files(payload, scratch / "root")
        stage_scripts(scratch / "scripts")
        stage_resources(scratch / "resources")
        (scratch / "distribution.xml").write_text(render_distribution(version, arch), "utf-8")
        run(
            "pkgbuild", "--root", scratch / "root", "--identifier", IDENTIFIER, "--version", version,
            "--scripts", scratch / "scripts", "--install-location", "/", "--ownership", "recommended",
            scratch / "program.pkg",
        )  # fmt: skip
        signing = []
        if env.get("INSTALLER_IDENTITY"):
            signing = ["--sign", env["INSTALLER_IDENTITY"], "--timestamp"]
        run(
            "productbuild", "--distribution", scratch / "distribution.xml", "--resources",
            scratch / "resources", "--package-path", scratch, *signing, package,
        )  # fmt: skip
    if env.get("INSTALLER_IDENTITY") and env.get("NOTARY_KEY"):
        run(
            "xcrun", "notarytool", "submit", package, "--wait", "--key", env["NOTARY_KEY"],
            "--key-id", env["NOTARY_KEY_ID"], "--issuer", env["NOTARY_ISSUER"],
        )  # fmt: skip
        run("xcrun", "stapler", "staple", package)
        run("spctl", "--assess", "--type", "install", "--verbose", package)
    return package


def main(argv: list[str] | None = None) -> int:
    """Make the package for this Mac's processor and say how large it is."""
    parser = argparse.ArgumentParser(description="Make the macOS package.")
    parser.add_argument("--payload", type=Path, default=ROOT / "dist" / "code-memory")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--arch", choices=("arm64", "x86_64"), default=platform.machine())
    parser.add_argument("--entitlements", action="store_true", help="print the entitlements file")
    args = parser.parse_args(argv)
    if args.entitlements:
        sys.stdout.write(render_entitlements().decode())
        return 0
    package = build_package(args.payload, args.out, args.arch, os.environ)
    print(f"{package.stat().st_size / 1e6:7.1f} MB  {package.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
