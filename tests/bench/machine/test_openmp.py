"""How threads wait for each other: set before torch is imported, never over the user's choice."""

import os
import subprocess
import sys
from types import ModuleType

import pytest

from bench.extras.ab.doctor import waiting_threads
from bench.machine.env import VARIABLES
from bench.machine.openmp import SPIN_COUNT, WAIT_POLICY, shorten_spinning


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Neither variable is set, and torch looks as if nobody had imported it."""
    for name in (WAIT_POLICY, SPIN_COUNT):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return monkeypatch


def test_threads_spin_only_briefly_unless_the_user_chose_otherwise(
    unset: pytest.MonkeyPatch,
) -> None:
    shorten_spinning()
    assert os.environ[SPIN_COUNT] == "10000"


@pytest.mark.parametrize("name", [WAIT_POLICY, SPIN_COUNT])
def test_openmp_settings_of_the_user_are_kept(unset: pytest.MonkeyPatch, name: str) -> None:
    unset.setenv(name, "chosen")
    shorten_spinning()
    assert os.environ[name] == "chosen"
    assert {WAIT_POLICY, SPIN_COUNT} & set(os.environ) == {name}


def test_the_spin_count_is_not_set_once_torch_is_imported(unset: pytest.MonkeyPatch) -> None:
    unset.setitem(sys.modules, "torch", ModuleType("torch"))
    shorten_spinning()
    assert SPIN_COUNT not in os.environ


def test_every_command_shortens_spinning_before_torch_is_imported() -> None:
    code = (
        "import os, sys, cli\n"
        "cli.app = lambda: print('torch' in sys.modules, os.environ.get('GOMP_SPINCOUNT'))\n"
        "cli.main()"
    )
    env = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "10000"]


def test_a_run_records_the_spin_settings_and_the_doctor_advises_on_them(
    unset: pytest.MonkeyPatch,
) -> None:
    assert {WAIT_POLICY, SPIN_COUNT} <= set(VARIABLES)
    assert waiting_threads().advice == (
        "export GOMP_SPINCOUNT=10000: spinning threads slow calls under other load"
    )
    unset.setenv(SPIN_COUNT, "10000")
    assert waiting_threads().good
    unset.setenv(WAIT_POLICY, "passive")
    assert not waiting_threads().good
    unset.setenv(WAIT_POLICY, "active")
    assert waiting_threads().good
