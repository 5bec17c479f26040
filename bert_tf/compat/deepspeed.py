"""Converts the settings of a DeepSpeed bing_bert run to flags of run_pretraining.py.

They come from two JSON files, DeepSpeed's and bing_bert's own, and the command line of
``deepspeed_train.py``. Each setting is converted or named in a note: nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.config.ramps import parse_length_ramp
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import PathLike, read_json_object

# Options of deepspeed_train.py and deepspeed.add_config_arguments; those of 2020 at the end.
_SWITCHES = frozenset({
    "deepspeed", "deepspeed_mpi", "deepscale", "deepspeed_transformer_kernel",
    "deepspeed_sparse_attention", "progressive_layer_drop", "rewarmup", "use_nvidia_dataset",
    "stochastic_mode", "attention_dropout_checkpoint", "normalize_invertible", "gelu_checkpoint",
    "do_lower_case", "use_pretrain", "finetune", "fp16", "delay_allreduce", "use_lamb", "no_cuda",
    "wall_clock_breakdown", "optimize_on_cpu",
})  # fmt: skip
_ALIASES = {
    "cf": "config-file", "config_file": "config-file", "max_pred": "max_predictions_per_seq",
    "load_cp": "load_training_checkpoint", "load_cp_id": "load_checkpoint_id",
}  # fmt: skip
_SIZES = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings"),
    *("type_vocab_size", "initializer_range"),
)
# Reason -> settings without a counterpart, by the beginning of their path.
_REASONS = {
    "determined by the records' vocabulary": (
        "bert_model_config.vocab_size_or_config_json_file bert_token_file --do_lower_case"
    ),
    "give TFRecords with --input_file; other records are not read": (
        "data --data_path_prefix --use_nvidia_dataset"
    ),
    "give held-out records with --eval_file and --do_eval": (
        "validation --validation_data_path_prefix"
    ),
    "for another sequence length": "mixed_seq_training",
    "counts shards of data there; the length is given in updates": "training.num_epochs",
    "reading does not need this setting": "training.num_workers training.async_worker",
    "--init_checkpoint gives the initial weights": "bert_model_file",
    "the newest checkpoint of --init_checkpoint is used": "--load_checkpoint_id",
    "the name of --output_dir is enough": "name",
    "--display_loss_steps follows from --print_steps": "steps_per_print",
    "gradients are always divided by the number of ranks before the sum": (
        "prescale_gradients gradient_predivide_factor"
    ),
    "pre-training has full gradients of the word table": "sparse_gradients",
    "benchmarks measure the parts of an update": "wall_clock_breakdown --wall_clock_breakdown",
    "--dry_run shows an estimate": "memory_breakdown",
    "run.json has every setting": "dump_state",
    "there is no sparse attention": "sparse_attention --deepspeed_sparse_attention",
    "there is no layer dropping: all layers are trained": (
        "progressive_layer_drop --progressive_layer_drop"
    ),
    "deepspeed_train.py overrides it in every update": "scheduler",
    "always 1e-6 here": "optimizer.params.eps",
    "every overflow halves the loss scale here": "fp16.hysteresis",
    "gradients and weights are not divided among ranks": (
        "zero_optimization zero_allow_untested_optimizer"
    ),
    "--amp is this toolkit's precision policy, not Apex's": "amp",
    "start ranks with mpirun and --horovod": "--deepspeed --deepscale --deepspeed_mpi --local_rank",
    "--native_ops on CPUs": "--deepspeed_transformer_kernel",
    "a setting of CUDA kernels; --recompute saves memory here": (
        "--stochastic_mode --attention_dropout_checkpoint --normalize_invertible --gelu_checkpoint"
    ),
    "there are no shards that a run could leave early": "--max_steps_per_epoch",
    "--save_checkpoints_steps and --keep_checkpoint_max determine what is kept": "--ckpt_to_save",
    "has no effect there": "--refresh_bucket_size",
    "the DeepSpeed configuration sets it": (
        "--train_batch_size --gradient_accumulation_steps --max_grad_norm --fp16 --loss_scale "
        "--use_lamb --max_lamb --min_lamb"
    ),
    "always on with accumulation": "--delay_allreduce",
}
_WITHOUT = {name: reason for reason, names in _REASONS.items() for name in names.split()}


class Conversion:
    """A run's settings as they become a flag file; each must be taken once.

    Attributes:
      left: leaves of the JSON files by path, and options as ``--name``, that are not converted yet.
      lines: flags, in groups with comments.
      notes: on settings that are not converted.
    """

    def __init__(self) -> None:
        self.left: dict[str, Any] = {}
        self.lines: list[str] = []
        self.notes: list[str] = []

    def add(self, content: Mapping[str, Any], prefix: str = "") -> None:
        """Adds the leaves of a JSON object."""
        for key, value in content.items():
            if isinstance(value, dict) and value:
                self.add(value, f"{prefix}{key}.")
            else:
                self.left[f"{prefix}{key}"] = value

    def take(self, path: str, default: Any = None) -> Any:
        """Returns the value at a path and marks it as converted."""
        return self.left.pop(path, default)

    def number(self, path: str, default: float | None = None) -> Any:
        """Like :meth:`take`; raises UserError if the value is not a number."""
        value = self.take(path, default)
        try:
            if isinstance(value, str):
                value = float(value)
            if value is not None:
                value + 0.0
        except (TypeError, ValueError):
            raise UserError(f"{path}: {short_repr(value)} is not a number; correct it.") from None
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def group(self, comment: str, **flags: Any) -> None:
        """Starts a group of flags."""
        self.lines += ["", f"# {comment}"]
        self.flags(**flags)

    def flags(self, **flags: Any) -> None:
        """Adds flags with their values, except those whose value is None."""
        for name, value in flags.items():
            if value is not None:
                shown = f"{value:.10g}" if isinstance(value, float) else value
                self.lines.append(f"--{name}" if value is True else f"--{name}={shown}")

    def text(self) -> str:
        """The content of the flag file."""
        # A value that contains a line break must not become a flag.
        notes = [f"# Not converted: {' '.join(note.split())}." for note in self.notes]
        return "\n".join([*self.lines[1:], "", *notes]).rstrip() + "\n"


def read_command(words: Sequence[str]) -> dict[str, Any]:
    """Parses the options of deepspeed_train.py to ``--name`` -> value; True for switches.

    Words up to the script's name belong to the launcher; a redirection ends the command. Raises
    UserError for an option without its value and for a word that belongs to no option.
    """
    words = list(words)
    starts = [i for i, word in enumerate(words) if word.endswith("deepspeed_train.py")]
    rest = words[starts[0] + 1 :] if starts else words
    options: dict[str, Any] = {}
    ends = [i for i, word in enumerate(rest) if word in ("&>", ">", ">>", "2>&1", "|", "|&")]
    rest = rest[: ends[0]] if ends else rest
    while rest:
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--"):
            raise UserError(f"{word} belongs to no option of deepspeed_train.py; quote or drop it.")
        name = _ALIASES.get(name, name)
        given = [value] if equals else []
        while rest and not equals and name not in _SWITCHES and not rest[0].startswith("--"):
            given.append(rest.pop(0))
        options[f"--{name}"] = " ".join(given) if given else True
    for name, value in options.items():
        if value is True and name.lstrip("-") not in _SWITCHES and name not in _WITHOUT:
            options[name] = None
    return options


def read_run(
    words: Sequence[str], *, config: PathLike | None, model_config: PathLike | None
) -> Conversion:
    """Reads the settings of a run from its command line and the two JSON files.

    ``words`` are as in :func:`read_command`; DeepSpeed's file, ``config``, and bing_bert's own are
    those named there if they are None. Raises UserError for words that cannot be parsed, an option
    without its value, and a file that is missing or unreadable.
    """
    run, options = Conversion(), read_command(words)
    for flag, path, option in (
        ("config", config, "--deepspeed_config"),
        ("model_config", model_config, "--config-file"),
    ):
        named = options.pop(option, None)
        path = path or named
        if not path:
            raise UserError(f"--{flag} is required; give the JSON file.")
        run.add(read_json_object(path, what=f"--{flag}"))
    missing = [name for name, value in options.items() if value is None]
    if missing:
        raise UserError(f"{missing[0]} after -- needs a value; give it.")
    run.left.update(options)
    return run


def convert(run: Conversion) -> Conversion:
    """Converts a run that was read; raises UserError for settings that cannot be trained here."""
    length = run.number("--max_seq_length", 512)
    _choose_training(run, length)
    run.group(
        "Network: bert_model_config. Layer norms follow the blocks here, but precede them there.",
        **{name: run.take(f"bert_model_config.{name}") for name in _SIZES},
    )
    _convert_run(run, length)
    _convert_batch(run)
    _convert_optimizer(run)
    _convert_schedule(run)
    _convert_curriculum(run, length)
    _convert_precision(run)
    for path, value in run.left.items():
        reasons = (why for known, why in _WITHOUT.items() if f"{path}.".startswith(f"{known}."))
        shown = "(given)" if value is True else value
        run.notes.append(f"{path} = {shown}: {next(reasons, 'unknown')}")
    return run


def _choose_training(run: Conversion, length: int) -> None:
    """Moves the training settings for this length to ``training``."""
    prefix = f"mixed_seq_training.{length}."
    for path in [path for path in run.left if path.startswith(prefix)]:
        run.left[f"training.{path.removeprefix(prefix)}"] = run.left.pop(path)
    if not any(path.startswith("training.") for path in run.left):
        raise UserError(
            f"--model_config has no training settings for --max_seq_length={length}; give the "
            "length or the file that the run used."
        )


def _convert_run(run: Conversion, length: int) -> None:
    predictions = run.number("--max_predictions_per_seq")
    if predictions is None:
        predictions = 80 if length >= 512 else 20
        run.notes.append(
            f"--max_predictions_per_seq was not given (80 there): {predictions}, must match records"
        )
    output, job = run.take("--output_dir"), run.take("--job_name")
    if output:
        job = job or run.left.get("name")
        output = str(Path(output, "saved_models", job)) if job else output
    start, rewarms = run.take("--load_training_checkpoint"), run.take("--rewarmup")
    run.group(
        "Run: the command line. Add --input_file, and --horovod under mpirun.",
        do_train=True,
        max_seq_length=length,
        max_predictions_per_seq=predictions,
        output_dir=output or None,
        seed=run.number("--seed", 42),
        display_loss_steps=run.number("--print_steps", 100),
        init_checkpoint=start,
    )
    if start:
        run.notes.append(
            f"--load_training_checkpoint {start}: the weights of a run of this program there; "
            "DeepSpeed's checkpoints are not read"
        )
    if start and not rewarms:
        run.notes.append("without --rewarmup the schedule continued there; it restarts here")


def _convert_batch(run: Conversion) -> None:
    total = run.number("train_batch_size")
    micro = run.number("train_micro_batch_size_per_gpu")
    accumulation = run.number("gradient_accumulation_steps")
    comment = "two of total, micro batch and accumulation steps"
    if total and micro:
        if total % micro:
            raise UserError(
                f"train_batch_size {total} is not a multiple of train_micro_batch_size_per_gpu "
                f"{micro}; correct the --config."
            )
        comment = f"{total} / {micro} = {total // micro} = ranks x accumulation steps"
        if accumulation:
            ranks = total / micro / accumulation
            comment += f", with {accumulation} accumulation steps on {ranks:g} ranks"
            accumulation = None
    run.group(
        f"Batch: {comment}.",
        global_batch_size=total,
        train_batch_size=micro,
        num_accumulation_steps=accumulation,
    )


def _convert_optimizer(run: Conversion) -> None:
    params, kind = "optimizer.params.", run.take("optimizer.type", "Adam")
    name = {"adam": "adam", "adamw": "adam", "lamb": "lamb"}.get(str(kind).lower())
    if name is None:
        raise UserError(
            f"optimizer.type {kind} is not available here; train with Adam or Lamb instead, in the "
            "--config, and use --fp16_compression to send less."
        )
    run.group("Optimizer: optimizer and gradient_clipping.", optimizer_type=name)
    betas = run.take(f"{params}betas")
    if betas is not None:
        if not (isinstance(betas, list) and [type(beta) for beta in betas] == [float, float]):
            raise UserError(f"{params}betas {betas} are not two numbers such as 0.9 and 0.999.")
        run.flags(adam_beta1=betas[0], adam_beta2=betas[1])
    decay = run.number(f"{params}weight_decay")
    used = run.number("training.weight_decay", 0.01)
    if decay not in (None, used):
        run.notes.append(f"{params}weight_decay = {decay}: the script sets {used} there")
    run.flags(weight_decay=used)
    corrects = run.take(f"{params}bias_correction", True)
    if name == "adam":
        run.flags(adam_bias_correction=True if corrects else None)
    else:
        if not corrects:
            run.notes.append(f"{params}bias_correction = False: LAMB corrects its moments here")
        run.flags(
            min_trust_ratio=run.number(f"{params}min_coeff", 0.01),
            max_trust_ratio=run.number(f"{params}max_coeff", 10),
        )
    clip = run.number(f"{params}max_grad_norm", 0)
    run.flags(clip_norm=run.number("gradient_clipping", clip))


def _convert_schedule(run: Conversion) -> None:
    power = {"LE": 1, "EE": 2}.get(kind := run.take("--lr_schedule", "LE"))
    if power is None:
        raise UserError(
            f"--lr_schedule {kind} is not available here, its rate jumps when the warm-up ends; "
            "give LE or EE."
        )
    own = run.number("optimizer.params.lr")
    rate = run.number("training.learning_rate", own)
    if own not in (None, rate):
        run.notes.append(f"optimizer.params.lr = {own}: training.learning_rate {rate} is used")
    total = run.number("training.total_training_steps")
    fraction = run.number("training.warmup_proportion", 0.002)
    if rate is None or total is None:
        raise UserError(
            "--model_config lacks learning_rate or total_training_steps; give the run's file."
        )
    offset, warmup = run.number("--lr_offset", 0), round(fraction * total)
    decay = {
        "lr_decay_rate": run.number("training.decay_rate"),
        "lr_decay_steps": run.number("training.decay_step"),
    }
    run.group(
        f"Schedule {kind}: warm-up {fraction:g} x {total} = {warmup} updates, peak {rate:g} + "
        f"{offset:g} (--lr_offset).",
        learning_rate=float(rate + offset),
        end_learning_rate=(offset or None) if warmup else None,
        lr_schedule="exponential" if warmup else "constant",
        **({"lr_warmup_power": power, **decay} if warmup else {}),
    )
    most = run.number("--max_steps")
    if most and most < total:
        run.flags(stop_after_steps=most)
    run.flags(num_train_steps=max(total, warmup, 1), num_warmup_steps=warmup)
    run.lines.append("--scale_steps_by_ranks=false")


def _convert_curriculum(run: Conversion, length: int) -> None:
    paths = [path for path in run.left if path.startswith("curriculum_learning.")]
    curriculum = {path.partition(".")[2]: run.take(path) for path in paths}
    if not curriculum.get("enabled"):
        return
    longest = curriculum.get("max_difficulty")
    try:
        if longest != length:
            raise UserError(f"max_difficulty {longest} is not {length}.")
        ramp = _length_ramp(curriculum)
        parse_length_ramp(ramp, flag="length_ramp", max_seq_length=length)
    except UserError as error:
        run.notes.append(f"curriculum_learning: {str(error).rstrip('.')}")
        return
    run.group("Curriculum: sequences are cut to a growing length.", length_ramp=ramp)


def _length_ramp(curriculum: dict[str, Any]) -> str:
    """The value of --length_ramp for a curriculum; UserError for other kinds of curricula."""
    kind = (curriculum.get("curriculum_type", "seqlen"), curriculum.get("schedule_type"))

    def setting(name: str) -> Any:
        return curriculum.get(f"schedule_config.{name}")

    if kind == ("seqlen", "fixed_linear"):
        step, updates = setting("difficulty_step"), setting("total_curriculum_step")
        return f"{curriculum.get('min_difficulty')}+{step}:{updates}"
    lengths, ends = setting("difficulty"), setting("max_step")
    if (
        kind == ("seqlen", "fixed_discrete")
        and isinstance(lengths, list)
        and isinstance(ends, list)
    ):
        return ",".join(f"{length}:{begin}" for length, begin in zip(lengths, [0, *ends]))
    raise UserError(f"curriculum_type {kind[0]} with schedule_type {kind[1]}: no counterpart.")


def _convert_precision(run: Conversion) -> None:
    half, brain = run.take("fp16.enabled"), run.take("bf16.enabled")
    run.group(
        "Precision and memory: fp16, bf16 and zero_optimization.",
        precision="fp16" if half else "bf16" if brain else "fp32",
    )
    power = run.number("fp16.initial_scale_power")
    static = run.number("fp16.loss_scale") or None
    dynamic = {
        "init_loss_scale": None if power is None else 2**power,
        "min_loss_scale": run.number("fp16.min_loss_scale"),
        "loss_scale_window": run.number("fp16.loss_scale_window"),
    }
    # A static scale excludes settings of the dynamic one, which both programs then ignore.
    if half:
        run.flags(**(dynamic if static is None else {"loss_scale": static}))
    stage = run.number("zero_optimization.stage", 0)
    if stage:
        run.flags(shard_optimizer_state=True)
    if stage > 1:
        run.notes.append(
            f"zero_optimization.stage = {stage}: the optimizer's state is divided among ranks, as "
            "in stage 1; gradients and weights are not"
        )
