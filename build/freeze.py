#!/usr/bin/env python3
"""Make the native program for the system this runs on, and try it.

usage: freeze.py [--here] [--archive] [--pyz] [--measure] [--no-trial] [--work DIR] [--dist DIR]

    build/requirements-<system>.lock --pip, hashes checked--> a clean environment
    code_memory.py + model/ --PyInstaller, code-memory.spec--> dist/code-memory/            onedir
                                                               dist/portable/code-memory    onefile
    each of them --trial.py--> synced, searched, served, installed and uninstalled, or exit 1

The folder and the single file cannot both be dist/code-memory where executables have no suffix,
so the single file has a folder of its own.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

BUILD = Path(__file__).resolve().parent
ROOT = BUILD.parent

# Not reachable from our stdio server, though some of our dependencies name them. Everything here
# was left out together and every tool called; the MCP SDK does need cryptography, starlette,
# httpx2, sse_starlette and opentelemetry, and model2vec needs joblib and huggingface_hub, which
# needs httpcore2, h11 and truststore.
EXCLUDED_MODULES = [
    # the standard library's own tools
    "tkinter", "unittest", "test", "lib2to3", "ensurepip", "idlelib", "turtle", "turtledemo",
    "pydoc_data", "readline",  # readline is GPL
    # packaging tools
    "setuptools", "pkg_resources", "pip", "_distutils_hack", "hatchling",
    # the standard library's SQLite; apsw brings a newer one
    "sqlite3", "_sqlite3",
    # of numpy
    "numpy.f2py", "numpy.testing", "numpy.distutils", "numpy.tests", "numpy._pyinstaller",
    "numpy.random", "numpy.fft", "numpy.polynomial",  # numpy.unique needs numpy.ma
    # of huggingface_hub and model2vec: downloads, model cards, notebooks, pictures, training
    "PIL", "hf_xet", "zstandard", "jinja2", "markupsafe", "fsspec", "requests", "IPython",
    "ipywidgets", "matplotlib", "pandas", "torch", "sklearn", "skops", "transformers",
    "yaml.cyaml", "yaml._yaml",  # its slow half is enough for a library that we never read with
    # of the MCP SDK: its HTTP transports and its developer commands
    "uvicorn", "jsonschema", "jsonschema_specifications", "referencing", "rpds", "attr", "attrs",
    "jwt", "python_multipart", "multipart", "click", "rich", "typer", "dotenv",
]  # fmt: skip

# Files that PyInstaller's hooks collect and nothing here reads.
LEFT_OUT_FILES = ("*/tests/*", "*.pyi", "*/py.typed", "libreadline.so*")

# The oldest macOS that the program is made for: the wheels of this floor are taken, whatever
# newer ones the building machine would prefer.
MACOS_FLOOR = "11_0"

# Where SOURCE_DATE_EPOCH comes from when there is no git: 2026-01-01.
DEFAULT_EPOCH = "1767225600"


ROUNDS = 15  # of measuring how long a start takes


def read_version() -> str:
    """Return VERSION of code_memory.py, the one place where it stands."""
    tree = ast.parse((ROOT / "code_memory.py").read_text(encoding="utf-8"))
    for node in tree.body:
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        if isinstance(target, ast.Name) and target.id == "VERSION":
            return str(ast.literal_eval(node.value))  # type: ignore[attr-defined]
    raise SystemExit("code_memory.py has no VERSION")


def is_left_out(name: str) -> bool:
    """Tell whether a collected file stays out of the program (see LEFT_OUT_FILES)."""
    name = name.replace("\\", "/")
    return any(fnmatch.fnmatch(name, pattern) for pattern in LEFT_OUT_FILES)


def name_system() -> str:
    """Return the word for this system in the names of locks and artefacts."""
    if sys.platform == "win32":
        return "windows"
    if sys.platform == "darwin":
        return "macos-arm64" if platform.machine() == "arm64" else "macos-x86_64"
    return "linux"


def read_python_version() -> str:
    """Return the Python that the locks were made for, as lock.py says."""
    found = re.search(r'PYTHON_VERSION = "([\d.]+)"', (BUILD / "lock.py").read_text("utf-8"))
    assert found
    return found[1]


def find_python(wanted: str) -> str:
    """Return a Python of that version: this one, one on PATH, or one that pyenv keeps."""
    exe = f"python{wanted}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    kept = sorted(map(str, pyenv.glob(f"{wanted}*/bin/python")))
    launcher = [shutil.which("python3"), shutil.which("python")]
    for candidate in (sys.executable, shutil.which(exe), *kept, *launcher):
        if not candidate:
            continue
        ask = "import sys; print('%d.%d' % sys.version_info[:2])"
        told = subprocess.run([candidate, "-c", ask], check=False, capture_output=True, text=True)
        if told.returncode == 0 and told.stdout.strip() == wanted:
            return candidate
    raise SystemExit(f"The locked packages are for Python {wanted}, which is not on this machine.")


def build_environment() -> dict[str, str]:
    """Return the environment in which the same commit gives the same bytes."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env.update(PYTHONHASHSEED="0", PYTHONNOUSERSITE="1", PYTHONUTF8="1")
    if "SOURCE_DATE_EPOCH" not in env:
        git = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        try:
            told = subprocess.run(git, check=False, capture_output=True, text=True).stdout.strip()
        except OSError:
            told = ""
        env["SOURCE_DATE_EPOCH"] = told or DEFAULT_EPOCH
    return env


def make_venv(work: Path) -> str:
    """Make a clean environment from this system's lock; return its Python."""
    lock = BUILD / f"requirements-{name_system()}.lock"
    folder = work / "venv"
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    done = folder / "lock"
    if done.is_file() and done.read_bytes() == lock.read_bytes():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([find_python(read_python_version()), "-m", "venv", str(folder)], check=True)
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    locked = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(lock)]
    if sys.platform == "darwin":
        machine = "arm64" if platform.machine() == "arm64" else "x86_64"
        wheels = work / "wheels"
        tag = f"macosx_{MACOS_FLOOR}_{machine}"
        subprocess.run(
            [*pip, "download", "--platform", tag, "-d", str(wheels), *locked], check=True
        )
        locked = ["--no-index", "--find-links", str(wheels), *locked]
    subprocess.run([*pip, "install", *locked], check=True)
    shutil.copyfile(lock, done)
    return python


def freeze(python: str, dist: Path, work: Path) -> tuple[Path, Path]:
    """Run PyInstaller; return the onedir program and the onefile program."""
    suffix = ".exe" if os.name == "nt" else ""
    portable = dist / "portable"
    for folder in (dist / "code-memory", portable):
        shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(
        [
            python, "-m", "PyInstaller", "--noconfirm", "--clean", "--log-level", "ERROR",
            "--distpath", str(dist), "--workpath", str(work / "pyinstaller"),
            str(BUILD / "code-memory.spec"),
        ],
        cwd=work,
        env=build_environment(),
        check=True,
    )  # fmt: skip
    portable.mkdir(parents=True)
    made = dist / f"code-memory-portable{suffix}"
    onefile = portable / f"code-memory{suffix}"
    os.replace(made, onefile)
    return dist / "code-memory" / f"code-memory{suffix}", onefile


def freeze_bare_server(python: str, work: Path) -> Path:
    """Freeze bare_server.py with the same modules left out; return the program."""
    leave_out = [word for name in EXCLUDED_MODULES for word in ("--exclude-module", name)]
    where = ["--distpath", str(work / "bare"), "--workpath", str(work / "bare-work")]
    subprocess.run(
        [
            python, "-m", "PyInstaller", "--noconfirm", "--log-level", "ERROR", "--optimize", "1",
            *where, "--specpath", str(work), *leave_out, str(BUILD / "bare_server.py"),
        ],
        cwd=work,
        env=build_environment(),
        check=True,
    )  # fmt: skip
    suffix = ".exe" if os.name == "nt" else ""
    return work / "bare" / "bare_server" / f"bare_server{suffix}"


def archive(onedir: Path, out: Path) -> Path:
    """Pack the folder as .tar.xz: same files, same bytes."""
    epoch = int(build_environment()["SOURCE_DATE_EPOCH"])

    def level(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = epoch
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    with tarfile.open(out, "w:xz", preset=9, format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(onedir.rglob("*"), key=lambda p: p.as_posix()):
            name = (Path("code-memory") / path.relative_to(onedir)).as_posix()
            tar.add(path, arcname=name, recursive=False, filter=level)
    return out


def make_pyz(python: str, out: Path, work: Path) -> Path:
    """Make the zipapp for people who have Python: the wheel and what it needs, by shiv.

    It holds compiled packages, so it runs on this system and this version of Python only.
    """
    wheels, site = work / "wheel", work / "site"
    for folder in (wheels, site):
        shutil.rmtree(folder, ignore_errors=True)
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(ROOT)]
    subprocess.run([*pip, *build], env=build_environment(), check=True)
    wheel = next(wheels.glob("*.whl"))
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True)
    subprocess.run([python, str(BUILD / "closure.py"), str(site)], check=True)
    subprocess.run(
        [
            python, "-m", "shiv", "--site-packages", str(site), "--reproducible", "--compressed",
            "--python", "/usr/bin/env python3", "--entry-point", "code_memory:main",
            "--output-file", str(out),
        ],
        env=build_environment(),
        check=True,
    )  # fmt: skip
    return out


def measure_start(command: list[str]) -> float:
    """Return the milliseconds from starting a server to its reply to `initialize`."""
    hello = (
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
        b'"capabilities":{},"clientInfo":{"name":"freeze","version":"1"}}}\n'
    )
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "HOME": home, "USERPROFILE": home}
        began = time.perf_counter()
        server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd=home,
        )
        assert server.stdin
        assert server.stdout
        server.stdin.write(hello)
        server.stdin.flush()
        line = server.stdout.readline()
        taken = (time.perf_counter() - began) * 1000
        server.stdin.close()
        server.wait(60)
    if b'"result"' not in line:
        raise SystemExit(f"{command[0]} answered initialize with {line!r}")
    return taken


def measure_starts(commands: dict[str, list[str]], rounds: int = ROUNDS) -> dict[str, float]:
    """Return each command's quickest start in milliseconds.

    They are taken in turns, forwards and backwards. What else the machine does can only make a
    start slower, so the quickest of many is the one that tells what the program itself takes.
    """
    least = dict.fromkeys(commands, float("inf"))
    for number in range(rounds):
        for name in sorted(commands, reverse=number % 2 == 1):
            least[name] = min(least[name], measure_start(commands[name]))
    return least


def drop_debug_information(source: str, folder: Path) -> str:
    """Return a copy, in the folder, of a library of Python's own without debug information, or
    the library itself where it has none.

    A Python compiled on the machine (pyenv) carries 25 MB of it. Symbols and alignment stay, and
    the packages' libraries are never touched: see "strip" in code-memory.spec.
    """
    objcopy = shutil.which("objcopy")
    own = os.path.realpath(source).startswith(os.path.realpath(sys.base_prefix) + os.sep)
    if not own or objcopy is None or b".debug_info" not in Path(source).read_bytes():
        return source
    target = folder / Path(source).name
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([objcopy, "--strip-debug", source, str(target)], check=True)
    return str(target)


def find_glibc_floor(folder: Path) -> str:
    """Return the newest version of glibc that any file below the folder asks for."""
    newest = (0, 0)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if data.startswith(b"\x7fELF"):
                for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", data):
                    newest = max(newest, (int(major), int(minor)))
    return f"{newest[0]}.{newest[1]}"


def count_bytes(path: Path) -> int:
    """Return the size of a file, or of all files below a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file() and not f.is_symlink())


def main(argv: list[str] | None = None) -> int:
    """Do what the options say; return 0 when everything that was made also worked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--here", action="store_true", help="use this Python's own packages")
    parser.add_argument("--archive", action="store_true", help="also pack the folder as .tar.xz")
    parser.add_argument("--pyz", action="store_true", help="also make code-memory.pyz")
    parser.add_argument("--measure", action="store_true", help="also print sizes and start times")
    parser.add_argument("--no-trial", action="store_true", help="do not run what was made")
    parser.add_argument("--work", type=Path, help="folder for everything in between")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the results go")
    args = parser.parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace", line_buffering=True)

    work = (args.work or Path(tempfile.gettempdir()) / "code-memory-freeze").resolve()
    dist = args.dist.resolve()
    for folder in (work, dist):
        folder.mkdir(parents=True, exist_ok=True)
    python = sys.executable if args.here else make_venv(work)
    onedir, onefile = freeze(python, dist, work)
    made = [onedir.parent, onefile]
    tried = [[str(onedir)], [str(onefile)]]
    stem = f"code-memory-{read_version()}-{name_system()}"
    if sys.platform == "linux":
        stem += f"-{platform.machine()}"
        print(f"glibc floor of this build: {find_glibc_floor(onedir.parent)}")
    if args.archive:
        made.append(archive(onedir.parent, dist / f"{stem}.tar.xz"))
    if args.pyz:
        pyz = make_pyz(python, dist / "code-memory.pyz", work)
        made.append(pyz)
        tried.append([python, str(pyz)])
    for path in made:
        print(f"{count_bytes(path) / 1e6:7.1f} MB  {path.relative_to(dist)}")
    if not args.no_trial:
        for command in tried:
            words = [sys.executable, str(BUILD / "trial.py"), *command]
            done = subprocess.run(words, check=False)
            if done.returncode:
                return done.returncode
    if args.measure:
        bare = freeze_bare_server(python, work)
        serve = ["mcp", "serve"]
        least = measure_starts(
            {
                "bare SDK server, onedir": [str(bare)],
                "code-memory, onedir": [str(onedir), *serve],
                "code-memory, onefile": [str(onefile), *serve],
                "bare SDK server, from source": [python, str(BUILD / "bare_server.py")],
                "code-memory, from source": [python, str(ROOT / "code_memory.py"), *serve],
            }
        )
        print(f"start to the reply to `initialize`, quickest of {ROUNDS}:")
        for name, milliseconds in least.items():
            print(f"{milliseconds:7.0f} ms  {name}")
        ratio = least["code-memory, onedir"] / least["bare SDK server, onedir"]
        print(f"onedir takes {ratio:.2f} times the bare server's time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
