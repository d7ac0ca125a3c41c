"""What `bench ab` asks of both sides: what was set and nothing else, understood alike by both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError, Exit
from bench.extras.ab.ab import check_defaults, make_request
from bench.machine.env import ROOT
from bench.settings.config import load_config


def asked(root: Path = ROOT, **values: Any) -> dict[str, Any]:
    return make_request(load_config(None, values), root)


def test_a_request_has_only_explicit_settings_and_the_limits_of_the_tasks() -> None:
    assert asked(decoders="spec:k=3", quality_limit=8) == {
        "decoders": {"spec": {"k": "3"}},
        "quality_limit": 8,
        "limit": 24,
    }


def test_a_setting_explicitly_set_to_its_default_is_in_the_request(tmp_path: Path) -> None:
    file = tmp_path / "ab.toml"
    file.write_text("temperature = 0.0\nlimit = 3\n")
    config = load_config(file, {"top_p": 1.0})
    asked = {"temperature": 0.0, "limit": 3, "top_p": 1.0}
    assert make_request(config, ROOT) == {
        **asked,
        "quality_limit": 20,
    }  # the zoo's own, as limit is


def test_relative_paths_of_a_request_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model", "zoo", "data"):
        (tmp_path / name).mkdir()
    here = tmp_path.absolute()
    for given, wanted in {
        "model": f"{here}/model",
        "./gone": f"{here}/gone",
        "owner/name": "owner/name",
        "zoo": "zoo",
    }.items():
        assert asked(model=given, draft=given)["model"] == wanted
        assert asked(model=given, draft=given)["draft"] == wanted
        assert asked(models={"small": given})["models"] == {"small": wanted}
    assert asked(cost="curve")["cost"] == f"{here}/curve"
    adapters = asked(adapters={"ptp": "zoo", "refine": "model"})["adapters"]
    assert adapters == {"ptp": "zoo", "refine": f"{here}/model"}
    for given, wanted in {
        "qa,rag": "qa,rag",
        "specbench": "specbench",
        "jsonl=zoo": f"jsonl={here}/zoo",
        "specbench=a.jsonl": f"specbench={here}/a.jsonl",
        "hf=data": f"hf={here}/data",
        "data": f"{here}/data",
        "hf=owner/name": "hf=owner/name",
    }.items():
        assert asked(tasks=given)["tasks"] == wanted


def test_a_decoder_file_in_the_checkout_is_per_side_and_an_outside_file_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    root = root.resolve()
    monkeypatch.chdir(root / "sub")
    given = asked(root, decoders="spec,../mine.py:Mine@m:k=3,own.py:Own")["decoders"]
    assert given == {"spec": {}, "mine.py:Mine@m": {"k": "3"}, "sub/own.py:Own": {}}
    assert asked(root, law="../grammar.py:Law")["law"] == "grammar.py:Law"
    shared = tmp_path.resolve() / "mine.py"
    assert asked(root, law="../../mine.py:Law")["law"] == f"{shared}:Law"
    assert asked(root, decoders="../../mine.py:Mine")["decoders"] == {f"{shared}:Mine": {}}


def test_the_same_decoder_twice_without_a_label_is_refused() -> None:
    with pytest.raises(BenchError, match="give one a label") as refused:
        asked(decoders={"mine.py:Mine": {}, "./mine.py:Mine": {}})
    assert refused.value.exit_code == Exit.USAGE


def test_different_defaults_are_refused_if_they_decide_answers() -> None:
    check_defaults("temperature = 0.0\nlimit = 24\n", "temperature = 0.0\nnew = 1\n")
    check_defaults("limit = 24\n", "limit = 48\n")  # base plans for both
    with pytest.raises(BenchError, match=r"temperature is 0\.0 in base and 0\.7 in head") as found:
        check_defaults("temperature = 0.0\n", "temperature = 0.7\n")
    assert found.value.exit_code == Exit.UNAVAILABLE
