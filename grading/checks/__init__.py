"""The checks by name: each takes a GradedTask and returns an Outcome."""

from grading.checks.byte_counts import traffic
from grading.checks.output import metric, printed, timing
from grading.checks.rows import batch, data, shuffle
from grading.checks.running import collectives, runs
from grading.checks.sharded import saved, shards
from grading.checks.values import clipping, gradients, identical, loss, parameters, start
from grading.checks.world_size import workers

CHECKS = {
    "runs": runs,
    "start": start,
    "batch": batch,
    "data": data,
    "shuffle": shuffle,
    "loss": loss,
    "gradients": gradients,
    "clipping": clipping,
    "identical": identical,
    "parameters": parameters,
    "collectives": collectives,
    "printed": printed,
    "timing": timing,
    "metric": metric,
    "traffic": traffic,
    "shards": shards,
    "saved": saved,
    "workers": workers,
}
# The setting whose run a check looks at; `runs`, `identical` and `shards` look at every run.
SETTING_OF = {
    **dict.fromkeys(("batch", "data", "shuffle", "parameters"), "adamw"),
    **dict.fromkeys(("printed", "timing", "metric", "saved"), "adamw"),
    "clipping": "clipped",
    "workers": "few",
}
DEFAULT_SETTING = "plain"
