"""What preparing a task of MNLI's size takes: seconds, beside the tokenizer alone, and memory.

    python -m staff.timing.large_task [--rows 392702] [--model_name_or_path tiny] [--length 128]

The rows have MNLI's format and their sentences are those of the bundled sample, in other pairs.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from common.commands import program
from common.data.features import CHUNK, load_features
from common.data.glue import find_glue_task, read_examples
from common.models.tiny import tiny_tokenizer
from experiments.command import KIT

import psutil
from transformers import AutoTokenizer

ROWS = 392_702  # of MNLI's training set
COLUMNS = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse"
COLUMNS += " sentence1_parse sentence2_parse sentence1 sentence2 label1 gold_label"
LABELS = ("entailment", "neutral", "contradiction")


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=program(), description="Measure what preparing a task of MNLI's size takes."
    )
    parser.add_argument("--rows", type=int, default=ROWS, help="default: MNLI's 392,702")
    parser.add_argument("--model_name_or_path", default="tiny", help="whose tokenizer")
    parser.add_argument("--length", type=int, default=128, help="--max_seq_length")
    args = parser.parse_args(argv)
    name = args.model_name_or_path
    tokenizer: Any = tiny_tokenizer() if name == "tiny" else AutoTokenizer.from_pretrained(name)
    pairs = sentences(args.rows)
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder) / "train.tsv", pairs)
        alone = tokenizer_alone(pairs, tokenizer, args.length)
        del pairs
        start = time.monotonic()
        with Peak() as peak:
            features = load_features(
                find_glue_task("MNLI"), folder, "train", tokenizer, args.length
            )
        seconds, start = time.monotonic() - start, time.monotonic()
        load_features(find_glue_task("MNLI"), folder, "train", tokenizer, args.length)
        again = time.monotonic() - start
    size = sum(tensor.nbytes for tensor in features.tensors.values())
    print(f"{len(features):,} rows: {seconds:.1f} s, the tokenizer alone {alone:.1f} s;")
    print(f"from the cache {again:.1f} s; features {size / 1e6:.0f} MB,")
    print(f"most memory while building {peak.grown / 1e6:.0f} MB, {peak.grown / size:.2f} times")
    return 0


def sentences(rows: int) -> list[tuple[str, str]]:
    """Premises and hypotheses of the sample, paired at random."""
    examples = read_examples(find_glue_task("RTE"), KIT / "sample_data" / "RTE", "train")
    chosen = random.Random(0)
    first, second = [each[0] for each in examples], [str(each[1]) for each in examples]
    return [(chosen.choice(first), chosen.choice(second)) for _ in range(rows)]


def write_rows(path: Path, pairs: list[tuple[str, str]]) -> None:
    """A training file in MNLI's format."""
    with path.open("w") as file:
        print(*COLUMNS.split(), sep="\t", file=file)
        for n, (first, second) in enumerate(pairs):
            label = LABELS[n % 3]
            print(
                n,
                n,
                f"{n}n",
                "fiction",
                *["( )"] * 4,
                first,
                second,
                *[label] * 2,
                sep="\t",
                file=file,
            )


def tokenizer_alone(pairs: list[tuple[str, str]], tokenizer: Any, length: int) -> float:
    """Seconds of the fast tokenizer itself on the same texts, in as large pieces."""
    start = time.monotonic()
    tokenizer.backend_tokenizer.enable_truncation(length)
    for at in range(0, len(pairs), CHUNK):
        tokenizer.backend_tokenizer.encode_batch(pairs[at : at + CHUNK])
    return time.monotonic() - start


class Peak:
    """By how many bytes this process's memory grows at most while the block runs: `grown`."""

    def __enter__(self) -> "Peak":
        self.process, self.grown = psutil.Process(), 0
        self.before, self.done = self.process.memory_info().rss, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def watch(self) -> None:
        """Look every 5 ms until the block has ended."""
        while not self.done.wait(0.005):
            self.grown = max(self.grown, self.process.memory_info().rss - self.before)


if __name__ == "__main__":
    sys.exit(main())
