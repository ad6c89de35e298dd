"""The pages on moving, on schedulers and on containers: tables, scripts and new files are what the code gives."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pages import Page

from shoal.cluster.batch_scripts import batch_script
from shoal.cluster.job_files import Source, job_from
from shoal.cluster.schedulers import BUILT_IN
from shoal.config.experiment import experiments_from_file
from shoal.config.yaml_files import load_text

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
IMAGES = ROOT / "examples" / "containers"
SHOAL = str(Path(sys.executable).with_name("shoal"))
PAGES = sorted([*(DOCS / "moving").glob("*.md"), *(DOCS / "schedulers").glob("*.md"), DOCS / "exit_codes.md"])


@pytest.fixture(scope="module")
def parts() -> Any:
    spec = importlib.util.spec_from_file_location("generated_parts", DOCS / "generated_parts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_parts_of_a_page_are_what_the_code_gives(parts: Any, page: Path) -> None:
    text = page.read_text()
    assert "<!-- end -->" in text
    assert parts.filled(text) == text, "write them anew: python docs/generated_parts.py"


def test_there_is_a_page_for_every_scheduler_and_the_index_has_them() -> None:
    titles = {page.read_text().partition("\n")[0] for page in (DOCS / "schedulers").glob("*.md")}
    assert titles == {f"# {scheduler.title}" for scheduler in BUILT_IN.values()}
    index = (DOCS / "index.md").read_text()
    assert all(str(page.relative_to(DOCS).with_suffix("")) in index for page in [*PAGES, DOCS / "containers.md"])


@pytest.mark.slow
def test_the_new_files_of_the_pages_train(tmp_path: Path) -> None:
    text = ""
    for page in sorted((DOCS / "moving").glob("*.md")):
        (new,) = re.findall(r"<!-- migrated -->\n```yaml\n(.*?)```", page.read_text(), re.DOTALL)
        text += new
    (tmp_path / "new.yml").write_text(text)
    assert len(experiments_from_file(tmp_path / "new.yml")) == 3
    small = ["--num-workers", "0", "--stop", "training_iteration=1", "--set", "train_batch_size=256", "--quiet"]
    done = subprocess.run(
        [SHOAL, "train", "-f", "new.yml", *small],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Finished: training_iteration 1 >= 1") == 3


def test_the_jobs_of_the_pages_are_such() -> None:
    (part,), (whole,) = (Page(f"docs/{name}.md").blocks("yaml") for name in ("containers", "cluster"))
    job = job_from([Source({**load_text(part, "job.yml").tree, "walltime": "1h", "command": ["true"]})])
    assert job.container_binds == ("/scratch", "$DATA:/data")
    job = job_from([Source(load_text(whole, "job.yml").tree)])
    assert (job.nodes, job.walltime, job.account, job.gpus_per_node) == (3, 9000, "rlwater", 1)
    script = batch_script(job, BUILT_IN["slurm"], Path("/opt/shoal/bin"), Path("/jobs/ppo"))
    assert "#SBATCH --constraint=haswell\n" in script
    assert "module load python/3.11\n" in script


def test_the_recipe_of_apptainer_is_whole() -> None:
    lines = [line for line in (IMAGES / "shoal.def").read_text().splitlines() if not line.startswith("#")]
    stages = re.split(r"^(?=Bootstrap:)", "\n".join(lines), flags=re.MULTILINE)[1:]
    build, run = (dict(_sections(stage)) for stage in stages)
    assert "Stage: build" in build["header"]
    assert "Stage: run" in run["header"]
    assert "From: python:3.11-slim" in build["header"]
    copied = [line.split() for line in build["files"].splitlines()]
    assert all((ROOT / source).exists() and target.startswith("/source/") for source, target in copied)
    assert {"pyproject.toml", "src", "constraints.txt", "README.md", "LICENSE"} == {source for source, _ in copied}
    assert run["files from build"].split() == ["/opt/shoal", "/opt/shoal"]
    assert "/opt/shoal/bin/pip install" in build["post"]
    assert "/opt/shoal/bin" in run["environment"]
    for stage in (build, run):
        for name in stage.keys() & {"post", "environment", "runscript", "test"}:
            subprocess.run(["sh", "-n"], input=stage[name], text=True, check=True)
    assert {"help", "labels", "test", "runscript"} <= run.keys()


def test_the_containerfile_makes_the_same_image() -> None:
    text = (IMAGES / "Containerfile").read_text()
    recipe = (IMAGES / "shoal.def").read_text()
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == re.findall(r"^From: (\S+)", recipe, re.MULTILINE)
    sources = [
        word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for word in shlex.split(line)
    ]
    assert all((ROOT / source).exists() for source in sources)
    assert set(sources) == set(re.findall(r"^ {4}(\S+) /source/", recipe, re.MULTILINE))
    installed = "apt-get install -y --no-install-recommends procps"
    assert installed in text
    assert installed in recipe


def _sections(stage: str) -> list[tuple[str, str]]:
    header, *sections = re.split(r"^%", stage, flags=re.MULTILINE)
    known = {"files", "files from build", "post", "environment", "runscript", "test", "labels", "help"}
    found = [(part.partition("\n")[0].strip(), part.partition("\n")[2].strip("\n")) for part in sections]
    assert {name for name, _ in found} <= known
    return [("header", header), *found]
