"""Converts the settings of a DeepSpeed bing_bert run to flags of run_pretraining.py.

They come from two JSON files, DeepSpeed's and bing_bert's own, and the command line of
``deepspeed_train.py``. Each setting is converted or named in a note: nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Sequence
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
_KERNEL = "a setting of CUDA kernels; --recompute saves memory here"
_SET_BY_FILE = "the DeepSpeed configuration sets it"
# Known settings without a counterpart, by the beginning of their path -> reason.
_WITHOUT = {
    "bert_model_config.vocab_size_or_config_json_file": "determined by the records' vocabulary",
    "data": "records are given by --input_file",
    "validation": "held-out records are given by --eval_file, with --do_eval",
    "mixed_seq_training": "for another sequence length",
    "training.num_epochs": "counts shards of data there; the length is given in updates",
    "training.num_workers": "reading does not need this setting",
    "training.async_worker": "reading does not need this setting",
    "bert_token_file": "determined by the records' vocabulary",
    "bert_model_file": "--init_checkpoint gives the initial weights",
    "name": "the name of --output_dir is enough",
    "steps_per_print": "--display_loss_steps follows from --print_steps",
    "prescale_gradients": "gradients are always divided by the number of ranks before the sum",
    "gradient_predivide_factor": "gradients are divided by the number of ranks before the sum",
    "sparse_gradients": "pre-training has full gradients of the word table",
    "wall_clock_breakdown": "benchmarks measure the parts of an update",
    "memory_breakdown": "--dry_run shows an estimate",
    "dump_state": "run.json has every setting",
    "sparse_attention": "there is no sparse attention",
    "progressive_layer_drop": "there is no layer dropping: all layers are trained",
    "--progressive_layer_drop": "there is no layer dropping: all layers are trained",
    "--deepspeed_sparse_attention": "there is no sparse attention",
    "scheduler": "deepspeed_train.py overrides it in every update",
    "optimizer.params.eps": "always 1e-6 here",
    "fp16.hysteresis": "every overflow halves the loss scale here",
    "zero_optimization": "gradients and weights are not divided among ranks",
    "amp": "--amp is this toolkit's precision policy, not Apex's",
    "zero_allow_untested_optimizer": "gradients and weights are not divided among ranks",
    "--deepspeed": "a switch of the launcher",
    "--deepspeed_mpi": "start ranks with mpirun and --horovod",
    "--deepscale": "a switch of the launcher",
    "--local_rank": "start ranks with mpirun and --horovod",
    "--deepspeed_transformer_kernel": "--native_ops on CPUs",
    "--stochastic_mode": _KERNEL,
    "--attention_dropout_checkpoint": _KERNEL,
    "--normalize_invertible": _KERNEL,
    "--gelu_checkpoint": _KERNEL,
    "--data_path_prefix": "give records with --input_file; those of DeepSpeed are not read",
    "--validation_data_path_prefix": "give held-out records with --eval_file",
    "--use_nvidia_dataset": "give TFRecords with --input_file; HDF5 files are not read",
    "--do_lower_case": "determined by the vocabulary",
    "--max_steps_per_epoch": "there are no shards that a run could leave early",
    "--ckpt_to_save": "--save_checkpoints_steps and --keep_checkpoint_max determine what is kept",
    "--load_checkpoint_id": "the newest checkpoint of --init_checkpoint is used",
    "--refresh_bucket_size": "has no effect there",
    "--train_batch_size": _SET_BY_FILE,
    "--gradient_accumulation_steps": _SET_BY_FILE,
    "--max_grad_norm": _SET_BY_FILE,
    "--fp16": _SET_BY_FILE,
    "--loss_scale": _SET_BY_FILE,
    "--use_lamb": _SET_BY_FILE,
    "--max_lamb": _SET_BY_FILE,
    "--min_lamb": _SET_BY_FILE,
    "--wall_clock_breakdown": "benchmarks measure the parts of an update",
    "--delay_allreduce": "always on with accumulation",
}


class Settings:
    """Leaves of the JSON files by path, and options as ``--name``; each must be taken once."""

    def __init__(self) -> None:
        self.left: dict[str, Any] = {}

    def add(self, content: dict[str, Any], prefix: str = "") -> None:
        """Adds the leaves of an object."""
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
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return value


class FlagFile:
    """Flags in groups with comments, and notes on settings that were not converted."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.notes: list[str] = []

    def group(self, comment: str) -> None:
        """Starts a group."""
        self.lines += ["", f"# {comment}"]

    def add(self, name: str, value: Any) -> None:
        """Adds a flag, unless its value is None."""
        if value is not None:
            shown = f"{value:.10g}" if isinstance(value, float) else value
            self.lines.append(f"--{name}" if value is True else f"--{name}={shown}")

    def text(self) -> str:
        """The content of the file."""
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
) -> Settings:
    """Reads the settings of a run from its command line and the two JSON files.

    ``words`` are as in :func:`read_command`; DeepSpeed's file, ``config``, and bing_bert's own are
    those named there if they are None. Raises UserError for words that cannot be parsed, an option
    without its value, and a file that is missing or unreadable.
    """
    settings, options = Settings(), read_command(words)
    for flag, path, option in (
        ("config", config, "--deepspeed_config"),
        ("model_config", model_config, "--config-file"),
    ):
        named = options.pop(option, None)
        path = path or named
        if not path:
            raise UserError(f"--{flag} is required; give the JSON file.")
        settings.add(read_json_object(path, what=f"--{flag}"))
    missing = [name for name, value in options.items() if value is None]
    if missing:
        raise UserError(f"{missing[0]} after -- needs a value; give it.")
    settings.left.update(options)
    return settings


def convert(settings: Settings) -> FlagFile:
    """Converts a run to a flag file; raises UserError for settings that cannot be trained here."""
    file = FlagFile()
    length = settings.number("--max_seq_length", 512)
    _training_of(settings, length)
    _convert_network(settings, file)
    _convert_run(settings, file, length)
    _convert_batch(settings, file)
    _convert_optimizer(settings, file)
    _convert_schedule(settings, file)
    _convert_curriculum(settings, file, length)
    _convert_precision(settings, file)
    for path, value in settings.left.items():
        found = [why for known, why in _WITHOUT.items() if f"{path}.".startswith(f"{known}.")]
        why = found[0] if found else "unknown"
        file.notes.append(f"{path} = {'(given)' if value is True else value}: {why}")
    return file


def _training_of(settings: Settings, length: int) -> None:
    """Moves the training settings for this length to ``training``."""
    prefix = f"mixed_seq_training.{length}."
    for path in [path for path in settings.left if path.startswith(prefix)]:
        settings.left[f"training.{path.removeprefix(prefix)}"] = settings.left.pop(path)
    if not any(path.startswith("training.") for path in settings.left):
        raise UserError(
            f"--model_config has no training settings for --max_seq_length={length}; give the "
            "length or the file that the run used."
        )


def _convert_network(settings: Settings, file: FlagFile) -> None:
    file.group(
        "Network: bert_model_config. Layer norms follow the blocks here, but precede them there."
    )
    for name in _SIZES:
        file.add(name, settings.take(f"bert_model_config.{name}"))


def _convert_run(settings: Settings, file: FlagFile, length: int) -> None:
    file.group("Run: the command line. Add --input_file, and --horovod under mpirun.")
    file.add("do_train", True)
    file.add("max_seq_length", length)
    predictions = settings.number("--max_predictions_per_seq")
    if predictions is None:
        predictions = 80 if length >= 512 else 20
        file.notes.append(
            f"--max_predictions_per_seq was not given (80 there): {predictions}, must match records"
        )
    file.add("max_predictions_per_seq", predictions)
    output, job = settings.take("--output_dir"), settings.take("--job_name")
    if output:
        job = job or settings.left.get("name")
        file.add("output_dir", str(Path(output, "saved_models", job)) if job else output)
    file.add("seed", settings.number("--seed", 42))
    file.add("display_loss_steps", settings.number("--print_steps", 100))
    start = settings.take("--load_training_checkpoint")
    file.add("init_checkpoint", start)
    rewarms = settings.take("--rewarmup")
    if start:
        file.notes.append(
            f"--load_training_checkpoint {start}: the weights of a run of this program there; "
            "DeepSpeed's checkpoints are not read"
        )
        if not rewarms:
            file.notes.append("without --rewarmup the schedule continued there; it restarts here")


def _convert_batch(settings: Settings, file: FlagFile) -> None:
    total = settings.number("train_batch_size")
    micro = settings.number("train_micro_batch_size_per_gpu")
    accumulation = settings.number("gradient_accumulation_steps")
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
    else:
        comment = "two of total, micro batch and accumulation steps"
    file.group(f"Batch: {comment}.")
    file.add("global_batch_size", total)
    file.add("train_batch_size", micro)
    file.add("num_accumulation_steps", accumulation)


def _convert_optimizer(settings: Settings, file: FlagFile) -> None:
    kind = settings.take("optimizer.type", "Adam")
    name = {"adam": "adam", "adamw": "adam", "lamb": "lamb"}.get(str(kind).lower())
    if name is None:
        raise UserError(
            f"optimizer.type {kind} is not available here; train with Adam or Lamb instead, in the "
            "--config, and use --fp16_compression to send less."
        )
    file.group("Optimizer: optimizer and gradient_clipping.")
    file.add("optimizer_type", name)
    params = "optimizer.params."
    betas = settings.take(f"{params}betas")
    if betas is not None:
        if not (isinstance(betas, list) and [type(beta) for beta in betas] == [float, float]):
            raise UserError(f"{params}betas {betas} are not two numbers such as 0.9 and 0.999.")
        file.add("adam_beta1", betas[0])
        file.add("adam_beta2", betas[1])
    decay = settings.number(f"{params}weight_decay")
    used = settings.number("training.weight_decay", 0.01)
    if decay not in (None, used):
        file.notes.append(f"{params}weight_decay = {decay}: the script sets {used} there")
    file.add("weight_decay", used)
    corrects = settings.take(f"{params}bias_correction", True)
    if name == "adam":
        file.add("adam_bias_correction", True if corrects else None)
    else:
        if not corrects:
            file.notes.append(f"{params}bias_correction = False: LAMB corrects its moments here")
        file.add("min_trust_ratio", settings.number(f"{params}min_coeff", 0.01))
        file.add("max_trust_ratio", settings.number(f"{params}max_coeff", 10))
    clip = settings.number(f"{params}max_grad_norm", 0)
    file.add("clip_norm", settings.number("gradient_clipping", clip))


def _convert_schedule(settings: Settings, file: FlagFile) -> None:
    power = {"LE": 1, "EE": 2}.get(kind := settings.take("--lr_schedule", "LE"))
    if power is None:
        raise UserError(
            f"--lr_schedule {kind} is not available here, its rate jumps when the warm-up ends; "
            "give LE or EE."
        )
    own = settings.number("optimizer.params.lr")
    rate = settings.number("training.learning_rate", own)
    if own not in (None, rate):
        file.notes.append(f"optimizer.params.lr = {own}: training.learning_rate {rate} is used")
    total = settings.number("training.total_training_steps")
    share = settings.number("training.warmup_proportion", 0.002)
    if rate is None or total is None:
        raise UserError(
            "--model_config lacks learning_rate or total_training_steps; give the run's file."
        )
    offset, warmup = settings.number("--lr_offset", 0), round(share * total)
    file.group(
        f"Schedule {kind}: warm-up {share:g} x {total} = {warmup} updates, peak {rate:g} + "
        f"{offset:g} (--lr_offset)."
    )
    file.add("learning_rate", float(rate + offset))
    decay = {
        "lr_decay_rate": settings.number("training.decay_rate"),
        "lr_decay_steps": settings.number("training.decay_step"),
    }
    if warmup:
        file.add("end_learning_rate", offset or None)
    file.add("lr_schedule", "exponential" if warmup else "constant")
    if warmup:
        file.add("lr_warmup_power", power)
        for name, value in decay.items():
            file.add(name, value)
    _add_length(settings, file, total, warmup)


def _add_length(settings: Settings, file: FlagFile, total: int, warmup: int) -> None:
    most = settings.number("--max_steps")
    if most and most < total:
        file.add("stop_after_steps", most)
        most = None
    if most and most < warmup:
        file.notes.append(f"--max_steps = {most}: the warm-up alone has {warmup} updates")
    file.add("num_train_steps", max(min(most or total, total), warmup, 1))
    file.add("num_warmup_steps", warmup)
    file.lines.append("--scale_steps_by_ranks=false")


def _convert_curriculum(settings: Settings, file: FlagFile, length: int) -> None:
    paths = [path for path in settings.left if path.startswith("curriculum_learning.")]
    found = {path.partition(".")[2]: settings.take(path) for path in paths}
    if not found.get("enabled"):
        return
    try:
        if found.get("max_difficulty") != length:
            raise UserError(f"max_difficulty {found.get('max_difficulty')} is not {length}.")
        ramp = _length_ramp(found)
        parse_length_ramp(ramp, flag="length_ramp", max_seq_length=length)
    except UserError as error:
        file.notes.append(f"curriculum_learning: {str(error).rstrip('.')}")
        return
    file.group("Curriculum: sequences are cut to a growing length.")
    file.add("length_ramp", ramp)


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


def _convert_precision(settings: Settings, file: FlagFile) -> None:
    half, brain = settings.take("fp16.enabled"), settings.take("bf16.enabled")
    file.group("Precision and memory: fp16, bf16 and zero_optimization.")
    file.add("precision", "fp16" if half else "bf16" if brain else "fp32")
    power = settings.number("fp16.initial_scale_power")
    static = settings.number("fp16.loss_scale") or None
    dynamic = {
        "init_loss_scale": None if power is None else 2**power,
        "min_loss_scale": settings.number("fp16.min_loss_scale"),
        "loss_scale_window": settings.number("fp16.loss_scale_window"),
    }
    # A static scale excludes settings of the dynamic one, which both programs then ignore.
    scales = dynamic if static is None else {"loss_scale": static}
    for name, value in scales.items() if half else ():
        file.add(name, value)
    stage = settings.number("zero_optimization.stage", 0)
    if stage:
        file.add("shard_optimizer_state", True)
    if stage > 1:
        file.notes.append(
            f"zero_optimization.stage = {stage}: the optimizer's state is divided among ranks, as "
            "in stage 1; gradients and weights are not"
        )
