"""Reads from XLA's text of a compiled module in which type each operation computes.

XLA writes the text of every module with ``XLA_FLAGS="--xla_dump_to=DIR --xla_dump_hlo_as_text"``:
before its optimizations, which is what was asked for, and after them, which is what runs. On CPUs
the latter has float32 in place of bfloat16.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

# Operation -> type -> number of operations. A type is XLA's name, such as ``f32`` or ``bf16``.
TypeCounts = dict[str, dict[str, int]]

# Keys of ``operation_types`` next to XLA's names of operations: calls of libraries on GPUs, fusions
# by Triton, and the numbers that a module takes and returns, such as weights.
CUBLAS, CUDNN, TRITON = "cublas", "cudnn", "triton"
INPUTS, OUTPUTS = "module input", "module output"

# What computes products. A fusion by Triton is not among them: the text has its products, too.
PRODUCTS = ("dot", "convolution", CUBLAS, CUDNN)
# The names that XLA gives to logarithms.
LOGARITHMS = ("log", "log-plus-one")

BEFORE, AFTER = "before_optimizations", "after_optimizations"

_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\w+\[\S*) ([a-z][a-z0-9\-]*)\((.*)$"
)
_TYPE = re.compile(r"\b(pred|token|opaque|[a-z]+\d+\w*)\[")
# An operand, which some releases of XLA write with its type.
_OPERAND = re.compile(r"(?:(\w+)\[[\d,<=]*\](?:\{[^}]*\})? )?%?([A-Za-z_][\w.\-]*)")
_COMMENT = re.compile(r"/\*.*?\*/")
_NAME = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_LAYOUT = re.compile(r"entry_computation_layout=\{\((.*?)\)->(.*)$")
_MODULE = re.compile(r"^module_\d+\.(.+?)(?:\.sm_[\d.]+\w?_gpu|\.cpu|\.gpu)?[._]?$")


class _Instruction(NamedTuple):
    operation: str
    type: str
    rest: str  # operands and attributes


def operation_types(text: str, named: str = "") -> TypeCounts:
    """Counts a module's operations by the types in which they compute.

    Args:
      text: an HLO module as XLA writes it, before or after optimizations.
      named: a regular expression; operations whose name in TensorFlow (``op_name``) does not
        contain it are left out, and so are the module's inputs and outputs.

    Returns:
      Type counts by operation: XLA's name (``dot``, ``exponential``), ``CUBLAS``, ``CUDNN``,
      ``TRITON``, ``INPUTS`` and ``OUTPUTS``. The type of ``PRODUCTS`` is that of their first two
      operands, ``bf16 x f32`` if these differ; of others, that of the (first) result.
    """
    counts: dict[str, Counter[str]] = {}
    types: dict[str, str] = {}
    for name, instruction in _instructions(text):
        types[name] = instruction.type
        found = _NAME.search(instruction.rest)
        if not named or re.search(named, found[1] if found else ""):
            operation = _operation(instruction)
            kind = instruction.type
            if operation in PRODUCTS:
                kind = _factors(instruction.rest, types) or kind
            counts.setdefault(operation, Counter())[kind] += 1
    layout = _LAYOUT.search(_COMMENT.sub("", text[: text.find("\n")]))
    for key, part in zip((INPUTS, OUTPUTS), layout.groups() if layout and not named else ()):
        counts[key] = Counter(_TYPE.findall(part))
    return {operation: dict(by_type) for operation, by_type in counts.items()}


def added(counts: Iterable[TypeCounts]) -> TypeCounts:
    """The sums of several modules' counts."""
    sums: dict[str, Counter[str]] = {}
    for of_module in counts:
        for operation, by_type in of_module.items():
            sums.setdefault(operation, Counter()).update(by_type)
    return {operation: dict(by_type) for operation, by_type in sums.items()}


def of_operations(counts: Mapping[str, Mapping[str, int]], names: Iterable[str]) -> dict[str, int]:
    """The counts by type of some operations together, the most frequent type first."""
    together: Counter[str] = Counter()
    for name in names:
        together.update(counts.get(name, {}))
    return dict(together.most_common())


def dumped_types(directory: Path, stage: str, named: str = "") -> dict[str, TypeCounts]:
    """The types in each module that XLA has dumped, by the module's name.

    Args:
      directory: where XLA wrote its text.
      stage: ``BEFORE`` or ``AFTER``.
      named: as in :func:`operation_types`.
    """
    found: dict[str, TypeCounts] = {}
    for path in sorted(directory.glob(f"module_*{stage}.txt")):
        known = _MODULE.match(path.name[: -len(f"{stage}.txt")])
        name = known[1] if known else path.name
        counts = operation_types(path.read_text(encoding="utf-8", errors="replace"), named)
        found[name] = added([found.get(name, {}), counts])  # compiled once per shape
    return found


def _instructions(text: str) -> Iterator[tuple[str, _Instruction]]:
    for line in text.splitlines():
        found = _INSTRUCTION.match(_COMMENT.sub("", line))
        if found:
            name, result, operation, rest = found.groups()
            kind = _TYPE.search(result)
            yield name, _Instruction(operation, kind[1] if kind else "", rest)


def _operation(instruction: _Instruction) -> str:
    """The key under which an instruction is counted."""
    if instruction.operation == "custom-call":
        found = _TARGET.search(instruction.rest)
        target = found[1] if found else ""
        return next((name for name in (CUBLAS, CUDNN) if name in target), "custom-call")
    if instruction.operation == "fusion" and "__triton" in instruction.rest:
        return TRITON
    return instruction.operation


def _factors(rest: str, types: Mapping[str, str]) -> str:
    """The types of the first two operands; empty if the text does not have them."""
    operands = _OPERAND.findall(rest.partition(")")[0])[:2]
    kinds = [kind or types.get(name, "") for kind, name in operands]
    return " x ".join(dict.fromkeys(kind for kind in kinds if kind))
