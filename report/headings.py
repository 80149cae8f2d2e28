"""The headings of a student's report and of answers.md, and what to write below each."""

from common.tasks import ASSIGNED, SCRIPTS, Task

QUESTIONS = {  # what the reasoning on a task is about
    "task1": "What do the losses and the metric after every epoch show?",
    "task2a": "How are gradients synchronized, and what does rank 0 carry?",
    "task2b": "Why are its times what they are, compared with 2(a)'s?",
    "task3": "What does it do better, and does it show in the times?",
    "task4": "How do expected and measured bytes compare, and with the batch size?",
    "zero1": "Which bytes does it save, and what does it send in place of 2(b)'s all_reduce?",
    "zero2": "Why does it move no more bytes than 2(b), and what does gloo's own collective move?",
    "fsdp": "What is left on one worker, and what does gathering each layer twice cost?",
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
