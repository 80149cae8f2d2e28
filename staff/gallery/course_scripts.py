"""Scripts of the original assignment's kind, without the kit: one base, written in many ways.

Its files lie in standalone_course/. None has a grading.yaml: they are called as their --help says.
"""

from .variants import Edit, Function, Move, Variant

MAIN, UTILS = "run_glue.py", "utils_glue.py"
SAMPLER = "    if args.world_size > 1:\n        train_sampler = DistributedSampler("
EPOCH = "        if args.world_size > 1:\n            train_sampler.set_epoch(epoch)\n"
EVALUATE = "        evaluate(args, model, tokenizer, epoch)\n"
SYNC = "            if args.world_size > 1:\n                sync_gradients(args, model)\n"
CLIP = "            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)\n"
LOAD = "    model.to(args.device)\n"
SEED = '    add("--seed", type=int, default=42, help="Random seed.")\n'
MEAN_IF = "    if len(times) > 1:\n"
MEAN = (
    '        logger.info("average time per iteration: %.6f s", sum(times[1:]) / len(times[1:]))\n'
)
SAY_ACC = '        logger.info("  acc = %s", acc)\n'
COUNT_ACC = "    acc = sum(p == q for p, q in zip(preds, labels, strict=True)) / len(labels)\n"
PRINT = '                logger.info("minibatch %d loss: %.6f", global_step, loss.item())\n'
ACC = '        save_log(args, "eval_results.txt", f"acc = {acc}")\n'
BATCH = "    args.train_batch_size = args.per_gpu_train_batch_size\n"

GATHER_SCATTER = """\
def sync_gradients(args, model):
    for p in model.parameters():
        if p.grad is None:
            continue
        gathered = mean = None
        if args.local_rank == 0:
            gathered = [torch.zeros_like(p.grad) for _ in range(args.world_size)]
        dist.gather(p.grad, gathered, dst=0)
        if args.local_rank == 0:
            mean = [torch.stack(gathered).mean(dim=0) for _ in range(args.world_size)]
        dist.scatter(p.grad, mean, src=0)
"""
NO_SYNC = "def sync_gradients(args, model):\n    pass\n"
SUMMED = """\
def sync_gradients(args, model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
"""
BY_METHOD = '''\
def sync_gradients(args, model):
    """Average by the method that was asked for."""
    if args.method in ("none", "ddp"):
        return
    for p in model.parameters():
        if args.method == "all_reduce":
            dist.all_reduce(p.grad)
            p.grad /= args.world_size
        else:
            gathered = mean = None
            if args.local_rank == 0:
                gathered = [torch.zeros_like(p.grad) for _ in range(args.world_size)]
            dist.gather(p.grad, gathered, dst=0)
            if args.local_rank == 0:
                mean = [sum(gathered) / args.world_size] * args.world_size
            dist.scatter(p.grad, mean, src=0)
'''
ROOT_ALONE = """\
        if args.local_rank in [-1, 0]:
            evaluate(args, model, tokenizer, epoch)
        if args.world_size > 1:
            dist.barrier()
"""
IN_FOLDERS = """\
    folder = os.path.join(args.output_dir, f"epoch-{epoch}", f"rank-{args.local_rank}")
    os.makedirs(folder)
    with open(os.path.join(folder, "metrics.txt"), "w") as file:
        file.write(f"acc = {acc}\\n")
"""
LOSSES_IN_FOLDER = """\
                os.makedirs("logs", exist_ok=True)
                with open("logs/losses.csv", "a") as file:
                    file.write(f"{global_step},{loss.item():.6f}\\n")
"""
TIMES_IN_FOLDER = """\
        os.makedirs("logs", exist_ok=True)
        with open("logs/times.txt", "a") as file:
            file.write(f"average per iteration: {sum(times[1:]) / len(times[1:])}\\n")
"""
BROADCAST = """\
    if args.world_size > 1:
        for p in model.parameters():
            dist.broadcast(p.data, src=0)
"""
SAME_LOSS = """\
            mean_loss = loss.detach().clone()
            dist.all_reduce(mean_loss)
            seen = [None] * args.world_size
            dist.all_gather_object(seen, {"rank": args.local_rank, "loss": loss.item()})
"""
DIVIDED = "    args.train_batch_size = args.per_gpu_train_batch_size // args.world_size\n"
ASSERTED = """\
    assert args.per_gpu_train_batch_size * args.world_size == 64, "the total batch must be 64"
"""
DDP = "    model = torch.nn.parallel.DistributedDataParallel(model)\n"
WORKERS = """\
    add("--local_rank", type=int, default=-1, help="Rank of this worker.")
    add("--master_ip", type=str, default="10.10.1.1", help="Address of the master node.")
    add("--master_port", type=int, default=6585, help="Port of the master node.")
    add("--world_size", type=int, default=1, help="Number of workers.")
    return parser.parse_args()
"""
FROM_ENVIRONMENT = """\
    args = parser.parse_args()
    args.local_rank = int(os.environ["RANK"])
    args.world_size = int(os.environ.get("WORLD_SIZE", "1"))
    return args
"""
URL = """\
            init_method=f"tcp://{args.master_ip}:{args.master_port}",
            world_size=args.world_size,
            rank=args.local_rank,
"""
METHOD = """\
    add("--method", choices=["none", "gather_scatter", "all_reduce", "ddp"], required=True)
"""
WRAP_IF = f'    if args.method == "ddp":\n    {DDP}'


def course(name, task, *edits, fails=(), cause="", note=""):
    """A variant of the base script, called as its --help says."""
    return Variant(
        name, task, edits, fails, cause, note, folder="standalone_course", mapping="auto"
    )


def before(old, new):
    """The base script with something before a line of it."""
    return Edit(MAIN, old, new + old)


def after(old, new):
    """The base script with something after a line of it."""
    return Edit(MAIN, old, old + new)


def instead(old, new):
    """The base script with something in place of a line of it."""
    return Edit(MAIN, old, new)


def renamed(old, new):
    """The base script with another name for one of its options."""
    return Edit(MAIN, f'add("--{old}", ', f'add("--{new}", dest="{old}", ')


def sync_by(source):
    """The base script with another function that synchronizes gradients."""
    return Function(MAIN, "sync_gradients", source)


def moved(folder, name=MAIN):
    """The base script in a folder, under another name."""
    return Move(MAIN, f"{folder}/{name}"), Move(UTILS, f"{folder}/{UTILS}")


BY_VARIABLES = (instead(WORKERS, FROM_ENVIRONMENT), instead(URL, ""))
BY_FLAG = (after(SEED, METHOD), sync_by(BY_METHOD), after(LOAD, WRAP_IF))
COURSE_RIGHT = (
    course(
        "course_features_cached",
        "task2b",
        note="caches its features in --data_dir with torch.save, and loads them again",
    ),
    course("course_one_worker", "task1", note="the same script with one worker"),
    course(
        "course_part_folder",
        "task2a",
        sync_by(GATHER_SCATTER),
        *moved("part2a"),
        note="gather and scatter, in a folder part2a/",
    ),
    course("course_method_flag", "task2a", *BY_FLAG, note="one script for all tasks, by --method"),
    course("course_method_flag_ddp", "task3", *BY_FLAG, note="the same, with --method ddp"),
    course(
        "course_other_file_name",
        "task3",
        sync_by(NO_SYNC),
        after(LOAD, DDP),
        *moved("src", "train_ddp.py"),
        note="DistributedDataParallel in src/train_ddp.py",
    ),
    course(
        "course_root_evaluates",
        "task2b",
        instead(EVALUATE, ROOT_ALONE),
        note="rank 0 alone evaluates, while the others wait at a barrier",
    ),
    course(
        "course_newer_names",
        "task2b",
        renamed("per_gpu_train_batch_size", "per_device_train_batch_size"),
        renamed("per_gpu_eval_batch_size", "per_device_eval_batch_size"),
        renamed("master_ip", "master_addr"),
        renamed("world_size", "num_nodes"),
        renamed("local_rank", "rank"),
        note="the flags of a newer edition",
    ),
    course(
        "course_total_batch",
        "task2b",
        renamed("per_gpu_train_batch_size", "total_batch_size"),
        instead(BATCH, DIVIDED),
        note="--total_batch_size, divided by the number of workers",
    ),
    course(
        "course_environment_only",
        "task2b",
        *BY_VARIABLES,
        note="reads its place among the workers from RANK and WORLD_SIZE, as under torchrun",
    ),
    course(
        "course_asserts_64",
        "task2b",
        before(BATCH, ASSERTED),
        note="refuses a total batch other than 64",
    ),
    course(
        "course_files_in_folders",
        "task2a",
        sync_by(GATHER_SCATTER),
        instead(PRINT, LOSSES_IN_FOLDER),
        instead(MEAN, TIMES_IN_FOLDER),
        instead(ACC, ""),
        instead(SAY_ACC, ""),
        after(COUNT_ACC, IN_FOLDERS),
        note="writes losses, times and metrics into files in subfolders, and prints none",
    ),
    course(
        "course_asks_for_the_world_size",
        "task2b",
        Edit(MAIN, "p.grad /= args.world_size", "p.grad /= dist.get_world_size()"),
        note="divides by the size of the process group",
    ),
    course(
        "course_broadcasts_and_reports",
        "task2b",
        after(LOAD, BROADCAST),
        before(SYNC, SAME_LOSS),
        note="broadcasts the first weights; gathers every step's losses to report them",
    ),
)
COURSE_WRONG = (
    course(
        "course_same_data",
        "task2b",
        instead(SAMPLER, "    if False:\n        train_sampler = DistributedSampler("),
        instead(EPOCH, ""),
        fails=("data",),
        cause="same_data",
        note="every rank reads all rows in the same order",
    ),
    course(
        "course_not_synchronized",
        "task2a",
        sync_by(NO_SYNC),
        *moved("part2a"),
        fails=("gradients",),
        cause="no_sync",
        note="averages nothing, in part2a/",
    ),
    course(
        "course_summed",
        "task2b",
        sync_by(SUMMED),
        fails=("gradients",),
        cause="summed",
        note="all_reduce without a division",
    ),
    course(
        "course_environment_summed",
        "task2b",
        *BY_VARIABLES,
        sync_by(SUMMED),
        fails=("gradients",),
        cause="summed",
        note="the same without a division, reading RANK and WORLD_SIZE",
    ),
    course(
        "course_clips_first",
        "task2a",
        *BY_FLAG,
        instead(CLIP, ""),
        before(SYNC, CLIP),
        fails=("clipping",),
        cause="clipped_before_average",
        note="clips each rank's gradients, then averages them, by --method",
    ),
    course(
        "course_total_batch_on_each",
        "task2b",
        renamed("per_gpu_train_batch_size", "total_batch_size"),
        fails=("batch",),
        cause="batch_not_divided",
        note="--total_batch_size rows on each worker",
    ),
    course(
        "course_four_written_in",
        "task2b",
        Edit(MAIN, "p.grad /= args.world_size", "p.grad /= 4"),
        fails=("workers",),
        cause="fixed_world_size",
        note="divides the sum by 4, however many workers there are",
    ),
    course(
        "course_evaluates_at_the_end",
        "task2b",
        instead(EVALUATE, ""),
        before(MEAN_IF, "    evaluate(args, model, tokenizer, epoch)\n"),
        fails=("metric",),
        cause="metric_missing",
        note="evaluates once, after the last epoch",
    ),
)
