"""What every worker starts from: the same model, and data that all ranks share."""

from common.data.differing import first_differences
from common.data.glue import find_glue_task
from common.data.loader import TrainingBatches, load_data
from common.data.pipelined import PipelinedBatches
from common.data.uneven import UnevenBatches
from common.errors import UserError
from common.layers import is_divided
from common.models.bert import load_model, weights_digest
from common.own_run import load_own
from common.own_task import OWN_TASKS
from common.uneven import is_exact, unweighted
from common.workers.world import check_identical_across_ranks


def load(args, world):
    """The model, on this worker's device, and its `Data`.

    Raises UserError for a model or data that cannot be loaded, and where data or weights are not
    the same on all ranks: it names the ranks that differ, and the first row that does.
    """
    own = OWN_TASKS.get(args.task_name)
    model, data = load_own(own, args, world) if own else load_glue(args, world)
    if world.rank == 0 and (notice := unweighted(args)):
        print(notice)
    facts: dict[str, object] = {"weights": weights_digest(model)}
    for name, rows in data.splits.items():
        facts[f"the number of rows of {name}"] = len(rows)
        if not own:
            facts[f"the number of tokens of {name}"] = rows.offsets[-1]
        facts[f"the data of {name}"] = rows.digest
    try:
        check_identical_across_ranks(world, facts)
    except UserError as error:
        lines = first_differences(world, data.splits, data.tokenizer)
        raise UserError("\n".join([str(error), *lines])) from None
    return model, data


def load_glue(args, world):
    """The model and the Data of one of GLUE's tasks."""
    glue_task = find_glue_task(args.task_name)
    model, tokenizer = load_model(args, glue_task, world)
    kind = UnevenBatches if is_exact(args) else TrainingBatches
    if is_divided(args):
        kind = PipelinedBatches
    return model, load_data(args, glue_task, tokenizer, world, kind)
