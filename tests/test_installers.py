"""The installers' parts that need neither Windows nor a Mac, and the workflows that use them."""

from __future__ import annotations

import json
import os
import plistlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
import zipfile
from pathlib import Path

import pytest
from conftest import WAIT

ROOT = Path(__file__).resolve().parent.parent
INSTALLERS = ROOT / "installers"
for folder in (
    ROOT / "build",
    INSTALLERS,
    *(INSTALLERS / name for name in ("windows", "macos", "mcpb")),
):
    sys.path.insert(0, str(folder))

import build_macos
import build_mcpb
import build_windows
import freeze
import release

NEEDS_SH = pytest.mark.skipif(os.name == "nt", reason="the scripts are for a Unix shell")


def write_script(path: Path, text: str) -> None:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


# === Windows ==================================================================


def test_every_text_is_said_in_four_languages() -> None:
    text = (INSTALLERS / "windows" / "text.nsh").read_text("utf-8")
    joined = text.replace("\\\n", " ")
    said = re.findall(r"^!insertmacro SAY (\w+)\s+(.*)$", joined, re.MULTILINE)
    assert len(said) >= 12
    for name, rest in said:
        strings = re.findall(r'"((?:[^"$]|\$\\?.)*)"', rest)
        assert len(strings) == 4, name
        assert re.search("[가-힣]", strings[1]), name
        assert re.search("[ぁ-んァ-ン]", strings[2]), name
        assert re.search("[一-鿿]", strings[3]), name


def test_every_text_is_used() -> None:
    text = (INSTALLERS / "windows" / "text.nsh").read_text("utf-8")
    script = (INSTALLERS / "windows" / "code-memory.nsi").read_text("utf-8")
    for name in re.findall(r"SAY (\w+)", text):
        if name != "NAME":
            assert name in script


def test_menu_script_is_plain_and_has_windows_line_ends() -> None:
    data = (INSTALLERS / "windows" / "menu.cmd").read_bytes()
    assert data.isascii()
    assert data.count(b"\n") == data.count(b"\r\n")
    assert data.rstrip().endswith(b"pause")


def test_an_installer_needs_a_frozen_program(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"run build/freeze\.py on Windows first"):
        build_windows.build_installer(tmp_path, tmp_path)


@pytest.mark.skipif(not shutil.which("makensis"), reason="makensis is not installed")
def test_the_installer_compiles_to_the_same_bytes(tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    (payload / "_internal").mkdir(parents=True)
    (payload / "code-memory.exe").write_bytes(b"MZ")
    (payload / "_internal" / "x").write_bytes(b"x")
    one = build_windows.build_installer(payload, tmp_path / "1", quick=True)
    two = build_windows.build_installer(payload, tmp_path / "2", quick=True)
    assert one.name == f"code-memory-{freeze.read_version()}-windows-x86_64-setup.exe"
    assert one.read_bytes() == two.read_bytes()


@NEEDS_SH
@pytest.mark.skipif(not shutil.which("osslsigncode"), reason="osslsigncode is not installed")
@pytest.mark.skipif(not shutil.which("makensis"), reason="makensis is not installed")
def test_signing_covers_the_installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate, bundle, word = (tmp_path / n for n in ("key", "cert", "p12", "word"))
    word.write_text("secret")
    subject = ["-subj", "/CN=code-memory test", "-addext", "extendedKeyUsage=codeSigning"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*make, *files], check=True, capture_output=True)
    export = ["openssl", "pkcs12", "-export", "-inkey", str(key), "-in", str(certificate)]
    target = ["-out", str(bundle), "-passout", f"file:{word}"]
    subprocess.run([*export, *target], check=True, capture_output=True)
    payload = tmp_path / "payload"
    payload.mkdir()
    (payload / "code-memory.exe").write_bytes(b"MZ")
    monkeypatch.setenv("SIGNING_CERTIFICATE", str(bundle))
    monkeypatch.setenv("SIGNING_PASSWORD_FILE", str(word))
    script = INSTALLERS / "windows" / "sign.sh"
    monkeypatch.setenv("CODE_MEMORY_SIGN", f'bash "{script}" "%1"')
    setup = build_windows.build_installer(payload, tmp_path, quick=True)
    verify = ["osslsigncode", "verify", "-CAfile", str(certificate), "-in", str(setup)]
    told = subprocess.run(verify, check=False, capture_output=True, text=True)
    assert "code-memory test" in told.stdout
    assert told.returncode == 0, told.stdout


# === macOS ====================================================================


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    """A folder that looks like what freeze.py makes on a Mac, with one of its links."""
    payload = tmp_path / "code-memory"
    write_script(payload / "code-memory", 'echo "ran $*"\n')
    (payload / "_internal").mkdir()
    (payload / "_internal" / "libx.1.dylib").write_bytes(b"x")
    (payload / "_internal" / "libx.dylib").symlink_to("libx.1.dylib")
    return payload


@pytest.fixture
def apple(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Apple's tools as scripts that write down how they were called; returns that list's file."""
    calls = tmp_path / "calls"
    for tool in ("pkgbuild", "productbuild", "codesign", "xcrun", "spctl"):
        keep = ""
        if tool in ("pkgbuild", "productbuild"):
            # the last word is the package; keep what it was made of
            keep = f'for last; do :; done; : > "$last"; [ -e "$2" ] && cp -RP "$2" "{tmp_path}/{tool}"\n'
        write_script(tmp_path / "bin" / tool, f'echo "{tool} $*" >> "{calls}"\n{keep}')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return calls


@NEEDS_SH
def test_package_is_made_unsigned_without_secrets(
    tmp_path: Path, frozen: Path, apple: Path
) -> None:
    package = build_macos.build_package(frozen, tmp_path / "out", "arm64", {})
    assert package.name == f"code-memory-{freeze.read_version()}-macos-arm64.pkg"
    called = [line.split()[0] for line in apple.read_text().splitlines()]
    assert called == ["pkgbuild", "productbuild"]
    assert "--sign" not in apple.read_text()
    root = tmp_path / "pkgbuild"
    program = root / "Library" / "Application Support" / "code-memory"
    assert (program / "_internal" / "libx.dylib").is_symlink()
    entries = root / "Applications" / "code-memory"
    assert {e.stem for e in entries.iterdir()} == set(build_macos.ENTRIES)
    for entry in entries.iterdir():
        assert entry.stat().st_mode & stat.S_IXUSR


@NEEDS_SH
def test_package_is_signed_notarised_and_stapled(tmp_path: Path, frozen: Path, apple: Path) -> None:
    secrets = {
        "CODESIGN_IDENTITY": "Developer ID Application: X",
        "INSTALLER_IDENTITY": "Developer ID Installer: X",
        "NOTARY_KEY": "key.p8",
        "NOTARY_KEY_ID": "ID",
        "NOTARY_ISSUER": "ISSUER",
    }
    build_macos.build_package(frozen, tmp_path / "out", "x86_64", secrets)
    lines = apple.read_text().splitlines()
    words = [" ".join(line.split()[:3]) for line in lines]
    assert words[0].startswith("codesign --verify")
    assert words[3:] == [
        "xcrun notarytool submit",
        "xcrun stapler staple",
        "spctl --assess --type",
    ]
    assert "--sign Developer ID Installer: X --timestamp" in lines[2]


def test_distribution_is_for_one_person_and_one_processor() -> None:
    root = ET.fromstring(build_macos.render_distribution("1.2.3", "arm64"))
    domains = root.find("domains")
    assert domains is not None
    assert domains.attrib == {
        "enable_anywhere": "false",
        "enable_currentUserHome": "true",
        "enable_localSystem": "false",
    }
    options = root.find("options")
    assert options is not None
    assert options.get("hostArchitectures") == "arm64"
    assert {ref.get("id") for ref in root.iter("pkg-ref")} == {build_macos.IDENTIFIER}


def test_entitlements_are_the_fewest() -> None:
    assert plistlib.loads(build_macos.render_entitlements()) == {
        "com.apple.security.cs.disable-library-validation": True
    }


def test_pages_are_in_the_same_languages() -> None:
    assert build_macos.WELCOME.keys() == build_macos.CONCLUSION.keys()


class Mac:
    """A home folder and stand-ins for a Mac's commands, to run the package's scripts in."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.program = self.home / "Library" / "Application Support" / "code-memory" / "code-memory"
        self.calls = folder / "calls"
        self.bin = folder / "bin"
        self.person, self.is_root = "dana", False
        write_script(
            self.program, f'echo "program $*" >> "{self.calls}"; echo report; exit ${{CODE:-0}}\n'
        )
        self.fake("osascript", "")
        self.fake("launchctl", 'shift 2; exec "$@"')
        self.fake("sudo", 'shift 2; exec "$@"')
        self.fake("dscl", f'echo "NFSHomeDirectory: {self.home}"')

    def fake(self, name: str, body: str) -> None:
        write_script(self.bin / name, f'echo "{name} $*" >> "{self.calls}"\n{body}\n')

    def run(self, script: str, **env: str) -> list[str]:
        """Run a script; return what it called, one line each."""
        number = "0" if self.is_root else "501"
        self.fake("id", f"[ $# -eq 1 ] && echo {number} || echo 501")
        self.fake("stat", f"echo {self.person}")
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        words = ["sh", str(INSTALLERS / "macos" / "scripts" / script)]
        done = subprocess.run(
            words, env={"PATH": path, "HOME": str(self.home), **env}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self.told = done.stdout
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def mac(tmp_path: Path) -> Mac:
    return Mac(tmp_path)


@NEEDS_SH
def test_postinstall_sets_up_claude_and_says_so(mac: Mac) -> None:
    calls = mac.run("postinstall")
    assert "program mcp install" in calls
    [window] = [call for call in calls if call.startswith("osascript")]
    assert "is ready" in window
    assert (mac.home / "Library/Logs/code-memory-install.log").read_text() == "report\n"


@NEEDS_SH
def test_postinstall_tells_a_failure_without_failing(mac: Mac) -> None:
    calls = mac.run("postinstall", CODE="1")
    [window] = [call for call in calls if call.startswith("osascript")]
    assert "could not be set up" in window
    assert "could not be set up" in mac.told


@NEEDS_SH
def test_postinstall_opens_no_window_on_a_command_line(mac: Mac) -> None:
    calls = mac.run("postinstall", COMMAND_LINE_INSTALL="1")
    assert not [call for call in calls if call.startswith("osascript")]
    assert "is ready" in mac.told


@NEEDS_SH
def test_postinstall_as_root_acts_for_the_person_at_the_screen(mac: Mac) -> None:
    mac.is_root = True
    calls = mac.run("postinstall")
    assert any(c.startswith("launchctl asuser 501 sudo -u dana env HOME=") for c in calls)
    assert "program mcp install" in calls


@NEEDS_SH
@pytest.mark.parametrize("person", ["root", "loginwindow", "_mbsetupuser"])
@pytest.mark.parametrize("script", ["preinstall", "postinstall"])
def test_nothing_is_done_at_the_login_window(mac: Mac, person: str, script: str) -> None:
    mac.is_root, mac.person = True, person
    calls = mac.run(script)
    assert not [call for call in calls if call.startswith(("program", "launchctl", "osascript"))]
    assert mac.program.exists()


@NEEDS_SH
def test_preinstall_ends_our_servers_only_and_clears_old_files(mac: Mac) -> None:
    (mac.program.parent / "_internal").mkdir()
    ours, other = (subprocess.Popen(["sleep", str(3 * WAIT)]) for _ in range(2))
    try:
        claude = "/Applications/Claude.app/Contents/MacOS/Claude"
        mac.fake("ps", f'echo "{ours.pid} {mac.program}"\necho "{other.pid} {claude}"')
        mac.run("preinstall")
        assert ours.wait(WAIT) == -signal.SIGTERM
        time.sleep(0.1)
        assert other.poll() is None
    finally:
        for process in (ours, other):
            process.kill()
    assert not (mac.program.parent / "_internal").exists()
    assert not mac.program.exists()


@NEEDS_SH
def test_entries_run_their_command_and_wait(tmp_path: Path, frozen: Path) -> None:
    build_macos.stage_files(frozen, tmp_path / "home")
    entry = tmp_path / "home" / "Applications" / "code-memory" / "Check that it works.command"
    env = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"], "TERM": "dumb"}
    done = subprocess.run(
        ["sh", str(entry)], env=env, input="\n", capture_output=True, text=True, check=False
    )
    assert "ran doctor" in done.stdout
    assert "Press Return" in done.stdout


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shell_scripts_are_clean() -> None:
    scripts = [*(INSTALLERS / "macos" / "scripts").iterdir()]
    scripts += [INSTALLERS / "macos" / "entry.command", INSTALLERS / "windows" / "sign.sh"]
    subprocess.run(["shellcheck", *map(str, scripts)], check=True)


# === .mcpb ====================================================================


def test_bundle_starts_the_program_in_itself(tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    (payload / "_internal").mkdir(parents=True)
    (payload / "code-memory.exe").write_bytes(b"MZ")
    (payload / "_internal" / "x").write_bytes(b"x")
    bundle = build_mcpb.pack(payload, tmp_path / "1")
    with zipfile.ZipFile(bundle) as zipped:
        names = zipped.namelist()
        manifest = json.loads(zipped.read("manifest.json"))
    assert names[0] == "manifest.json"
    assert manifest["server"]["entry_point"] in names
    assert manifest["icon"] in names
    assert manifest["version"] == freeze.read_version()
    assert manifest["compatibility"]["platforms"] == ["win32"]
    assert bundle.read_bytes() == build_mcpb.pack(payload, tmp_path / "2").read_bytes()


def test_bundle_names_the_servers_tools() -> None:
    source = (ROOT / "code_memory.py").read_text("utf-8")
    for name in build_mcpb.TOOLS:
        assert f'"{name}"' in source


# === Release ==================================================================


def test_notes_are_the_versions_own() -> None:
    changelog = "# Changelog\n\n## [1.2.30] - x\n\nno\n\n## [1.2.3] - 2026-01-01\n\n- yes\n\n## 1.2.2\n\nno\n"
    assert release.find_notes(changelog, "1.2.3") == "- yes\n"
    with pytest.raises(SystemExit, match="no section for 2"):
        release.find_notes(changelog, "2.0.0")


def test_tag_must_be_the_version() -> None:
    release.check_tag("v1.2.3", "1.2.3")
    with pytest.raises(SystemExit, match=r"The tag is v1\.2\.4"):
        release.check_tag("v1.2.4", "1.2.3")


def test_manifests_come_from_one_template(tmp_path: Path) -> None:
    names = [
        "code-memory-1.2.3-windows-x86_64-setup.exe",
        "code-memory-windows-x86_64.exe",
        "code-memory-1.2.3-macos-arm64.tar.xz",
        "code-memory-1.2.3-macos-x86_64.tar.xz",
    ]
    for name in names:
        (tmp_path / name).write_text(name)
    downloads = "file:///owner/code-memory/releases/download/v1.2.3"
    manifests = release.render_manifests(tmp_path, downloads, "1.2.3")
    assert set(manifests) == {
        "winget/CodeMemory.CodeMemory.yaml",
        "winget/CodeMemory.CodeMemory.installer.yaml",
        "winget/CodeMemory.CodeMemory.locale.en-US.yaml",
        "homebrew/code-memory.rb",
        "scoop/code-memory.json",
    }
    scoop = json.loads(manifests["scoop/code-memory.json"])
    assert scoop["homepage"] == "file:///owner/code-memory"
    assert scoop["architecture"]["64bit"]["hash"] == release.hash_file(tmp_path / names[1])
    assert '"$dir' in scoop["pre_uninstall"]
    assert (
        release.hash_file(tmp_path / names[0])
        in manifests["winget/CodeMemory.CodeMemory.installer.yaml"]
    )
    assert "#{version}" in manifests["homebrew/code-memory.rb"]
    assert "${" not in "".join(manifests.values())


@NEEDS_SH
@pytest.mark.skipif(not shutil.which("sha256sum"), reason="sha256sum is not installed")
def test_sums_can_be_checked(tmp_path: Path) -> None:
    (tmp_path / "a.exe").write_bytes(b"a")
    release.write_sums(tmp_path)
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True)


# === Workflows ================================================================

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_start_without_permissions(path: Path) -> None:
    assert re.search(r"^permissions: \{\}$", path.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_hash(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text("utf-8"))
    for action, comment in used:
        if not action.startswith(("$/", "./")):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment)
