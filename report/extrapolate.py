"""What the cost model says of published sizes of BERT on up to 1,024 workers."""

from dataclasses import dataclass, replace

from common.tasks import COMPARED
from report.cost_model import Model

WORKERS = [2**power for power in range(11)]  # 1 to 1,024
RATES = ("1gbit", "10gbit", "25gbit", "100gbit", "400gbit")
TASKS = tuple(task.key for task in COMPARED if task.distributed)
SHOWN = (4, 64, 1024)  # workers
EFFICIENT = 0.8


@dataclass(frozen=True)
class Bert:
    """A published size: parameters in all, in the word embedding, and in the encoder's layers."""

    name: str
    parameters: int
    embedding: int
    encoder: int


BERTS = (
    Bert("BERT-base", 109_482_240, 30522 * 768, 12 * 7_087_872),
    Bert("BERT-large", 335_141_888, 30522 * 1024, 24 * 12_596_224),
)


def scaled(model: Model, bert: Bert, speed: float, latency: float) -> Model:
    """The Model of another size of BERT, on workers `speed` times as fast as the measured one.

    An example costs in proportion to the encoder's parameters, what is fixed to all of them. A
    message takes at least `latency` seconds: large buckets give a poor estimate of it.
    """
    size = 4 * bert.parameters
    encoder = model.gradient_bytes - model.embedding_bytes
    return replace(
        model,
        fixed=model.fixed * size / model.gradient_bytes / speed,
        example=model.example * 4 * bert.encoder / encoder / speed,
        handling=model.handling / speed,
        latency=max(model.latency, latency),
        gradient_bytes=size,
        embedding_bytes=4 * bert.embedding,
    )


def best_workers(model: Model, task: str, total: int, rate: str) -> int:
    """The number of workers, of 1, 2, 4 ... 1,024, that does a total batch the fastest."""
    able = [workers for workers in WORKERS if workers <= total]
    return min(able, key=lambda workers: model.seconds(task, workers, total / workers, rate))


def least_batch(model: Model, task: str, workers: int, rate: str) -> int | None:
    """The least total batch, by powers of two, with which so many workers are EFFICIENT."""
    for power in range(21):
        if model.efficiency(task, workers, 2**power, rate) >= EFFICIENT:
            return workers * 2**power
    return None


def answers(model: Model, batch: int) -> list[dict[str, object]]:
    """A row per link rate and task: how it scales, by the model, with `batch` examples each."""
    return [
        {
            "link": rate,
            "task": task,
            **{
                f"{workers} workers": f"{model.efficiency(task, workers, batch, rate):.0%}"
                for workers in SHOWN
            },
            "best for 1,024 in all": best_workers(model, task, 1024, rate),
            "80 % at 64 from": least_batch(model, task, 64, rate) or "never",
        }
        for rate in RATES
        for task in TASKS
    ]


def curves(model: Model, batch: int) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """(task, rate) -> the efficiency of each number of workers, for a figure."""
    return {
        (task, rate): [(n, model.efficiency(task, n, batch, rate)) for n in WORKERS]
        for task in TASKS
        for rate in RATES[1::2]
    }
