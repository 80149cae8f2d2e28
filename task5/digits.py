"""Handwritten digits in place of sentences: a small convolutional network, by task 5's loop."""

from common.data.idx import find_mnist
from common.flags import Flag
from common.own_task import OWN_TASKS, OwnTask
from common.run import run
from task5.run_glue import main

import torch
from sklearn.datasets import load_digits
from torch import nn

FLAGS = [Flag("task_name", str, "digits", "this task"), Flag("model_name_or_path", str, "", "none")]
FLAGS += [Flag("data_dir", str, ".", "folder of MNIST's files; without them scikit-learn's digits")]


def load_split(args, split):
    x, y = load_digits(return_X_y=True)  # 8 x 8 pixels each, of 0 to 16
    part = slice(1400) if split == "train" else slice(1400, None)
    found = find_mnist(args.data_dir, split) or (x.reshape(-1, 8, 8)[part] * 16, y[part])
    return [(torch.tensor(x / 256).float()[None], int(y)) for x, y in zip(*found, strict=True)]


def collate(rows):
    return {"x": torch.stack([x for x, _ in rows]), "y": torch.tensor([y for _, y in rows])}


OWN_TASKS["digits"] = OwnTask(
    build_model=lambda: nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveMaxPool2d(4), nn.Flatten(), nn.Linear(512, 10)),
    ),
    load_split=load_split,
    collate=collate,
    loss=lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
    metric=lambda model, batch: {"acc": model(batch["x"]).argmax(1) == batch["y"]},
    make_optimizer=lambda parameters, args: torch.optim.Adadelta(parameters, args.learning_rate),
)
if __name__ == "__main__":
    run(main, __file__, FLAGS)
