"""The checks by name: each takes a GradedTask and returns an Outcome."""

from grading.checks.byte_counts import traffic
from grading.checks.output import metric, printed, timing
from grading.checks.rows import batch, data, shuffle
from grading.checks.running import collectives, runs
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
    "workers": workers,
}
# The setting whose run a check looks at; `runs` and `identical` look at every run there is.
SETTING_OF = {
    **dict.fromkeys(("batch", "data", "shuffle", "parameters"), "adamw"),
    **dict.fromkeys(("printed", "timing", "metric"), "adamw"),
    "clipping": "clipped",
    "workers": "few",
}
DEFAULT_SETTING = "plain"
