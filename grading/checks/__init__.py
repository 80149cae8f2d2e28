"""The checks by name: each takes a GradedTask and returns an Outcome."""

from grading.checks.byte_counts import traffic
from grading.checks.divided import divided, order
from grading.checks.output import metric, printed, timing
from grading.checks.pretraining import masks, own_rows, pairs
from grading.checks.pretraining_functions import decay, lamb
from grading.checks.pretraining_resumed import phases, resume
from grading.checks.pretraining_updates import falls, losses, optimizer, scaling, schedule
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
    "divided": divided,
    "order": order,
    "workers": workers,
    "masks": masks,
    "pairs": pairs,
    "own_rows": own_rows,
    "losses": losses,
    "optimizer": optimizer,
    "schedule": schedule,
    "falls": falls,
    "scaling": scaling,
    "resume": resume,
    "phases": phases,
    "lamb": lamb,
    "decay": decay,
}
# The setting whose run a check looks at; `runs`, `identical` and `shards` look at every run.
SETTING_OF = {
    **dict.fromkeys(("batch", "data", "shuffle", "parameters"), "adamw"),
    **dict.fromkeys(("printed", "timing", "metric", "saved"), "adamw"),
    "clipping": "clipped",
    "workers": "few",
    **dict.fromkeys(("masks", "pairs", "own_rows", "optimizer", "schedule", "falls"), "adamw"),
    "scaling": "float16",
    **dict.fromkeys(("resume", "phases"), "resumed"),
    **dict.fromkeys(("lamb", "decay"), "functions"),
}
DEFAULT_SETTING = "plain"
