"""LAMB: Adam whose update of each weight matrix is scaled to the size of that matrix.

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (ICLR 2020),
algorithm 2, with the bounds that DeepSpeed sets to its trust ratio.
"""

from common.norms import norms

import torch


class Lamb(torch.optim.Optimizer):
    """A torch.optim optimizer; `params` may be pairs of name and parameter.

    For a weight x with gradient g, in step t:

        m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay x
        x = x - lr ratio u           ratio = |x| / |u|, within min_coeff and max_coeff

    where |.| is the norm over the whole weight; where one of them is 0, the ratio is 1. Without
    `bias_correction` m and v are not divided. With both bounds 1 it is AdamW.
    """

    def __init__(  # noqa: PLR0913 the names are DeepSpeed's
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.0,
        max_coeff=10.0,
        min_coeff=0.01,
        bias_correction=True,
    ):
        if not 0 <= min_coeff <= max_coeff:
            raise ValueError(f"bounds of the trust ratio: {min_coeff} is above {max_coeff}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        defaults |= {"max_coeff": max_coeff, "min_coeff": min_coeff}
        super().__init__(params, {**defaults, "bias_correction": bias_correction})

    @torch.no_grad()
    def step(self, closure=None):
        """Update every weight that has a gradient; returns the closure's loss, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, group)
        return loss

    def update(self, p, group):
        """Update one weight."""
        state = self.state[p]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(p)
            state["exp_avg_sq"] = torch.zeros_like(p)
        state["step"] += 1
        update = adam_update(p, state, group)
        ratio = trust_ratio(p, update, group["min_coeff"], group["max_coeff"])
        state["trust_ratio"] = ratio
        p.sub_(update.mul_(ratio * group["lr"]))

    def trust_ratios(self):
        """The last step's trust ratio of each weight, by the names that `params` gave them."""
        ratios = {}
        for number, group in enumerate(self.param_groups):
            numbers = [f"{number}.{place}" for place in range(len(group["params"]))]
            names = group.get("param_names", numbers)
            names = names if len(names) == len(numbers) else numbers  # DeepSpeed flattens groups
            for name, p in zip(names, group["params"], strict=True):
                if "trust_ratio" in self.state[p]:
                    ratios[name] = self.state[p]["trust_ratio"].item()
        return ratios


# SOLUTION(task8): the moments with this gradient, and from them u, with the decay
def adam_update(p, state, group):
    """Adam's update u of a weight, a tensor; makes the moments in `state` those of this step."""
    step = state["step"].item()
    beta1, beta2 = group["betas"]
    mean = state["exp_avg"].lerp_(p.grad, 1 - beta1)
    square = state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
    first, second = 1 - beta1**step, 1 - beta2**step
    if not group["bias_correction"]:
        first = second = 1.0
    root = square.div(second).sqrt_().add_(group["eps"])
    update = mean.div(first).div_(root)
    return update.add_(p, alpha=group["weight_decay"]) if group["weight_decay"] else update


# SOLUTION(task8): the norm of the weight by that of its update, bounded; 1 where either is 0
def trust_ratio(weight, update, lowest, highest):
    """How large an update is made: the weight's norm by the update's, within bounds; a tensor."""
    of_weight, of_update = norms([weight, update])
    ratio = (of_weight / of_update).clamp(lowest, highest)
    return torch.where((of_weight > 0) & (of_update > 0), ratio, 1.0)
