"""The time and the memory of a training step on a cluster of GPUs, for every way of splitting it.

N GPUs are divided into D x P x T: D replicas of the model (data), P stages of layers each
(pipeline) and T parts of each matrix (tensor, within a node). For L layers of width h, s tokens a
sequence, B sequences a step, m micro-batches of b sequences in each replica, Psi weights, and
16-bit weights, gradients and activations:

    computing       72 B L s h^2 (1 + s / 6h) FLOP, a third more where activations are recomputed
    bubble          (P - 1) / m of it
    borders         2 m b s h 2 / T bytes: activations there, gradients back; GPUs share the link
    tensor          4 all_reduces of b s h 2 bytes a layer and micro-batch (6 where recomputed)
    data            2 (D - 1) / D of the gradients' bytes, in T rings that share each node's link;
                    behind the last micro-batch's backward pass
    ZeRO-3          (2 m + 1) (D - 1) / D of the weights' bytes, behind all computing
    state           16 bytes a weight over P T; with ZeRO-1 4 + 12 / D, ZeRO-2 2 + 14 / D, ZeRO-3
                    16 / D and a layer's weights and gradients
    activations     s b h (10 + 24 / T) bytes a layer and micro-batch, 2 s b h where recomputed; of
                    min(m, P) micro-batches

Sources: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", 2021 (computing, bubble, tensor); Huang et al., "GPipe", 2019, and Narayanan et al.,
"Memory-Efficient Pipeline-Parallel DNN Training", 2021 (the two orders; PipeDream-flush keeps P);
Rajbhandari et al., "ZeRO", 2020 (state, and its bytes); Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", 2022 (activations, here of fused attention).
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

WORD = 2  # bytes of a 16-bit number
UTILIZATION = (
    0.45  # of a GPU's peak, in a large matrix product's company (Narayanan et al.: 44-52 %)
)
USABLE = 0.9  # of a GPU's memory
MESSAGE_SECONDS = 10e-6
BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True)
class Gpu:
    """A GPU as its maker's data sheet has it, in a node of several."""

    name: str
    flops: float  # a second, 16-bit, dense
    memory: float  # bytes
    inside: float  # bytes a second each way to the others of its node
    node: int  # GPUs of a node


GPUS = {
    "v100": Gpu("V100 32 GB", 125e12, 32e9, 150e9, 16),
    "a100": Gpu("A100 80 GB", 312e12, 80e9, 300e9, 8),
    "h100": Gpu("H100 80 GB", 989e12, 80e9, 450e9, 8),
}


@dataclass(frozen=True)
class Bert:
    """A size of BERT."""

    name: str
    layers: int
    width: int
    heads: int
    vocabulary: int = 30522

    @property
    def weights(self) -> int:
        """All of them: Psi."""
        layer = 12 * self.width**2 + 13 * self.width
        return self.layers * layer + (self.vocabulary + 512) * self.width


BERTS = {
    "bert-large": Bert("BERT-large", 24, 1024, 16),
    "10b": Bert("a BERT of 10 billion weights", 48, 4096, 32),
}


@dataclass(frozen=True)
class Work:
    """What a step is to do, on what."""

    bert: Bert
    gpu: Gpu
    gpus: int
    link: float  # bytes a second each way, of each node to others
    batch: int  # sequences a step, of all
    tokens: int  # of a sequence


@dataclass(frozen=True)
class Plan:
    """How a step's work is divided."""

    data: int
    pipeline: int
    tensor: int
    micro: int  # sequences of a micro-batch
    zero: int  # the stage of ZeRO: 0 to 3
    again: bool  # whether the backward pass recomputes activations

    def micro_batches(self, work: Work) -> int:
        """m: those of each replica."""
        return work.batch // (self.data * self.micro)

    @property
    def kind(self) -> str:
        """What it is built of, for tables: "data x tensor"."""
        parts = [name for name in ("data", "pipeline", "tensor") if getattr(self, name) > 1]
        return " x ".join(parts) or "one GPU"


def computing(work: Work, plan: Plan) -> float:
    """Seconds in which each GPU computes."""
    bert, s = work.bert, work.tokens
    flop = 72 * work.batch * bert.layers * s * bert.width**2 * (1 + s / (6 * bert.width))
    return flop * (4 / 3 if plan.again else 1) / (work.gpus * work.gpu.flops * UTILIZATION)


def ring(work: Work, plan: Plan) -> float:
    """Bytes a second along the ring of a weight's replicas: a node has one way in, one out."""
    apart = plan.data * plan.tensor > work.gpu.node
    return min(work.gpu.inside, work.link / plan.tensor) if apart else work.gpu.inside


def parts(work: Work, plan: Plan) -> dict[str, float]:
    """A step's seconds by what they go to; their sum is the step's."""
    bert, m = work.bert, plan.micro_batches(work)
    compute = computing(work, plan)
    bubble = compute * (plan.pipeline - 1) / m
    activation = WORD * plan.micro * work.tokens * bert.width
    rounds = m + plan.pipeline - 1
    each = 2 * (plan.tensor - 1) / plan.tensor * activation / work.gpu.inside
    each += MESSAGE_SECONDS * 2 * math.log2(plan.tensor)
    tensor = rounds * bert.layers / plan.pipeline * (6 if plan.again else 4) * each
    border = 2 * m * (activation / plan.tensor * work.gpu.node / work.link + MESSAGE_SECONDS)
    share = WORD * bert.weights / (plan.pipeline * plan.tensor)
    passes = 2 * m + 1 if plan.zero == 3 else 2
    data = passes * (plan.data - 1) / plan.data * share / ring(work, plan)
    data += passes * math.ceil(share / BUCKET_BYTES) * math.log2(plan.data) * MESSAGE_SECONDS
    backward = 3 / 4 if plan.again else 2 / 3
    hiding = compute if plan.zero == 3 else backward * compute / m
    return {
        "computing": compute,
        "bubble": bubble,
        "borders": border if plan.pipeline > 1 else 0.0,
        "tensor": tensor,
        "data": max(0.0, data - hiding),
    }


def memory(work: Work, plan: Plan) -> float:
    """Bytes of a GPU: weights, gradients, Adam's state, and the activations that are kept."""
    bert, d = work.bert, plan.data
    weight = {0: 16, 1: 4 + 12 / d, 2: 2 + 14 / d, 3: 16 / d}[plan.zero]
    state = weight * bert.weights / (plan.pipeline * plan.tensor)
    state += 2 * WORD * 12 * bert.width**2 if plan.zero == 3 else 0
    unit = work.tokens * plan.micro * bert.width
    whole = unit * (10 + 24 / plan.tensor)  # a layer's
    kept = bert.layers / plan.pipeline * min(plan.micro_batches(work), plan.pipeline)
    return state + (kept * 2 * unit + whole if plan.again else kept * whole)


def plans(work: Work) -> Iterator[Plan]:
    """All that divide the GPUs, the layers and the batch without a rest, and fit the memory."""
    for tensor, pipeline in itertools.product(
        powers(work.gpu.node), range(1, work.bert.layers + 1)
    ):
        data, rest = divmod(work.gpus, tensor * pipeline)
        if rest or not data or work.bert.layers % pipeline or work.batch % data:
            continue
        for micro, zero, again in itertools.product(powers(64), range(4), (False, True)):
            plan = Plan(data, pipeline, tensor, micro, zero, again)
            possible = zero == 0 or (data > 1 and (zero == 1 or pipeline == 1))
            if possible and work.batch // data % micro == 0 and fits(work, plan):
                yield plan


def fits(work: Work, plan: Plan) -> bool:
    """Whether a GPU's memory holds it."""
    return memory(work, plan) <= USABLE * work.gpu.memory


def powers(most: int) -> list[int]:
    """1, 2, 4 ... to `most`."""
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def best(work: Work) -> dict[str, Plan]:
    """The fastest plan of each kind, the fastest kind first; of equals, the plainest."""
    order = sorted(
        plans(work),
        key=lambda plan: (round(sum(parts(work, plan).values()), 6), plan.again, plan.zero),
    )
    kinds: dict[str, Plan] = {}
    for plan in order:
        kinds.setdefault(plan.kind, plan)
    return kinds
