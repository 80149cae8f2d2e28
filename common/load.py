"""What every worker starts from: the same model, and data that all ranks share."""

from common.data.glue import find_glue_task
from common.data.loader import TrainingBatches, load_data
from common.data.uneven import UnevenBatches
from common.models.bert import load_model, weights_digest
from common.uneven import is_exact, unweighted
from common.workers.world import check_identical_across_ranks


def load(args, world):
    """The model, on this worker's device, and its `Data`.

    Raises UserError for a model or data that cannot be loaded, and where data or weights are not
    the same on all ranks: it names the ranks that differ.
    """
    glue_task = find_glue_task(args.task_name)
    model, tokenizer = load_model(args, glue_task, world)
    if world.rank == 0 and (notice := unweighted(args)):
        print(notice)
    kind = UnevenBatches if is_exact(args) else TrainingBatches
    data = load_data(args, glue_task, tokenizer, world, kind)
    facts: dict[str, object] = {"weights": weights_digest(model)}
    for name, rows in data.splits.items():
        facts[f"the number of rows of {name}"] = len(rows)
        facts[f"the number of tokens of {name}"] = rows.offsets[-1]
        facts[f"the data of {name}"] = rows.digest
    check_identical_across_ranks(world, facts)
    return model, data
