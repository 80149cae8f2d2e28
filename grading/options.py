"""The options of a script, as its own `--help` lists them, and what we pass to each."""

import re
from dataclasses import dataclass

FLAG = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*)")
CHOICES = re.compile(r"\{([^{}\s]+)\}")
USAGE = r"\s*usage:(.*?)\n\s*\n"
MOST_OPTIONS = 300

# Placeholder -> names of options that take it, the likeliest first.
NAMES = {
    "data_dir": "data_dir data data_path dataset_dir glue_dir input_dir",
    "model": "model_name_or_path model_name model_path model bert_model checkpoint pretrained",
    "model_type": "model_type",
    "task_name": "task_name glue_task task",
    "output_dir": "output_dir out_dir output out save_dir result_dir",
    "max_seq_length": "max_seq_length max_seq_len max_length max_len seq_length seq_len length",
    "batch": "per_gpu_train_batch_size per_device_train_batch_size per_device_batch_size "
    "per_gpu_batch_size per_worker_batch_size local_batch_size train_batch_size batch_size "
    "batch bs",
    "total_batch": "total_batch_size total_train_batch_size global_batch_size total_batch "
    "global_batch effective_batch_size",
    "eval_batch": "per_gpu_eval_batch_size per_device_eval_batch_size eval_batch_size eval_batch",
    "learning_rate": "learning_rate lr",
    "epochs": "num_train_epochs num_epochs epochs n_epochs epoch",
    "max_grad_norm": "max_grad_norm max_norm clip_norm grad_clip clip clip_grad_norm",
    "master_ip": "master_ip master_addr master_address master_host master ip addr host",
    "master_port": "master_port port",
    "world_size": "world_size num_nodes nnodes n_nodes num_machines nprocs size n",
    "rank": "rank global_rank node_rank worker_rank machine_rank local_rank r",
}
SWITCHES = ("do_train", "do_eval", "overwrite_output_dir", "no_cuda")
NEEDED = ("data_dir", "model", "max_seq_length", "learning_rate", "epochs", "max_grad_norm")
NEEDED_BY_SEVERAL = ("master_ip", "master_port", "world_size", "rank")
METHOD = re.compile(r"method|mode|sync|strategy|algorithm|part|task|aggregat|comm|variant", re.I)
OF_TASK = {  # task -> how a choice, a switch, a file or a folder may be called that means it
    "task1": r"(task|part)?_?1|single|none|local|baseline",
    "task2a": r"(task|part)?_?2_?a|gather_?(and_?)?(scatter)?",
    "task2b": r"(task|part)?_?2_?b|all_?reduce",
    "task3": r"(task|part)?_?3|ddp|distributed_?data_?parallel",
    "task4": r"(task|part)?_?4|traffic|profil\w*",
    "task5": r"(task|part)?_?5|uneven|heterogeneous",
    "zero1": r"zero_?1",
    "zero2": r"zero_?2",
    "fsdp": r"fsdp2?|fully_?shard(ed)?",
    "overlap": r"overlap(ped)?",
    "uneven_ddp": r"uneven_?ddp",
    "naive": r"naive|model_?parallel(ism)?",
    "gpipe": r"gpipe|afab",
    "one_f_one_b": r"one_f_one_b|1f1b",
    "grid": r"grid|2_?x_?2",
    "tensor": r"tensors?(_?parallel(ism)?)?",
    "library": r"library",
}


@dataclass
class Option:
    """One option: its spellings, whether it takes a value and must be given, and its choices."""

    names: list[str]
    takes_value: bool
    required: bool
    choices: tuple[str, ...]
    help: str

    @property
    def flag(self) -> str:
        """The spelling to use: the longest."""
        return max(self.names, key=len)

    def is_called(self, name: str) -> bool:
        """Whether one of its spellings is the name, however it is written."""
        return any(normalized(one) == normalized(name) for one in self.names)


def normalized(name: str) -> str:
    """A name in small letters, without hyphens and underscores."""
    return re.sub(r"[-_]", "", name).lower()


def parse_help(text: str) -> list[Option]:
    """The options in what argparse prints for --help; none if it is not such a text."""
    text = from_usage(text)
    usage, found = re.match(USAGE, text, re.S), []
    if not usage:
        return []
    optional = set(FLAG.findall(usage[1])) - set(FLAG.findall(without_brackets(usage[1])))
    entries = re.split(r"\n(?=  {0,4}-)", text[usage.end() :])
    for entry in entries[1 : MOST_OPTIONS + 1]:
        head, _, rest = re.sub(r"\n\n.*", "", entry, flags=re.S).strip().partition("  ")
        head, _, more = head.partition("\n")
        names = FLAG.findall(CHOICES.sub("", head))
        if not names or {"-h", "--help"} & set(names):
            continue
        value = re.sub(r"[\s,]+", " ", FLAG.sub("", head)).strip()
        choices = CHOICES.search(head)
        found.append(
            Option(
                names,
                bool(value),
                required=not optional & set(names),
                choices=tuple(choices[1].split(",")) if choices else (),
                help=" ".join(f"{more} {rest}".split()),
            )
        )
    return found


def from_usage(text: str) -> str:
    """A help text from its usage on, without what a script has printed before; "" if it has none.

    Of several lines that begin so the first counts, so that reading takes no longer for many.
    """
    start = re.search(r"^[ \t]*usage:", text, re.M)
    return text[start.start() :] if start else ""


def positional(text: str) -> list[str]:
    """The positional arguments in argparse's usage line."""
    usage = re.match(USAGE, from_usage(text), re.S)
    words = without_brackets(usage[1] if usage else "").split()[1:]
    return [
        word
        for before, word in zip(["", *words], words, strict=False)
        if not word.startswith("-") and not before.startswith("-") and not word.endswith(".py")
    ]


def without_brackets(usage: str) -> str:
    """What is not optional of a usage line."""
    depth, kept = 0, []
    for character in usage:
        depth += (character == "[") - (character == "]")
        kept.append(character if depth == 0 and character != "]" else " ")
    return "".join(kept)


def means(task: str, name: str) -> bool:
    """Whether a choice, a switch, a file or a folder of that name means the task."""
    return (
        re.fullmatch(OF_TASK.get(task, r"(?!)"), name.strip("-").replace("-", "_"), re.I)
        is not None
    )
