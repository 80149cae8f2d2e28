"""The checks by name: each takes a grading.grader.Task and returns an Outcome."""

from grading.checks.output import metric, printed, timing, traffic
from grading.checks.rows import batch, data, shuffle
from grading.checks.running import collectives, runs
from grading.checks.values import clipping, gradients, identical, loss, parameters, start

CHECKS = {
    check.__name__: check
    for check in (
        *(runs, start, batch, data, shuffle, loss, gradients, clipping, identical, parameters),
        *(collectives, printed, timing, metric, traffic),
    )
}
