"""The programs of cpp/tests, which ``make test-cpp`` builds, and the bundles they run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cpp.makers import MAKERS

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "cpp"


def program(name: str, sanitized: bool = False) -> Path:
    """A built program."""
    path = BUILD / ("sanitized" if sanitized else "plain") / "tests" / name
    assert path.exists(), f"{path} is not built: run make test-cpp"
    return path


def call(*words: object, timeout: float = 600) -> str:
    """Run a program to its end and return what it printed."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


class Judge:
    """The sanitized driver, asked about one bundle after the other. A crash or a sanitizer's report fails the test."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
        self._process = subprocess.Popen(
            [program("driver", sanitized=True), "try"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment,
        )  # fmt: skip

    def __call__(self, mode: str, path: Path) -> tuple[bool, str]:
        """Whether a bundle is accepted, and what is said of it."""
        assert self._process.stdin is not None and self._process.stdout is not None and self._process.stderr is not None
        self._process.stdin.write(f"{mode} {path}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            report = self._process.stderr.read()[-6000:]
            self.close()
            self._start()
            raise AssertionError(f"the driver died of {path}:\n{report}")
        word, _, said = answer.strip().partition(" ")
        return (True, said) if word == "ok" else (False, json.loads(said))

    def close(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    driver = Judge()
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def bundles(tmp_path_factory) -> Path:
    """The directory of all bundles."""
    directory = tmp_path_factory.mktemp("bundles")
    for maker in MAKERS.values():
        maker(directory)
    return directory
