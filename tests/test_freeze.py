"""Freezing: what can be checked of it in a moment, and (marked `freeze`) the whole of it, twice."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
import sys
import tarfile
import tomllib
import zlib
from pathlib import Path

import pytest
from conftest import WAIT

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "build"))

import freeze
import icon
import lock
import notices
import trial

MOST_MEGABYTES = 45  # of what a person downloads
MOST_TIMES_BARE = 1.1  # start of the onedir, compared with a bare server on the SDK

LOCKS = [f"requirements-{system}.lock" for system in lock.SYSTEMS]


def read_lock(name: str) -> dict[str, str]:
    """Package -> version, as one lock file says."""
    text = (ROOT / "build" / name).read_text("utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


# === Locks ====================================================================


@pytest.mark.parametrize("name", LOCKS)
def test_locks_hold_hashes_and_no_address(name: str) -> None:
    text = (ROOT / "build" / name).read_text("utf-8")
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(entries) > 30
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text
    assert str(ROOT) not in text


@pytest.mark.parametrize("name", LOCKS)
def test_locks_hold_every_dependency(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = project["dependencies"]
    extra = (ROOT / "build" / "requirements-freeze.in").read_text("utf-8").splitlines()
    wanted = wanted + [line for line in extra if line and not line.startswith("#")]
    locked = read_lock(name)
    missing = [w for w in wanted if re.split(r"[^A-Za-z0-9-]", w)[0].lower() not in locked]
    assert not missing, "run build/lock.py"


def test_locks_agree_on_our_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    ours = [re.split(r"[^A-Za-z0-9-]", text)[0].lower() for text in project["dependencies"]]
    versions = {tuple(read_lock(name)[package] for package in ours) for name in LOCKS}
    assert len(versions) == 1


# === Icon =====================================================================


def test_icon_has_every_size() -> None:
    data = icon.encode_ico()
    kind, count = struct.unpack_from("<HH", data, 2)
    assert (kind, count) == (1, len(icon.ICO_SIZES))
    for number, size in enumerate(icon.ICO_SIZES):
        width, _, _, _, _, bits, length, offset = struct.unpack_from(
            "<BBBBHHII", data, 6 + 16 * number
        )
        assert (width or 256, bits) == (size, 32)
        assert len(data) >= offset + length
        if size == 256:
            assert data[offset:].startswith(b"\x89PNG")


def test_icon_png_is_what_was_drawn() -> None:
    pixels = icon.draw(16)
    png = icon.encode_png(16, pixels)
    [data] = re.findall(rb"IDAT(.*)....\0\0\0\0IEND", png, re.DOTALL)
    rows = zlib.decompress(data)
    assert rows[1:65] == pixels[:64]
    assert pixels[3] == 0, "the corner is clear"
    assert pixels[(8 * 16 + 4) * 4 + 3] == 255, "the middle is not"


def test_icns_holds_pngs() -> None:
    data = icon.encode_icns()
    assert data[:4] == b"icns"
    assert struct.unpack(">I", data[4:8])[0] == len(data)


# === Notices ==================================================================


def test_notices_name_what_was_collected_and_nothing_else() -> None:
    import platformdirs  # stands for a package that was collected

    found, strays = notices.find_distributions([platformdirs.__file__, "/lib/libexample.so.1"])
    assert [d.metadata["Name"] for d in found] == ["platformdirs"]
    assert strays == ["libexample.so.1"]
    text = notices.render_licences(found, [("OpenSSL", "Apache-2.0")])
    assert "- platformdirs " in text
    assert "Permission is hereby granted" in text
    assert "- OpenSSL: Apache-2.0" in text
    assert "- pytest" not in text


def test_sbom_is_the_same_for_the_same_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    found, _ = notices.find_distributions([platformdirs.__file__])
    one = notices.build_sbom(found, [("zlib", "Zlib")], "1.2.3")
    assert one == notices.build_sbom(found, [("zlib", "Zlib")], "1.2.3")
    assert one["specVersion"] == "1.6"
    assert one["metadata"]["timestamp"] == "2026-01-01T00:00:00Z"  # type: ignore[index]
    names = [component["name"] for component in one["components"]]  # type: ignore[attr-defined]
    assert names[:3] == ["platformdirs", "python", "zlib"]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        pytest.param("libcrypto.so.3", "OpenSSL", id="with lib"),
        pytest.param("libcrypto-3.dll", "OpenSSL", id="Windows"),
        pytest.param("VCRUNTIME140_1.dll", "Microsoft Visual C++ runtime", id="upper case"),
        pytest.param("libpython3.12.so.1.0", "Python", id="Python itself"),
        pytest.param("libz.so.1", "zlib", id="one letter"),
    ],
)
def test_system_libraries_have_a_licence(file: str, name: str) -> None:
    assert notices._name_system_library(file)[0] == name


# === The recipe ===============================================================


def test_version_stands_in_one_place() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", freeze.read_version())


def test_spec_is_python() -> None:
    compile((ROOT / "build" / "code-memory.spec").read_text("utf-8"), "code-memory.spec", "exec")


def test_nothing_is_left_out_that_the_program_imports() -> None:
    source = (ROOT / "code_memory.py").read_text("utf-8")
    imported = set(re.findall(r"^\s*(?:import|from) ([a-z_0-9]+)", source, re.MULTILINE))
    assert not imported & set(freeze.EXCLUDED_MODULES)


# Runs a program as if the modules named in its first argument were not there.
RUN_WITHOUT = """
import json, runpy, sys
missing = json.loads(sys.argv[1])
class Missing:
    def find_spec(self, name, path=None, target=None):
        if any(name == m or name.startswith(m + ".") for m in missing):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("command", ["sync", "search", "serve"])
def test_program_runs_without_what_is_left_out(tmp_path: Path, command: str) -> None:
    trial.write_corpus(tmp_path)
    env = {**trial.build_environment(tmp_path), "CODE_MEMORY_DEBUG": "1"}
    program = str(ROOT / "code_memory.py")
    without = [sys.executable, "-c", RUN_WITHOUT, json.dumps(freeze.EXCLUDED_MODULES), program]

    def run(*words: str, text: str = "") -> str:
        done = subprocess.run(
            [*without, *words],
            env=env,
            cwd=tmp_path,
            input=text.encode("utf-8"),
            capture_output=True,
            check=False,
            timeout=WAIT,
        )
        assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
        return done.stdout.decode("utf-8")

    if command == "serve":
        hello = '{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
        assert '"result"' in run("mcp", "serve", text=hello)
        return
    run("sync")
    if command == "search":
        query, talk = trial.BY_MEANING
        assert any(text in run("search", query, "--json") for text in talk)


@pytest.mark.parametrize(
    ("file", "left_out"),
    [
        pytest.param("numpy/tests/data.npy", True, id="tests"),
        pytest.param("numpy\\_core\\tests\\x", True, id="Windows path"),
        pytest.param("numpy/__init__.pyi", True, id="stub"),
        pytest.param("model/model.safetensors", False, id="the model"),
    ],
)
def test_left_out_files(file: str, left_out: bool) -> None:
    assert freeze.is_left_out(file) is left_out


def test_archive_is_the_same_whoever_packs(tmp_path: Path) -> None:
    sums = set()
    for number, mode in enumerate((0o600, 0o644)):
        folder = tmp_path / str(number) / "code-memory"
        folder.mkdir(parents=True)
        (folder / "b.txt").write_text("b")
        (folder / "b.txt").chmod(mode)
        (folder / "a").symlink_to("b.txt")
        out = freeze.archive(folder, tmp_path / f"{number}.tar.xz")
        sums.add(hashlib.sha256(out.read_bytes()).hexdigest())
    assert len(sums) == 1
    with tarfile.open(out) as tar:
        assert tar.getnames() == ["code-memory/a", "code-memory/b.txt"]
        assert tar.getmember("code-memory/a").issym()


# === The trial ================================================================


def test_questions_of_the_trial_share_no_word_with_the_answer() -> None:
    question, talk = trial.BY_MEANING
    words = set(re.findall(r"\w+", question.lower()))
    for text in (text for pair in trial.TALKS for text in pair):
        assert not words & set(re.findall(r"\w+", text.lower()))
    assert talk in trial.TALKS


def test_trial_fails_for_a_program_that_does_nothing(tmp_path: Path) -> None:
    program = tmp_path / "nothing.py"
    program.write_text("raise SystemExit(3)\n")
    command = [sys.executable, str(ROOT / "build" / "trial.py"), sys.executable, str(program)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 1
    assert "`--version` ended with 3" in done.stdout


# === All of it ================================================================


def sum_files(folder: Path) -> dict[str, str]:
    """Every file below the folder, and its hash."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.freeze
@pytest.mark.skipif(sys.platform != "linux", reason="same bytes are promised on Linux")
def test_frozen_twice_it_is_the_same_works_and_starts_fast(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "build" / "freeze.py"), "--work", str(tmp_path / "work")]
    first, second = tmp_path / "first", tmp_path / "second"
    again = subprocess.run([*command, "--dist", str(second), "--no-trial"], check=False)
    assert again.returncode == 0
    done = subprocess.run(
        [*command, "--dist", str(first), "--archive", "--pyz", "--measure"],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    print(done.stdout)
    assert done.returncode == 0
    assert done.stdout.count("✓") == 3 * len(trial.STEPS)  # folder, single file, zipapp
    names = sum_files(second)
    assert {k: v for k, v in sum_files(first).items() if k in names} == names
    [packed] = first.glob("*.tar.xz")
    assert packed.stat().st_size / 1e6 <= MOST_MEGABYTES
    inside = first / "code-memory" / "_internal"
    assert list((inside / "sqlite_vec").glob("vec0.*"))
    sbom = json.loads((inside / "sbom.cdx.json").read_text("utf-8"))
    collected = {component["name"] for component in sbom["components"]}
    assert {"apsw", "mcp", "model2vec", "numpy", "tokenizers", "python"} <= collected
    assert not {"pip", "pyinstaller", "shiv", "pytest"} & collected
    assert "apsw" in (inside / "THIRD_PARTY_LICENSES.txt").read_text("utf-8")
    bare = tmp_path / "work" / "bare" / "bare_server" / "bare_server"
    assert starts_as_fast(first / "code-memory" / "code-memory", bare)


def starts_as_fast(program: Path, bare: Path) -> bool:
    """Say whether the program starts as fast as it should, compared with a bare server.

    The quickest starts are compared. Other work on the machine makes starts slower and never
    quicker, so more are taken, of both in turns, for as long as they do not agree.
    """
    commands = {"ours": [str(program), "mcp", "serve"], "bare": [str(bare)]}
    ours, least = float("inf"), float("inf")
    for _ in range(12):
        taken = freeze.measure_starts(commands)
        ours, least = min(ours, taken["ours"]), min(least, taken["bare"])
        print(f"quickest start: {ours:.0f} ms, of a bare server {least:.0f} ms")
        if ours <= MOST_TIMES_BARE * least:
            return True
    return False
