#!/usr/bin/env python3
"""Copy what the program needs, and nothing else, from this environment into a folder.

usage: closure.py FOLDER      FOLDER already holds the installed wheel of code-memory-desktop

freeze.py runs it with the Python of the locked environment, in which PyInstaller, shiv and their
own needs are installed as well.
"""

from __future__ import annotations

import shutil
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement


def find_needed(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """Return every distribution that the requirements lead to on this system, by name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        extras = requirement.extras or {""}
        if requirement.marker and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras
        ):
            continue
        distribution = metadata.distribution(requirement.name)
        name = distribution.metadata["Name"].lower()
        if name in found and not requirement.extras:
            continue
        found[name] = distribution
        for text in distribution.requires or ():
            child = Requirement(text)
            if child.marker is None or any(
                child.marker.evaluate({"extra": extra}) for extra in extras
            ):
                child.marker = None
                waiting.append(child)
    return found


def copy_needed(site: Path) -> None:
    """Copy the packages that the wheel in `site` asks for beside it."""
    [ours] = metadata.distributions(path=[str(site)])
    for distribution in find_needed(list(ours.requires or ())).values():
        for file in distribution.files or ():
            if file.parts[0] == ".." or "__pycache__" in file.parts:
                continue
            target = site.joinpath(*file.parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(distribution.locate_file(file)), target)


if __name__ == "__main__":
    copy_needed(Path(sys.argv[1]))
