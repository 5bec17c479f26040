"""Every command of the README and of the pages in docs/ runs, in the order in which they stand.

Training runs are shortened by flags put after theirs. ``make test EXHAUSTIVE=1`` runs this test.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.programs import ROOT, environment, requires_horovod

PAGES = ["README.md", "docs/start/tutorial.md", *(f"docs/{name}.md" for name in
         ("howto/data", "howto/inspect_data", "reference/records", "howto/convert_records",
          "howto/pretraining", "howto/learning_rate", "why/batches_and_ranks",
          "howto/many_machines", "howto/precision", "howto/when_training_fails", "howto/xla",
          "howto/checkpoints", "howto/question_answering", "howto/classification",
          "howto/fine_tuning", "howto/tagging", "howto/multiple_choice", "howto/vectors",
          "howto/evaluation", "howto/domain_adaptation",
          "howto/distillation", "howto/replaced_token_detection", "howto/serving"))]  # fmt: skip
# Pages whose commands are not run here, and why.
NOT_RUN = {
    "docs/index.md": "it has none",
    "docs/howto/coming_from_other_scripts.md": "they are other people's; unit/config parses them",
    "docs/howto/data_on_many_machines.md": "they want a cluster; tests/hosts has one",
    "docs/howto/doctor.md": "they are plans; tests/unit/doctor looks at some",
    "docs/howto/environments.md": "they build environments",
    "docs/howto/index.md": "it has none",
    "docs/howto/large_batches.md": "it has none",
    "docs/howto/memory.md": "they want a machine's whole memory",
    "docs/howto/phases.md": "they want files of flags; test_kills.py runs a plan",
    "docs/howto/planning_a_corpus.md": "they take hours",
    "docs/howto/rank_failures.md": "they want a cluster; tests/parallel has ranks that fail",
    "docs/howto/shard_optimizer_state.md": "they want a cluster",
    "docs/howto/simulated_hosts.md": "they want root; tests/hosts runs such commands",
    "docs/howto/sources.md": "they want a network, and collections that are not here",
    "docs/howto/tests.md": "they are the tests",
    "docs/howto/your_own_task.md": "they want a file; test_your_own_task.py runs its program",
    "docs/reference/commands.md": "it has none; tests/unit/tools/test_flag_reference.py reads it",
    "docs/reference/index.md": "it has none",
    "docs/reference/optimizers.md": "it has none",
    "docs/reference/output_files.md": "it has none",
    "docs/reference/python.md": "it has none",
    "docs/reference/recipes.md": "they take days; test_recipe_ledgers.py has their arithmetic",
    "docs/why/architecture.md": "it has none",
    "docs/why/determinism.md": "it has none",
    "docs/why/index.md": "it has none",
    "docs/why/native_operations.md": "it has none",
    **{
        f"docs/measurements/{path.name}": "they take hours, or files that are not here"
        for path in (ROOT / "docs/measurements").glob("*.md")
    },
}
SHORT = {
    "--num_train_steps": "4",
    "--num_train_epochs": "0.01",
    "--num_warmup_steps": "2",
    "--save_checkpoints_steps": "2",
    "--eval_every_steps": "2",
    "--train_batch_size": "4",
    "--global_batch_size": "8",
    "--batch_ramp": "4:0,8:1",
    "--length_ramp": "64+8:3",
    "--eval_batch_size": "64",
    "--max_eval_steps": "2",
}
OF_SOME = ("--num_train_epochs", "--batch_ramp", "--length_ramp")
IN_MAKE = {"make demo"}


def commands_of(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL):
        yield from (line for line in block.splitlines() if line and not line.startswith("#"))


COMMANDS = [(page, command) for page in PAGES for command in commands_of(page)]


def shortened(command):
    """Adds the short values of the flags that every training run or this one has."""
    pretrains = ("run_pretraining.py", "run_distillation.py", "run_electra.py")
    if not any(script in command for script in pretrains) or "--do_eval" in command.split()[-1:]:
        return command
    always = ["--num_train_steps", "--num_warmup_steps", "--save_checkpoints_steps"]
    if "--num_train_epochs" in command:
        always = ["--num_train_epochs", "--save_checkpoints_steps"]
    elif "--flagfile" in command:
        always = [flag for flag in SHORT if flag not in OF_SOME]
    given = [flag for flag in SHORT if f"{flag}=" in command or flag in always]
    return " ".join([command, *(f"{flag}={SHORT[flag]}" for flag in given)])


@pytest.fixture(scope="module")
def directory(tmp_path_factory, text_file):
    """A directory that looks like a clone, with a text of the user's."""
    path = tmp_path_factory.mktemp("clone")
    scripts = ("run_classifier.py", "run_distillation.py", "run_electra.py", "run_evaluation.py",
               "run_features.py", "run_multiple_choice.py", "run_ner.py", "run_pretraining.py",
               "run_squad.py")  # fmt: skip
    rooms = ("benchmarks", "bert_tf", "data_prep", "recipes", "tools")
    for name in ("README.md", *rooms, *scripts):
        (path / name).symlink_to(ROOT / name)
    (path / "my_text.txt").write_text(text_file.read_text(encoding="utf-8"), encoding="utf-8")
    pages = [page.read_text(encoding="utf-8") for page in sorted(ROOT.glob("docs/howto/*.md"))]
    (path / "general.txt").write_text("\n\n".join(pages), encoding="utf-8")
    return path


def test_there_are_commands_on_every_page():
    assert {page for page, _ in COMMANDS} == set(PAGES)


def test_no_page_is_forgotten():
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    written = {page for page in there if "/generated/" not in page}
    assert written | {"README.md"} == {*PAGES, *NOT_RUN}


def test_links_lead_somewhere():
    for page in [*PAGES, *NOT_RUN]:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            # The site's builder checks links to pages that it generates.
            if "generated/" not in target:
                assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"


def sections_of(page):
    """The heading and the text of each section, with the sections around it."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    around = []
    for section in re.split(r"^(?=#+ )", text, flags=re.MULTILINE)[1:]:
        depth = len(section) - len(section.lstrip("#"))
        around = [*(outer for outer in around if outer[0] < depth), (depth, section)]
        yield section.partition("\n")[0], section, "".join(text for _, text in around)


def test_measured_tables_say_what_was_measured():
    for page in sorted((ROOT / "docs/measurements").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert page.stem == "index" or re.search(r"\bpython |run_\w+\.py|[Nn]o benchmark", text), (
            page
        )
        for heading, section, with_outer in sections_of(page):
            if len(re.findall(r"^\|.*\| *\**\d", section, flags=re.MULTILINE)) > 1:
                commit = re.search(r"\bcommits?\s+[0-9a-f]{7}\b", with_outer, flags=re.IGNORECASE)
                assert commit, f"{page.name}: {heading}"


@pytest.mark.exhaustive
@pytest.mark.timeout(2700)
def test_the_three_commands_and_the_pages(directory):
    """One test, since later commands use what earlier ones made."""
    for page, command in COMMANDS:
        if command in IN_MAKE:
            continue
        if command.startswith("mpirun") and requires_horovod.args[0]:
            continue
        done = subprocess.run(
            shortened(command),
            shell=True,
            cwd=directory,
            env={**environment(), "PYTHONPATH": str(directory)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{page}: {command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.skipif(
    not Path(sys.prefix, ".done-environment.json").is_file()
    or Path(sys.prefix).resolve().parent != ROOT,  # make demo would set up another checkout's again
    reason="this environment was not built by make setup in this checkout",
)
def test_make_demo(tmp_path, text_file):
    done = subprocess.run(
        ["make", "demo"],
        cwd=ROOT,
        env={
            **os.environ,
            "VENV": sys.prefix,
            "HOROVOD": str(int(importlib.util.find_spec("horovod") is not None)),
            "DEMO_DIR": str(tmp_path / "demo"),
            "DEMO_TEXT": str(text_file),
            "DEMO_STEPS": "20",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unigram model" in done.stdout
    assert done.stdout.count("truth:") == 10
    for name in ("summary.json", "loss.png"):
        assert (tmp_path / "demo" / name).stat().st_size
