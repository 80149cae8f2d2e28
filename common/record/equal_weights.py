"""Keeps the ranks' weights the same where their processors round differently."""

import torch.distributed as dist


class EqualWeights:
    """After every so many updates: how far the ranks' weights are apart, and then rank 0's for all.

    Ranks that make the same updates drift apart where their processors have other vector units:
    the kernels of the optimizer round differently. `found` lists what was measured.
    """

    def __init__(self, args, world, model):
        self.group = world.replicas_group
        self.every = args.sync_weights_steps if world.readers().size > 1 else 0
        self.weights = [p.detach() for p in model.parameters()]
        self.found = []

    def after(self, step):
        """Synchronize the weights if it is time; returns what to print. All ranks call it."""
        if not self.every or step % self.every:
            return ""
        largest, different = 0.0, 0
        for weights in self.weights:
            high, low = weights.clone(), -weights
            dist.all_reduce(high, op=dist.ReduceOp.MAX, group=self.group)
            dist.all_reduce(low, op=dist.ReduceOp.MAX, group=self.group)
            apart = high + low
            largest = max(largest, apart.max().item())
            different += int(apart.count_nonzero())
            dist.broadcast(weights, group=self.group, group_src=0)
        share = different / sum(weights.numel() for weights in self.weights)
        self.found.append({"step": step, "largest": largest, "share": share})
        return (
            f"weights after step {step}: {share:.1%} differed between the ranks, by up to "
            f"{largest:.1e}; now all have rank 0's"
        )
