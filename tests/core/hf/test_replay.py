import pytest
import torch

from decoders.core.hf import replay
from decoders.core.hf.model import HFModel
from decoders.core.hf.replay import capture
from decoders.core.hf.shapes import SHAPES, config_of, count_weights, random_model
from tests.tiny_models import fresh


def prefilled(model, num_sequences=1, context=9):
    model.reserve(num_sequences, 40)
    sessions = [model.open() for _ in range(num_sequences)]
    model.forward([session.call([3] * context, read=()) for session in sessions])
    return sessions


def calls_of(sessions, num_rows):
    for session in sessions:
        session.truncate(9)
    tokens = [5 + row for row in range(num_rows)]
    return [session.call(tokens, read=range(num_rows), output="logits") for session in sessions]


@pytest.mark.parametrize("name", ["llama-gqa", "qwen2", "gemma2-window", "gpt2"])
@pytest.mark.parametrize(("num_rows", "num_sequences"), [(1, 1), (3, 2)])
def test_a_replay_gives_the_logits_of_the_call_it_was_captured_from(name, num_rows, num_sequences):
    model = HFModel(fresh(name))
    sessions = prefilled(model, num_sequences)
    expected = model.forward(calls_of(sessions, num_rows))
    again = capture(model, calls_of(sessions, num_rows), backend="eager")
    torch.testing.assert_close(again().float(), expected)
    torch.testing.assert_close(again().float(), expected)


def test_a_replay_runs_nothing_of_ours_around_the_module():
    model = HFModel(fresh("llama"))
    again = capture(model, calls_of(prefilled(model), 1), backend="eager")
    before = model.num_forwards
    again()
    assert model.num_forwards == before


def test_where_no_compiler_is_a_line_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in str(replay.missing_compiler())
    monkeypatch.delenv("CXX")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert replay.missing_compiler() is None


@pytest.mark.gpu
def test_a_cuda_graph_gives_the_logits_of_the_call_it_was_captured_from():
    model = HFModel(fresh("llama-gqa", "sdpa").to("cuda"))
    sessions = prefilled(model, 2)
    expected = model.forward(calls_of(sessions, 3)).clone()
    again = capture(model, calls_of(sessions, 3))
    torch.testing.assert_close(again().float(), expected, atol=1e-4, rtol=1e-4)


def test_shapes_have_the_weights_their_publishers_state():
    # model cards: 135M, 1.23B and 8.2B parameters
    millions = {name: round(count_weights(config_of(name)) / 1e6) for name in SHAPES}
    assert millions == {"smollm2-135m": 135, "llama-1b": 1236, "qwen3-8b": 8191}


def test_a_random_model_runs_is_the_same_every_time_and_has_no_huge_or_zero_logits():
    config = config_of("smollm2-135m")
    config.num_hidden_layers, config.vocab_size = 2, 97
    logits = []
    for _ in range(2):
        model = random_model(config, dtype=torch.float32, device="cpu")
        (session,) = prefilled(model)
        logits.append(model.forward([session.call([4])]))
    assert torch.equal(*logits)
    assert torch.isfinite(logits[0]).all()
    assert 0.01 < logits[0].std() < 10


def test_an_unknown_shape_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"neither a folder with a config\.json nor smollm2-135m"):
        config_of(tmp_path)
