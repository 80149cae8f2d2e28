"""Task 8: make a corpus for pre-training from plain text: a vocabulary, and shards of token ids.

    python task8/prepare.py --output_dir runs/corpus                           # the bundled text
    python task8/prepare.py --corpus FILE_OR_FOLDER ... --output_dir C [--vocab_size N] [--shards N]

A document ends with a blank line, or with its file. The same text and numbers give the same files,
byte for byte. Stopped at any moment, the same command goes on with what is finished.
"""

import argparse
import sys
from pathlib import Path

from common.commands import Parser
from common.data.preparing import prepare
from common.errors import UserError
from common.files import disk_full, write_whole
from sample_data.make_corpus import corpus

BUNDLED = "bundled.txt"  # in the output folder


def main(argv=None):
    """Run the command; returns the exit code: 2 after a user error, 130 after Ctrl-C."""
    try:
        args = parse(argv)
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        if not args.corpus:
            write_whole(folder / BUNDLED, corpus())
        facts = prepare(args, args.corpus or [str(folder / BUNDLED)])
    except (UserError, OSError) as error:
        known = isinstance(error, UserError)
        line = (
            str(error) if known else disk_full(error, args.output_dir) or f"--output_dir: {error}"
        )
        print(f"prepare.py: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted (Ctrl-C); the same command goes on from here", file=sys.stderr)
        return 130
    print(
        f"{args.output_dir}: {facts['documents']:,} documents, {facts['sentences']:,} sentences, "
        f"{facts['tokens']:,} tokens of {facts['vocab_size']:,} different ones in "
        f"{len(facts['shards'])} shards; entropy of single tokens: {facts['unigram_entropy']} nats"
    )
    return 0


def parse(argv):
    """The command line; raises UserError with what is wrong."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.usage = "prepare.py --output_dir C [--corpus FILES] [--vocab_size N] [--shards N]"
    parser.add_argument("--corpus", nargs="+", default=[], help="files or folders of UTF-8 text")
    parser.add_argument("--output_dir", required=True, help="folder to write to")
    parser.add_argument("--vocab_size", type=int, default=2000, help="most tokens (default: 2000)")
    parser.add_argument("--shards", type=int, default=4, help="most shards (default: 4)")
    parser.add_argument(
        "--overwrite_output_dir", action="store_true", help="replace another corpus there"
    )
    args = parser.parse_args(argv)
    for name in ("vocab_size", "shards"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: must be at least 1")
    return args


if __name__ == "__main__":
    sys.exit(main())
