"""Which split of many GPUs into data x pipeline x tensor serves a model: by formulas alone.

    python -m report plan [--model bert-large 10b] [--gpus 1024] [--links 25gbit 100gbit 400gbit]

For every rate of a node's link to others, the fastest split of each kind: its seconds a step, by
what they go to, its share of the time in which all only compute, and the bytes of a GPU. The
formulas and their sources: report/cluster_model.py.
"""

import argparse
import sys

from common.commands import program
from common.errors import UserError
from common.tables import markdown_table
from report.cluster_model import BERTS, GPUS, UTILIZATION, Plan, Work, best, memory, parts
from report.cost_model import bytes_per_second

HEADS = ("link", "data x pipeline x tensor", "ZeRO", "micro-batches", "s a step", "computing")
HEADS += ("bubble", "borders", "tensor", "data", "GB a GPU")


def row(work: Work, rate: str, plan: Plan) -> list[object]:
    """A plan's row of the table; what its seconds go to in per cent."""
    seconds = parts(work, plan)
    total = sum(seconds.values())
    again = ", recomputed" if plan.again else ""
    return [
        rate,
        f"{plan.data} x {plan.pipeline} x {plan.tensor}",
        plan.zero or "-",
        f"{plan.micro_batches(work)} of {plan.micro}{again}",
        f"{total:.3f}",
        *(f"{each / total:.0%}" for each in seconds.values()),
        f"{memory(work, plan) / 1e9:.1f}",
    ]


def table(model: str, args: argparse.Namespace) -> str:
    """A model's plans, in words and as a table; raises UserError where nothing fits."""
    bert, gpu = BERTS[model], GPUS[args.gpu]
    rows = []
    for rate in args.links:
        work = Work(bert, gpu, args.gpus, bytes_per_second(rate), args.batch, args.tokens)
        found = best(work)
        if not found:
            raise UserError(
                f"{bert.name} ({bert.weights / 1e9:.2f} billion weights) fits no split of "
                f"{args.gpus} x {gpu.name} with --batch {args.batch}: give --gpus and --batch that "
                "are powers of 2, and more of them"
            )
        rows += [row(work, rate, plan) for plan in list(found.values())[: args.kinds]]
    title = (
        f"{bert.name}: {bert.weights / 1e9:.2f} billion weights on {args.gpus} x {gpu.name}, "
        f"{args.batch} sequences of {args.tokens} tokens a step, at {UTILIZATION:.0%} of the peak"
    )
    return f"{title}\n\n{markdown_table(HEADS, rows)}"


def main(argv: list[str] | None = None) -> int:
    """Print the plans of each model; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=program(), description="Which split of many GPUs serves a model, by formulas."
    )
    parser.add_argument("--model", nargs="+", choices=list(BERTS), default=list(BERTS))
    parser.add_argument("--gpu", choices=list(GPUS), default="a100", help="default: a100")
    parser.add_argument("--gpus", type=int, default=1024, help="default: 1024")
    parser.add_argument("--batch", type=int, default=4096, help="sequences a step; default: 4096")
    parser.add_argument("--tokens", type=int, default=512, help="of a sequence; default: 512")
    parser.add_argument(
        "--links",
        nargs="+",
        default=["25gbit", "100gbit", "400gbit"],
        help="of each node to others; default: 25gbit 100gbit 400gbit",
    )
    parser.add_argument("--kinds", type=int, default=4, help="of splits shown; default: 4")
    args = parser.parse_args(argv)
    try:
        for name in ("gpus", "batch", "tokens", "kinds"):
            if getattr(args, name) < 1:
                raise UserError(f"--{name} {getattr(args, name)}: must be 1 or more")
        print("\n\n".join(table(model, args) for model in args.model))
    except UserError as error:
        print(f"report.plan: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
