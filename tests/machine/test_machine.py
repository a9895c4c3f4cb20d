"""The machine is found or made ready, on pretended machines: folders of small programs in place of PATH."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.check import machine

SUDO = '[ "$1" = --non-interactive ] && shift; echo "sudo $*" >> "$LOG"; exec "$@"'
APT = 'echo "apt-get $*" >> "$LOG"; {then}'
BROWSER = '#!/bin/sh\necho "Chromium 1.0"\n'


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """A machine whose PATH has only the programs that are given, as shell lines; yields how to make it."""
    programs, log = tmp_path / "bin", tmp_path / "log"
    programs.mkdir()
    log.touch()
    for tool in ("sh", "env", "cp", "chmod"):
        (programs / tool).symlink_to(f"/bin/{tool}")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("LOG", str(log))
    monkeypatch.setattr(machine, "BROWSERS", [name for name in machine.BROWSERS if "/" not in name])
    monkeypatch.setattr(machine, "playwrights", lambda **env: None)
    monkeypatch.setattr(machine.os, "geteuid", lambda: 1000)
    machine.browser.cache_clear()

    def make(**lines: str) -> Path:
        for name, line in lines.items():
            program = programs / name.replace("_", "-")
            program.write_text(f"#!/bin/sh\n{line}\n")
            program.chmod(0o755)
        return log

    yield make
    machine.browser.cache_clear()


def without_playwright(monkeypatch):
    """`playwright install` fails, as it does without a network."""
    real = machine.run
    monkeypatch.setattr(
        machine, "run", lambda command, **env: "playwright" not in command and real(command, **env)
    )


@pytest.mark.parametrize(
    "name", ["chromium", "chromium_browser", "google_chrome", "google_chrome_stable"]
)
def test_an_installed_browser_is_found_and_nothing_is_said(pretend, capsys, name):
    pretend(**{name: "exit 0"})
    assert Path(machine.get_browser()).name == name.replace("_", "-")
    assert capsys.readouterr().out == ""


def test_a_browser_that_does_not_start_is_passed_over(pretend):
    pretend(
        chromium="exit 1",
        chromium_browser="echo please install the snap; exit 10",
        google_chrome="exit 0",
    )
    assert Path(machine.get_browser()).name == "google-chrome"


def test_playwrights_own_browser_is_found(pretend, monkeypatch, tmp_path):
    pretend(hidden="exit 0")
    there = str(tmp_path / "bin/hidden")
    monkeypatch.setattr(machine, "playwrights", lambda **env: there if env else None)
    assert machine.get_browser() == there


def test_playwright_says_where_its_browser_would_be():
    """The real one, in a folder of its own."""
    place = machine.playwrights(PLAYWRIGHT_BROWSERS_PATH="/nowhere/at all")
    assert place.startswith("/nowhere/at all/")


def test_playwright_fetches_one_first(pretend, monkeypatch, tmp_path, capsys):
    log = pretend(apt_get=APT.format(then="exit 0"), sudo=SUDO)
    fetched, real = tmp_path / "fetched", machine.run

    def run(command, **env):
        if "playwright" in command:
            assert env == machine.IN_THE_ENVIRONMENT
            fetched.write_text(BROWSER)
            fetched.chmod(0o755)
            return True
        return real(command, **env)

    monkeypatch.setattr(machine, "run", run)
    monkeypatch.setattr(
        machine, "playwrights", lambda **env: str(fetched) if fetched.exists() else None
    )
    assert machine.get_browser() == str(fetched)
    said = capsys.readouterr().out
    assert (
        said
        == f"The pages are checked in a browser, and there is none. playwright install chromium: done, {fetched}.\n"
    )
    assert log.read_text() == ""


@pytest.mark.parametrize("name", ["chromium-headless-shell", "chromium"])
def test_then_the_package_manager_with_sudo(pretend, monkeypatch, tmp_path, capsys, name):
    """Debian has a Chromium without a window; where there is none of that name, the whole one is asked for."""
    place = tmp_path / "bin" / name
    fetch = f"case $* in *' {name}') printf '#!/bin/sh\\nexit 0\\n' > '{place}'; chmod +x '{place}';; esac"
    log = pretend(apt_get=APT.format(then=fetch), sudo=SUDO)
    without_playwright(monkeypatch)
    assert machine.get_browser() == str(place)
    asked = ["chromium-headless-shell", "chromium"][: 1 + (name == "chromium")]
    assert log.read_text().splitlines() == [
        line
        for one in asked
        for line in (
            "sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq",
            "apt-get update -qq",
            f"sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends {one}",
            f"apt-get install -y -qq --no-install-recommends {one}",
        )
    ]
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert said.endswith(f"did not work. sudo apt-get install {name}: done, {place}.\n")


def test_root_needs_no_sudo(pretend, monkeypatch):
    pretend(apt_get="exit 0")
    monkeypatch.setattr(machine.os, "geteuid", lambda: 0)
    assert [command[0] for command in machine.manager("chromium")] == ["env", "env"]


@pytest.mark.parametrize("name", machine.MANAGERS)
def test_each_package_manager_is_asked_for_the_package_last(pretend, name):
    pretend(**{name.replace("-", "_"): "exit 0", "sudo": "exit 0"})
    *_, install = machine.manager("chromium")
    assert install[-1] == "chromium"
    assert name in install
    (words,) = machine.named(machine.manager("chromium"))
    assert words.startswith(f"sudo {name} ")
    assert words.endswith(" chromium")


def test_where_none_can_be_had_one_sentence_says_what_to_install(pretend, monkeypatch, capsys):
    pretend(apt_get="exit 0")  # nobody may use it: no sudo
    without_playwright(monkeypatch)
    with pytest.raises(SystemExit) as end:
        machine.get_browser()
    assert str(end.value) == (
        "The pages need Chromium or Google Chrome. Install one (sudo apt-get install chromium), and start again."
    )
    assert capsys.readouterr().out.count("\n") == 1


def test_a_package_manager_that_fails_is_no_way(pretend, monkeypatch):
    pretend(dnf="exit 1", sudo=SUDO)
    without_playwright(monkeypatch)
    with pytest.raises(SystemExit, match="The pages need Chromium"):
        machine.get_browser()


# --- the environment ------------------------------------------------------------------------------------------------
@pytest.fixture
def installed(monkeypatch):
    """What would be installed, in place of installing it."""
    calls = []
    monkeypatch.setattr(machine, "install", lambda venv, cpu: calls.append((venv, cpu)))
    return calls


def test_an_environment_is_made_once(tmp_path, installed):
    venv = tmp_path / "an envirönment"
    machine.environment(venv)
    assert machine.its_own(venv)
    assert installed == [(venv, False)]
    machine.environment(venv)
    assert len(installed) == 1
    assert not (venv / machine.UNFINISHED).exists()


def test_another_lock_or_another_place_installs_again(tmp_path, installed, monkeypatch):
    venv = tmp_path / "env"
    machine.environment(venv)
    monkeypatch.setattr(machine, "state", lambda: "another")
    machine.environment(venv, cpu=True)
    assert installed == [(venv, False), (venv, True)]


def test_an_interrupted_one_starts_from_nothing(tmp_path, monkeypatch, capsys):
    venv, half = tmp_path / "env", []

    def killed(venv, cpu):
        (venv / "half").touch()
        half.append(venv)
        if len(half) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(machine, "install", killed)
    with pytest.raises(KeyboardInterrupt):
        machine.environment(venv)
    (venv / "left").touch()
    machine.environment(venv)
    assert "interrupted; it starts again from nothing" in capsys.readouterr().out
    assert (venv / "half").exists()
    assert not (venv / "left").exists()
    assert machine.its_own(venv)


def test_an_environment_without_pip_is_given_it(tmp_path):
    """What `uv venv` and `python -m venv --without-pip` leave; what else is in it stays."""
    venv = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (venv / "mine").touch()
    machine.give_pip(venv)
    assert machine.its_own(venv)
    assert machine.run([str(machine.python_of(venv)), "-m", "pip", "--version"])
    assert (venv / "mine").exists()


@pytest.mark.parametrize(
    "kind", ["a link to the system's Python", "a script", "something that does not run"]
)
def test_a_python_that_belongs_to_no_environment_is_refused(tmp_path, installed, kind):
    python = machine.python_of(tmp_path / "env")
    python.parent.mkdir(parents=True)
    if kind.startswith("a link"):
        python.symlink_to(os.path.realpath(sys.executable))
    else:
        python.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "$@"\n' if kind == "a script" else "nothing"
        )
        python.chmod(0o755)
    with pytest.raises(
        SystemExit,
        match="env is no environment of Python 3.11 to 3.13: its python is missing or belongs",
    ):
        machine.environment(tmp_path / "env")
    assert installed == []
    assert python.exists()


def test_a_folder_of_something_else_is_refused(tmp_path, installed):
    (tmp_path / "env").mkdir()
    (tmp_path / "env/letters.txt").write_text("mine")
    with pytest.raises(
        SystemExit, match="Move the folder away, or delete it with `make distclean`"
    ):
        machine.environment(tmp_path / "env")
    assert (tmp_path / "env/letters.txt").read_text() == "mine"


@pytest.mark.parametrize("version", [(3, 9, 2), (3, 14, 0)])
def test_another_python_is_refused_in_words(tmp_path, installed, monkeypatch, version):
    monkeypatch.setattr(machine.sys, "version_info", version)
    monkeypatch.setattr(machine.sys, "version", ".".join(map(str, version)) + " (main)")
    with pytest.raises(
        SystemExit,
        match=rf"needs Python 3.11, 3.12 or 3.13; this is {version[0]}.{version[1]}.{version[2]}. Try: make",
    ):
        machine.environment(tmp_path / "env")


def test_python_without_venv_says_what_to_install(tmp_path, pretend, installed, monkeypatch):
    pretend(apt_get="exit 100", sudo=SUDO)
    real = machine.run
    monkeypatch.setattr(
        machine,
        "run",
        lambda command, **env: "ensurepip" not in command[-1] and real(command, **env),
    )
    package = f"python3.{sys.version_info[1]}-venv"
    with pytest.raises(
        SystemExit,
        match=rf"modules venv and ensurepip of Python. Install them \(sudo apt-get install {package}\)",
    ):
        machine.environment(tmp_path / "env")


def test_the_module_needs_nothing_but_python():
    """Before there is an environment, the machine's own Python runs it: no package, nothing of the project's."""
    code = (
        "import sys, tools.check.machine; print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=machine.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) - sys.stdlib_module_names <= {"tools", "__main__"}


@pytest.mark.parametrize("given", ["C", "POSIX", "xx_XX.UTF-8"])
def test_whatever_the_locale_commands_read_utf8(given):
    """In another one Python cannot read the path file of a folder called é."""
    printed = subprocess.run(
        ["make", "-s", "--eval", "charmap:\n\t@locale charmap", "charmap"],
        cwd=machine.ROOT,
        env=os.environ | {"LC_ALL": given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == "UTF-8\n"
