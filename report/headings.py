"""The headings of a student's report and of answers.md, and what to write below each."""

from common.tasks import ASSIGNED, SCRIPTS, Task

QUESTIONS = {  # what the reasoning on a task is about
    "task1": "What do the losses and the metric after every epoch show?",
    "task2a": "How are gradients synchronized, and what does rank 0 carry?",
    "task2b": "Why are its times what they are, compared with 2(a)'s?",
    "task3": "What does it do better, and does it show in the times?",
    "task4": "How do expected and measured bytes compare, and with the batch size?",
    "overlap": "How much of the all_reduce does the backward pass hide, and what decides it?",
    "uneven_ddp": "Why does the loss need a factor, where 5 weights the gradients?",
    "zero1": "Which bytes does it save, and what does it send in place of 2(b)'s all_reduce?",
    "zero2": "Why does it move no more bytes than 2(b), and what does gloo's own collective move?",
    "fsdp": "What is left on one worker, and what does gathering each layer twice cost?",
    "naive": "What has each worker to keep, and how much of the time does it wait?",
    "gpipe": "How long is the bubble with m micro-batches, against (p - 1)/(m + p - 1)?",
    "one_f_one_b": "Why does another order keep less, and why is the bubble the same?",
    "grid": "Which bytes cross which links, and when is 2 x 2 better than 4 x 1 or 1 x 4?",
    "tensor": "What does each layer send, and on which links would you divide matrices?",
    "library": "What does the library take off your hands, and what does it ask for in return?",
    "task8": "What do the losses and the trust ratios show, and what does pre-training buy?",
}
DETAILS = "Implementation details"
SCALABILITY = "Scalability"


def title_of(task: Task) -> str:
    """The heading of a task's section, in the report and in answers.md."""
    return f"Task {task.title}: {task.teaches}"


def question_of(task: Task) -> str:
    """What a task's reasoning is about."""
    base = SCRIPTS[task.base].title if task.base else "the others"
    other = f"What does it do differently from task {base}, and does it show in the times?"
    return QUESTIONS.get(task.name, other)


SECTIONS = {  # heading of the report and of answers.md -> what the reasoning is about
    **{title_of(task): question_of(task) for task in ASSIGNED},
    DETAILS: "What did you write, on which machines, with which settings; what was hard?",
    SCALABILITY: "Comment on how the methods scale, from your own measurements.",
}
FURTHER = {  # the same of tasks that are not part of the assignment, in a report that has them
    title_of(task): question_of(task) for task in SCRIPTS.values() if task.further
}
