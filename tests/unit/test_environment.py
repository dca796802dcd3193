"""Setting up a machine: what is missing is installed by root, and named to everybody else."""

import os
import re
from pathlib import Path

import pytest

import build_wheels
from tests import environment


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A machine that lacks a browser and Rust; gives the commands that are run on it."""
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(environment, "missing", lambda: [] if commands else ["a browser", "Rust with its sources"])
    monkeypatch.setattr(build_wheels, "run", lambda *command, **_: commands.append(command))
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    return commands


def test_root_installs_what_is_missing(bare: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    environment.install_system_packages()
    assert bare[0] == ("apt-get", "update")
    assert bare[1][-4:] == ("chromium", "rustc-web", "cargo-web", "rust-web-src")


def test_others_are_told_everything_at_once(bare: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as stop:
        environment.install_system_packages()
    assert str(stop.value) == (
        "This machine lacks a browser, Rust with its sources. Install, as root: "
        "apt-get install --no-install-recommends chromium rustc-web cargo-web rust-web-src"
    )
    assert not bare


def test_install_that_does_not_help_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "missing", lambda: ["git"])
    monkeypatch.setattr(build_wheels, "run", lambda *_, **__: "")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(SystemExit, match="Still missing after apt-get install git: git"):
        environment.install_system_packages()


def test_everything_missing_has_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(environment, "has_venv", lambda: False)
    monkeypatch.setattr(build_wheels, "find_rust", lambda: None)
    assert environment.missing() == list(environment.PACKAGES)


def test_old_compilers_are_not_taken_for_rust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cargo", "rustc"):
        (tmp_path / name).touch()
    (tmp_path / "lib/rustlib/src/rust/library/std").mkdir(parents=True)
    answers = {"--version": "rustc 1.92.0 (abc 2025-12-01)", "--print": str(tmp_path)}

    def run(_: Path, option: str, *__: str) -> str:
        if option not in answers:
            raise SystemExit("failed: as rustup's rustc does without a toolchain")
        return answers[option]

    monkeypatch.setattr(build_wheels, "run", run)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build_wheels.find_rust() is None
    del answers["--version"]
    assert build_wheels.find_rust() is None
    answers["--version"] = "rustc 1.93.0 (abc 2026-01-20)"
    found = build_wheels.find_rust()
    assert found is not None
    assert found.library == tmp_path / "lib/rustlib/src/rust/library"


def test_requirements_are_pinned_exactly() -> None:
    lines = environment.REQUIREMENTS.read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert all(re.fullmatch(r"[\d.]+(post\d+)?", version) for version in pins.values())
    assert pins["tokenizers"] == build_wheels.TOKENIZERS.version


def test_search_paths_start_with_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/bin:/environment/bin")
    environment.put_first("PATH", Path("/environment/bin"), Path("/node/bin"))
    environment.put_first("PATH", Path("/environment/bin"), Path("/node/bin"))
    assert os.environ["PATH"] == "/environment/bin:/node/bin:/bin"
