"""The lock is complete, exact, hashed and portable, and pyproject.toml is what it was made from."""

import importlib.metadata
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.check import lock

LOCKS = {name: (lock.ROOT / name).read_text("utf-8") for name in lock.WHAT}
PROJECT = tomllib.loads((lock.ROOT / "pyproject.toml").read_text("utf-8"))
WANTED = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]]


def entries(text: str) -> dict[str, Requirement]:
    """The lines of a lock, by name; each has a hash."""
    found = [Requirement(block.split(" \\\n")[0]) for block in lock.blocks(text)]
    assert len({one.name for one in found}) == len(found)
    return {canonicalize_name(one.name): one for one in found}


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_is_an_exact_version_with_hashes(name):
    lines = [
        line
        for line in LOCKS[name].splitlines()
        if not line.startswith(("#", "    --hash=sha256:"))
    ]
    assert lines
    assert all(re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.!]+( ; .+)? \\", line) for line in lines), (
        lines
    )
    assert len(entries(LOCKS[name])) == len(lines)


@pytest.mark.parametrize("name", LOCKS)
def test_no_index_is_named(name):
    assert "://" not in LOCKS[name]
    assert "--index" not in LOCKS[name]
    assert "--find-links" not in LOCKS[name]


@pytest.mark.parametrize("wanted", WANTED)
def test_what_pyproject_asks_for_is_locked_and_allowed(wanted):
    wanted = Requirement(wanted)
    locked = entries(LOCKS["requirements.txt"])[canonicalize_name(wanted.name)]
    (exact,) = locked.specifier
    assert wanted.specifier.contains(exact.version, prereleases=True)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_the_locked_packages_are_there_for_each_python_and_system(python, platform):
    here = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": platform,
    }
    here |= {"os_name": "nt" if platform == "win32" else "posix", "platform_machine": "x86_64"}
    main = {
        name
        for name, one in entries(LOCKS["requirements.txt"]).items()
        if one.marker is None or one.marker.evaluate(here)
    }
    assert {"torch", "numpy", "transformer-lens", "jupyter-book", "pytest"} <= main
    cuda = [
        one for one in entries(LOCKS["requirements-cuda.txt"]).values() if one.marker.evaluate(here)
    ]
    assert bool(cuda) == (platform == "linux")


def test_what_only_cuda_needs_has_its_own_file():
    assert [
        name for name in entries(LOCKS["requirements.txt"]) if lock.CUDA.match(f"{name}==")
    ] == []
    assert [
        name for name in entries(LOCKS["requirements-cuda.txt"]) if not lock.CUDA.match(f"{name}==")
    ] == []


def test_the_build_for_the_processor_alone_is_locked_too():
    (torch,) = [
        block for block in lock.blocks(LOCKS["requirements.txt"]) if block.startswith("torch==")
    ]
    hashes = lock.ALSO.get(torch.split()[0])
    assert hashes, (
        "torch has a new version: tools/check/lock.py needs the hash of its build without CUDA"
    )
    assert all(f"--hash=sha256:{one}" in torch for one in hashes)


def test_this_environment_is_the_locked_one():
    different = {}
    for name, one in entries(LOCKS["requirements.txt"]).items():
        if one.marker is None or one.marker.evaluate():
            found = importlib.metadata.version(name).partition("+")[0]
            if not one.specifier.contains(found, prereleases=True):
                different[name] = found
    assert different == {}, "`make env` installs what requirements.txt says"


def test_a_compiled_list_is_split_in_two():
    compiled = "a==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nnvidia-x==2 ; sys_platform == 'linux' \\\n    --hash=sha256:cc\n"
    compiled += "torch==2.13.0 \\\n    --hash=sha256:dd\n"
    files = lock.split(compiled)
    assert files["requirements-cuda.txt"].endswith(
        ".txt`.\nnvidia-x==2 ; sys_platform == 'linux' \\\n    --hash=sha256:cc\n"
    )
    (extra,) = lock.ALSO["torch==2.13.0"]
    assert files["requirements.txt"].endswith(
        f"--hash=sha256:bb\ntorch==2.13.0 \\\n    --hash=sha256:dd \\\n    --hash=sha256:{extra}\n"
    )
