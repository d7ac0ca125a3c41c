import pytest
import torch

from decoders.core.hf.shapes import SHAPES, count_weights, random_model, shape_config
from tests.core.hf.test_replay import prefilled


def test_shapes_have_the_weights_their_publishers_state():
    # model cards: 135M, 1.23B and 8.2B parameters
    millions = {name: round(count_weights(shape_config(name)) / 1e6) for name in SHAPES}
    assert millions == {"smollm2-135m": 135, "llama-1b": 1236, "qwen3-8b": 8191}


def test_random_models_are_reproducible_and_have_logits_of_moderate_size():
    config = shape_config("smollm2-135m")
    config.num_hidden_layers, config.vocab_size = 2, 97
    logits = []
    for _ in range(2):
        model = random_model(config, dtype=torch.float32, device="cpu")
        (session,) = prefilled(model)
        logits.append(model.forward([session.call([4])]))
    assert torch.equal(*logits)
    assert torch.isfinite(logits[0]).all()
    assert 0.01 < logits[0].std() < 10


def test_an_unknown_shape_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"neither a folder with a config\.json nor smollm2-135m"):
        shape_config(tmp_path)
