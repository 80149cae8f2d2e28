"""Task 8: pre-training, whatever the workers and batches; resumed, in 16 bits, and fine-tuned."""

import json
import shutil

from common.models.loss_scaler import LossScaler
from common.models.pretraining import BertForPreTraining
from common.record.pretraining import work_of
from sample_data.make_corpus import corpus
from task8.prepare import main as prepare
from tests.workers import ROOT, Crew

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig

FLAGS = "--dropout 0 --no_cuda --timeout 60 --max_seq_length 48 --seed 3 --overwrite_output_dir"
LAMB = {
    "optimizer": {"type": "Lamb", "params": {"lr": 2e-2, "max_coeff": 0.5}},
    "scheduler": {"type": "polynomial", "params": {"warmup_num_steps": 2}},
    "steps_per_print": 2,
}
FP16 = {"fp16": {"enabled": True, "initial_scale_power": 40, "hysteresis": 1}}
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A small corpus."""
    folder = tmp_path_factory.mktemp("corpus")
    documents = corpus().split("\n\n")[:150]
    (folder / "text.txt").write_text("\n\n".join(documents))
    flags = ["--vocab_size", "300", "--output_dir", str(folder / "corpus")]
    assert prepare(["--corpus", str(folder / "text.txt"), *flags]) == 0
    return folder / "corpus"


@pytest.fixture
def run(text, tmp_path):
    """Run task 8 on some workers; returns its folder and each rank's lines."""
    crews = []

    def run(flags, workers=1, config=None, code=0, script="task8/pretrain.py"):
        crew = Crew(tmp_path / f"run{len(crews)}")
        crews.append(crew)
        flags = f"{FLAGS} --data_dir {text} --output_dir {crew.output} {flags}"
        if config is not None:
            path = crew.folder / "config.json"
            path.write_text(json.dumps(config))
            flags += f" --deepspeed_config {path}"
        for rank in range(workers):
            where = f"--master_ip 127.0.0.1 --master_port {crew.port} --world_size {workers}"
            crew.start_file(ROOT / script, rank, f"{flags} {where} --local_rank {rank}")
        ends = [worker.end() for worker in crew.workers]
        assert set(ends) == {code}, [worker.errors for worker in crew.workers]
        return crew

    yield run
    for crew in crews:
        crew.__exit__()


def lines_of(crew):
    """Each rank's lines."""
    files = sorted(crew.output.glob("steps.rank*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def losses(crew):
    """The loss of every step over all ranks."""
    return torch.tensor(
        [
            sum(rank["loss"] * rank["examples"] for rank in step)
            / sum(rank["examples"] for rank in step)
            for step in zip(*lines_of(crew), strict=True)
        ],
        dtype=torch.float64,
    )


def without_seconds(crew):
    return [[{**line, "seconds": None} for line in rank] for rank in lines_of(crew)]


def test_any_workers_and_micro_batches_have_the_losses_of_one_batch(run):
    """Masked tokens differ in number between rows: a mean of means would be off by 1e-2."""
    alone = run("--max_steps 6 --per_gpu_train_batch_size 16")
    divided = run(
        "--max_steps 6 --per_gpu_train_batch_size 4 --gradient_accumulation_steps 2", workers=2
    )
    assert len(losses(alone)) == 6
    assert (losses(alone) - losses(divided)).abs().max() < 1e-5
    masked = [sum(rank["masked"] for rank in step) for step in zip(*lines_of(divided), strict=True)]
    assert masked == [line["masked"] for line in lines_of(alone)[0]]
    first = lines_of(alone)[0][0]
    assert first["loss"] == pytest.approx(first["mlm_loss"] + first["nsp_loss"], abs=1e-5)
    output = "\n".join(alone.workers[0].output_lines)
    for part in ("minibatch 5: loss", "mlm_acc", "mean time per iteration", "tokens per second"):
        assert part in output
    facts = json.loads((alone.output / "run.json").read_text())
    assert facts["end"]
    assert facts["operations_per_second"] > 0
    assert facts["tokens_per_second"] > 0


def test_lamb_resumes_in_mid_epoch_bit_for_bit(run):
    more = "--per_gpu_train_batch_size 16 --dropout 0.1 --max_steps 7"
    whole = run(f"{more} --save_steps 1 --save_total_limit 99", config=LAMB)
    ratios = lines_of(whole)[0][3]["trust_ratios"]
    assert len(ratios) > 30
    assert max(ratios.values()) <= 1.0  # of biases, which are 0 at first; all others are bounded
    for step in range(4, 8):
        shutil.rmtree(whole.output / f"checkpoint-{step}")
    before = without_seconds(whole), load_file(whole.output / "model.safetensors")
    again = run(f"{more} --resume {whole.output / 'checkpoint-3'}", config=LAMB)
    assert without_seconds(again) == before[0]
    weights = load_file(again.output / "model.safetensors")
    assert all(torch.equal(weights[name], before[1][name]) for name in weights)
    rates = [line["learning_rate"] for line in lines_of(again)[0]]
    assert rates[:3] == pytest.approx([0, 1e-2, 2e-2])
    assert rates[-1] == pytest.approx(2e-2 * (1 / 5) ** 0.5)
    printed = "\n".join(again.workers[0].output_lines)
    assert "step 6: masked tokens" in printed
    assert "step 5: masked tokens" not in printed


@pytest.mark.slow
def test_a_checkpoint_goes_on_with_other_workers_and_micro_batches(run):
    two = "--per_gpu_train_batch_size 4 --gradient_accumulation_steps 2 --max_steps 6"
    whole = run(f"{two} --save_steps 3 --save_total_limit 9", workers=2, config=LAMB)
    expected = losses(whole)
    one = "--per_gpu_train_batch_size 16 --max_steps 6"
    resume = f"--resume {whole.output / 'checkpoint-3'} --other_world_size"
    assert losses(run(f"{one} {resume}", config=LAMB))[-3:] == pytest.approx(
        expected[-3:], abs=1e-5
    )


@pytest.mark.slow
def test_float16_skips_what_overflows_and_stays_near_float32(run):
    """From 2^40 the scale is halved until nothing overflows; the schedule waits meanwhile."""
    more = "--per_gpu_train_batch_size 8 --max_steps 30 --learning_rate 1e-3"
    lines = lines_of(run(more, workers=2, config=FP16))
    skipped = [line["skipped"] for line in lines[0]]
    assert skipped[:4] == [True] * 4
    assert not all(skipped)
    assert skipped == [line["skipped"] for line in lines[1]]
    scales = [line["loss_scale"] for line in lines[0]]
    assert scales == [2.0 ** (40 - sum(skipped[: n + 1])) for n in range(30)]
    plain = lines_of(run(more, workers=2, config={}))[0]
    rates = [line["learning_rate"] for line in lines[0] if not line["skipped"]]
    expected = [line["learning_rate"] for line in plain[: len(rates)]]
    assert rates == pytest.approx(expected)


@pytest.mark.slow
def test_a_scale_that_cannot_fall_further_ends_the_run(run):
    config = {"fp16": {**FP16["fp16"], "min_loss_scale": 2.0**38}}
    crew = run("--per_gpu_train_batch_size 8 --max_steps 30", config=config, code=1)
    assert "min_loss_scale" in "\n".join(crew.workers[0].errors)


@pytest.mark.slow
def test_phase_2_keeps_the_moments_and_begins_its_schedule_again(run):
    one = run("--per_gpu_train_batch_size 16 --max_steps 8")
    two = run(
        f"--phase 2 --max_seq_length 0 --model_name_or_path {one.output} --max_steps 6 "
        "--per_gpu_train_batch_size 8"
    )
    printed = "\n".join(two.workers[0].output_lines)
    assert "keeps the optimizer's moments of" in printed
    assert lines_of(two)[0][0]["learning_rate"] == 0
    assert lines_of(two)[0][0]["mlm_loss"] < lines_of(one)[0][0]["mlm_loss"]
    facts = json.loads((two.output / "run.json").read_text())
    assert facts["arguments"]["max_seq_length"] == 512
    state = torch.load(two.output / "checkpoint-6" / "training.pt")["state"]
    assert {int(each["step"]) for each in state.values()} == {14}


@pytest.mark.slow
def test_task_1_fine_tunes_what_was_pre_trained(run):
    crew = run("--per_gpu_train_batch_size 16 --max_steps 4")
    flags = "--model_type bert --task_name RTE --do_train --do_eval --max_steps 2 "
    flags += f"--per_gpu_train_batch_size 4 --data_dir {crew.data} --output_dir {crew.folder}/tuned"
    worker = crew.start_file(
        ROOT / "task1" / "run_glue.py", 0, f"{flags} --model_name_or_path {crew.output} --no_cuda"
    )
    assert worker.end() == 0, worker.errors
    before = load_file(crew.output / "model.safetensors")
    after = load_file(crew.folder / "tuned" / "model.safetensors")
    name = "bert.embeddings.position_embeddings.weight"  # those beyond the longest row stay
    assert torch.equal(before[name][-1], after[name][-1])


@pytest.mark.parametrize(
    ("flags", "config", "parts"),
    [
        ("", {"train_batch_size": 33}, ["33", "= 32", "1 (workers)"]),
        ("", {"optimizer": {"type": "Lamb", "params": {"beta": 1}}}, ["optimizer.params.beta"]),
        ("", {"zero_optimization": {"stage": 2}}, ["stage 2:", "pretrain_deepspeed.py"]),
        ("--max_seq_length 600", None, ["600", "512 positions"]),
    ],
)
def test_user_errors_take_one_line(run, flags, config, parts):
    more = "--per_gpu_train_batch_size 16 --gradient_accumulation_steps 2"
    crew = run(f"{more} {flags}", config=config, code=2)
    text = "\n".join(crew.workers[0].errors)
    assert "Traceback" not in text
    for part in parts:
        assert part in text


def test_hysteresis_forgives_an_overflow():
    settings = {"fp16.enabled": True, "fp16.loss_scale": 0.0, "fp16.initial_scale_power": 4}
    settings |= {"fp16.loss_scale_window": 2, "fp16.hysteresis": 2, "fp16.min_loss_scale": 1.0}
    scaler = LossScaler("cpu", settings)
    p = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([p], lr=0.0)
    scales, made = [], []
    for factor in (1e30, 1e30, 1.0, 1.0, 1.0, 1e30, 1e30):
        optimizer.zero_grad()
        scaler.scale((p * factor) ** 2).sum().backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        made.append(scaler.update())
        scales.append(scaler.get_scale())
    assert made == [False, False, True, True, True, False, False]
    assert scales == [16, 8, 8, 16, 16, 16, 8]
    assert scaler.skipped == 4


def test_the_operations_are_those_that_torch_counts():
    """Without padding and hooks the count is exact."""
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
    )
    model = BertForPreTraining(config).eval()
    ids = torch.randint(5, 50, (2, 9))
    labels = torch.full_like(ids, -100)
    labels[:, 3:] = ids[:, 3:]
    batch = {"input_ids": ids, "token_type_ids": ids * 0, "attention_mask": ids * 0 + 1}
    batch |= {"labels": labels, "next_sentence_label": torch.tensor([0, 1])}
    model.set_attn_implementation("eager")  # of others the products are not counted
    with FlopCounterMode(display=False) as counted:
        model(**batch)
    tokens, operations = work_of(config, [batch])
    assert tokens == 18
    unread = 4 * (18 - 14) * 16 * 24  # computed there, as nothing is left out
    pooled = 2 * 2 * 16 * 16 * 2 + 2 * 2 * 16 * 2  # of [CLS], twice, and its two classes
    assert operations == 3 * (counted.get_total_flops() - unread - pooled)
