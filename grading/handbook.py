"""Where the handout explains what went wrong: a section of MISTAKES.md, or a task's own text."""

FILE = "MISTAKES.md"
BY_HEADING = {
    "Summed, not averaged": ("summed",),
    "Averaged twice, or scaled otherwise": ("divided_twice", "scaled", "loss_scaled"),
    "Clip after averaging": ("clipped_before_average", "not_clipped"),
    "Gradients that are not synchronised": ("no_sync", "averaged_too_late", "ranks_drift"),
    "Only some ranks have the mean": ("only_root_has_mean",),
    "A rank, or a tensor, is left out": (
        *("rank_left_out", "tensors_left_out", "zeroed", "rounded", "mixed"),
    ),
    "Averaging the parameters instead": ("parameters_averaged",),
    "Each rank its own share": ("same_data", "rows_missing", "rows_shared"),
    "The total batch": ("batch_not_divided",),
    "A new order in every epoch": ("not_reshuffled",),
    "Gradients that add up": ("gradients_kept", "accumulation_unscaled"),
    "Where training starts": ("different_start",),
    "The update": ("wrong_update", "unscheduled", "wrong_rate", "no_mask"),
    "The collective that the task asks for": ("wrong_collective",),
    "Ranks that wait for each other": ("hang", "dead_rank"),
    "What to print": ("not_printed", "metric_missing", "shard_evaluated"),
    "Discard the first iteration": ("first_iteration_timed", "not_timed"),
    "Counting bytes": ("wrong_traffic",),
    "Runs to the end": ("crashed", "memory", "no_training", "missing", "tampered"),
}
SECTIONS = {
    **{f"task{name}": f"task{name}/README.md" for name in ("1", "2a", "2b", "3", "4")},
    **{cause: f'{FILE}, "{heading}"' for heading, causes in BY_HEADING.items() for cause in causes},
}
