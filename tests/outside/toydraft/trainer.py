"""The recipe's table, and the verb `bench train bigram`."""

from pathlib import Path
from typing import Any

from training.heads.recipe import NetworkTable
from training.recipe import Count, Seed


class BigramTable(NetworkTable):
    """[bigram]: the number of drafts."""

    verb, name, network, job = "bigram", "bigram", "bigram", "toydraft.job:BigramJob"
    help = "Train a bigram head."
    recipes = Path(__file__).parent
    steps: Count = 3
    seed: Seed = 0

    def fields(self, num_words: int) -> dict[str, Any]:
        return {"num_slots": self.steps, "sizes": {"steps": self.steps}}
