"""Text to pre-train on, about the same people, companies and events as the bundled sample.

    python -m sample_data.make_corpus > corpus.txt     # a document per blank line

The bytes are the same on every run and every Python. A document states some facts, and then some
of them again in other words: what is masked in one sentence can be read in another.
"""

import re
import sys
from random import Random

from sample_data.make_sample import FACTS, IDLE, SLOT, Pools, draw, fill, pools

SEED = 8
DOCUMENTS = 6_000
LONG = 0.1  # fraction of documents that state many facts before any is stated again
FACTS_IN_SHORT, FACTS_IN_LONG = (1, 4), (8, 14)  # from and to
IDLE_SHARE = 0.2  # of the sentences that state facts, so many are followed by an idle one


def corpus(documents: int = DOCUMENTS) -> str:
    """So many documents, with a blank line between any two."""
    rng, table = Random(SEED), pools()
    return "\n\n".join(document(rng, table) for _ in range(documents)) + "\n"


def document(rng: Random, table: Pools) -> str:
    """Some facts in the words of a premise, and then again in those of a hypothesis."""
    lines, idle = FACTS.splitlines(), IDLE.splitlines()
    number = rng.randint(*(FACTS_IN_LONG if rng.random() < LONG else FACTS_IN_SHORT))
    chosen = rng.sample(list(zip(lines[::3], lines[1::3], lines[2::3], strict=True)), number)
    stated, restated, taken = [], [], set()
    for first, second, hypotheses in chosen:
        values = {slot: new_entry(rng, table[slot], taken) for slot in re.findall(SLOT, first)}
        stated.append(fill(rng, rng.choice([first, second]), values))
        if rng.random() < IDLE_SHARE:
            stated.append(rng.choice(idle))
        again = hypotheses.split(" / ")
        for template in rng.sample(again, rng.randint(1, len(again))):
            restated.append(fill(rng, template, values, restated=True))
    rng.shuffle(restated)
    return " ".join(stated + restated)


def new_entry(rng: Random, entries: list[str], taken: set[str]) -> str:
    """An entry with none of the words in `taken`, which it joins; any one if all are taken."""
    free = [entry for entry in entries if taken.isdisjoint(entry.split("_"))]
    entry = draw(rng, free or entries, set())
    taken.update(entry.split("_"))
    return entry


if __name__ == "__main__":
    sys.stdout.write(corpus())
