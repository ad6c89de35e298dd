"""Exports act as the policy does, in each format that can carry it; what a format cannot is refused."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from exported_policies import BY_ROW, MASKED, POLICIES, box, subject
from gymnasium import spaces

from shoal.config.model import Activation
from shoal.errors import ConfigError, ShoalError
from shoal.export import made, numpy_export
from shoal.export.exporting import FORMATS, Exported, export
from shoal.export.made import Subject
from shoal.export.plan import action_fields, obs_fields, plan_of
from shoal.export.proof import BOUND, questions
from shoal.models.mlp import MLP

needs_c = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
needs_fortran = pytest.mark.skipif(shutil.which("gfortran") is None, reason="there is no Fortran compiler")
needs_onnx = pytest.mark.skipif(
    find_spec("onnx") is None or find_spec("onnxruntime") is None, reason="onnx is not installed"
)
needs_fmpy = pytest.mark.skipif(find_spec("fmpy") is None, reason="FMPy is not installed")


PAGE = (Path(__file__).parents[3] / "docs/export.md").read_text()


def told_by_the_page() -> dict[tuple[str, str], str]:
    """What docs/export.md says of each kind of policy in each format: yes, no, or something between."""
    rows = [line.strip("| ").split(" | ") for line in PAGE[PAGE.index("| policy |") :].splitlines()]
    (_, *columns), _, *rows = rows[: 2 + len(BY_ROW)]
    told = {}
    for (policies, *cells), (begins, kinds) in zip(rows, BY_ROW.items(), strict=True):
        assert policies.startswith(begins)
        for formats, cell in zip(columns, cells, strict=True):
            told |= {(kind, name): cell for kind in kinds for name in formats.split(", ")}
    return told


TOLD = told_by_the_page()


def kinds_in(format_name: str) -> list[str]:
    """The kinds of policies that a format carries."""
    return [kind for kind in POLICIES if TOLD[kind, format_name] != "no"]


def first(kinds: Iterable[str], *named: str) -> list[str]:
    """All kinds of policies, these before the others: they are the ones that `repeats` takes."""
    return [*named, *(kind for kind in kinds if kind not in named)]


def written(what: Subject, format_name: str, folder: Path, fmi_version: str = "2.0") -> Exported:
    made = export(what, format_name, folder / f"controller{FORMATS[format_name].ending}", fmi_version)
    proof = json.loads(made.files[-1].read_text())
    assert proof["proved"]
    assert proof["largest_difference"] == made.difference
    return made


def flat(policy: Any, action: Any) -> np.ndarray[Any, Any]:
    """An action's numbers one after another."""
    parts = []
    for field in action_fields(policy.action_spec):
        value = action
        for key in field.path:
            value = value[key]
        parts.append(np.asarray(value, np.float64).reshape(-1))
    return np.concatenate(parts)


def own_actions(what: Subject, count: int) -> tuple[Any, np.ndarray[Any, Any]]:
    """Observations, and what the policy's own method does for them, one after another."""
    policy = what.policy
    asked = questions(policy, obs_fields(policy.obs_spec), count)
    rows, state, action = [], policy.get_initial_state(), None
    for row in range(count):
        obs = policy.obs_spec.get(asked.parts, row)
        if policy.recurrence is None:
            action = policy.compute_single_action(obs, explore=False)
        else:
            previous = policy.recurrence.previous
            action, state, _ = policy.compute_single_action(
                obs,
                state,
                prev_action=action if previous.with_action else None,
                prev_reward=float(asked.rewards[row]) if previous.with_reward else None,
                explore=False,
            )
        rows.append(flat(policy, action))
    return asked, np.stack(rows)


@pytest.mark.repeats(3)
@pytest.mark.parametrize("kind", first(kinds_in("numpy"), "masked", "lstm", "picture"))
def test_the_numpy_file_acts_as_the_policy(kind: str, tmp_path: Path) -> None:
    assert written(POLICIES[kind](), "numpy", tmp_path).microseconds is not None


ALONE = """
import importlib.abc, json, sys
import numpy as np

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("shoal", "gymnasium", "torch", "ray"):
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, ".")
from controller import Policy

policy = Policy()
for obs in json.load(open("obs.json")):
    action = policy.act(obs)
    print(json.dumps([np.asarray(part).tolist() for part in (action["x"], action["y"], action["z"])]))
"""


def test_the_numpy_file_needs_numpy_alone(tmp_path: Path) -> None:
    what = POLICIES["everything"]()
    written(what, "numpy", tmp_path)
    asked, expected = own_actions(what, 20)
    observations = [what.policy.obs_spec.get(asked.parts, row) for row in range(20)]
    told = [{key: np.asarray(value).tolist() for key, value in obs.items()} for obs in observations]
    (tmp_path / "obs.json").write_text(json.dumps(told))
    done = subprocess.run([sys.executable, "-c", ALONE], cwd=tmp_path, capture_output=True, text=True, check=True)
    found = [np.concatenate(json.loads(line)) for line in done.stdout.splitlines()]
    np.testing.assert_allclose(np.stack(found), expected, atol=1e-3)


MAIN = """
#include "controller.h"
#include <math.h>
#include <stdio.h>
int main(void)
{
    controller_state state;
    double obs[CONTROLLER_NUM_OBS], action[CONTROLLER_NUM_ACTION];
    controller_reset(&state);
    int k = 0;
    while (scanf("%lf", &obs[k]) == 1)
        if (++k == CONTROLLER_NUM_OBS) {
            const int status = controller_act(&state, obs, action);
            printf("%d", status);
            for (k = 0; k < CONTROLLER_NUM_ACTION; k++) printf(" %.17g", action[k]);
            printf("\\n");
            k = 0;
        }
    return 0;
}
"""


def asked_in_c(folder: Path, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Status and action for each row of observations, by a program that a user might write."""
    (folder / "main.c").write_text(MAIN)
    flags = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Wconversion", "-Wsign-conversion", "-Werror"]
    subprocess.run(["cc", *flags, "-o", "main", "main.c", "controller.c", "-lm"], cwd=folder, check=True)
    text = "\n".join(" ".join(f"{number:.17g}" for number in row) for row in rows)
    done = subprocess.run([folder / "main"], input=text, capture_output=True, text=True, check=True)
    return np.array([line.split() for line in done.stdout.splitlines()], np.float64)


@needs_c
def test_c_refuses_what_is_no_observation(tmp_path: Path) -> None:
    what = POLICIES["masked"]()
    written(what, "c", tmp_path)
    rows = np.array([[1, 1, 0, 1, 1, 0.1, 0.2, 0.3], [1, 1, 0, 1, 1, np.nan, 0, 0], [0, 0, 1, 1, 1, 0, 0, 0]])
    answers = asked_in_c(tmp_path / "controller", rows)
    assert answers[:, 0].tolist() == [0, 1, 2]
    obs = {"action_mask": rows[0, :5].astype(np.float32), "observations": rows[0, 5:].astype(np.float32)}
    assert answers[0, 1:].tolist() == what.policy.compute_single_action(obs, explore=False).tolist()
    assert answers[1, 1:].tolist() == answers[0, 1:].tolist()  # as it was


BAD_REWARD = """
#include "controller.h"
#include <math.h>
#include <stdio.h>
int main(void)
{
    controller_state state;
    const double obs[CONTROLLER_NUM_OBS] = {0.1, 0.2, 0.3};
    const float rewards[] = {0.0f, NAN, INFINITY, 0.5f};
    double action[CONTROLLER_NUM_ACTION];
    controller_reset(&state);
    for (int n = 0; n < 4; n++) {
        state.reward[0] = rewards[n];
        printf("%d", controller_act(&state, obs, action));
        for (int k = 0; k < CONTROLLER_NUM_ACTION; k++) printf(" %.17g", action[k]);
        printf("\\n");
    }
    return 0;
}
"""


def after_rewards(what: Subject, *rewards: float | None) -> list[np.ndarray[Any, Any]]:
    """What a policy with memory does for one observation, again and again, after these rewards."""
    found, state, action = [], what.policy.get_initial_state(), None
    for reward in rewards:
        action, state, _ = what.policy.compute_single_action(
            np.array([0.1, 0.2, 0.3], np.float32), state, prev_action=action, prev_reward=reward, explore=False
        )
        found.append(flat(what.policy, action))
    return found


@needs_c
def test_c_refuses_a_reward_that_is_no_number_and_remembers_nothing_of_it(tmp_path: Path) -> None:
    what = POLICIES["lstm"]()
    written(what, "c", tmp_path)
    folder = tmp_path / "controller"
    (folder / "main.c").write_text(BAD_REWARD)
    subprocess.run(["cc", "-std=c99", "-o", "main", "main.c", "controller.c", "-lm"], cwd=folder, check=True)
    done = subprocess.run([folder / "main"], capture_output=True, text=True, check=True)
    answers = np.array([line.split() for line in done.stdout.splitlines()], np.float64)
    assert answers[:, 0].tolist() == [0, 1, 1, 0]
    first, second = after_rewards(what, None, 0.5)
    for row, expected in enumerate((first, first, first, second)):
        np.testing.assert_allclose(answers[row, 1:], expected, atol=1e-3)


def test_the_numpy_file_refuses_rewards_that_are_none_and_remembers_nothing_of_them(tmp_path: Path) -> None:
    what = POLICIES["lstm"]()
    written(what, "numpy", tmp_path)
    policy = numpy_policy_of(tmp_path / "controller.py")
    obs, (first, second) = [0.1, 0.2, 0.3], after_rewards(what, None, 0.5)
    for _ in range(2):
        policy.reset()
        with pytest.raises(ValueError, match="the reward is not finite"):
            policy.act(obs, np.nan)
        np.testing.assert_allclose(flat(what.policy, policy.act(obs)), first, atol=1e-3)
        for reward in (np.nan, np.inf, 1e39):
            with pytest.raises(ValueError, match=r"the reward is not finite \(got "):
                policy.act(obs, reward)
        with pytest.raises(ValueError, match=r"sees the last reward: type act\(obs, reward\), or reset\(\) for a new"):
            policy.act(obs)
        np.testing.assert_allclose(flat(what.policy, policy.act(obs, 0.5)), second, atol=1e-3)


def test_the_numpy_file_remembers_nothing_of_a_mask_that_allows_nothing(tmp_path: Path) -> None:
    written(POLICIES["masked_lstm"](), "numpy", tmp_path)
    policy = numpy_policy_of(tmp_path / "controller.py")
    obs = {"action_mask": np.ones(5), "observations": np.array([0.1, 0.2, 0.3])}
    policy.act(obs)
    before = policy.hidden.copy(), policy.before.copy()
    with pytest.raises(ValueError, match="action_mask allows no action"):
        policy.act({**obs, "action_mask": np.zeros(5)}, 2.0)
    np.testing.assert_array_equal(policy.hidden, before[0])
    np.testing.assert_array_equal(policy.before, before[1])


def numpy_policy_of(file: Path) -> Any:
    """The policy of a file that was exported."""
    spec = importlib.util.spec_from_file_location("controller", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Policy()


@needs_c
@needs_fmpy
@pytest.mark.parametrize("version", ["2.0", "3.0"])
def test_an_fmu_refuses_a_reward_that_is_no_number_and_remembers_nothing_of_it(version: str, tmp_path: Path) -> None:
    import fmpy

    what = POLICIES["squashed_gru"]()
    file = written(what, "fmu", tmp_path, version).files[0]
    description = fmpy.read_model_description(str(file))
    variables = description.modelVariables
    *seen, reward = [v.valueReference for v in variables if v.causality == "input"]
    outputs = [v.valueReference for v in variables if v.causality == "output"]
    fmu, _, set_real, _, get_real = begun_fmu(description, fmpy.extract(str(file), str(tmp_path / "u")))
    set_real(seen, [0.1, 0.2, 0.3])
    first, second = after_rewards(what, None, 0.5)
    fmu.doStep(0.0, 1.0)
    np.testing.assert_allclose(get_real(outputs), first, atol=1e-3)
    for bad in (np.nan, np.inf):
        set_real([reward], [bad])
        with pytest.raises(fmpy.fmi1.FMICallException, match=r"3|rror"):
            fmu.doStep(1.0, 1.0)
    set_real([reward], [0.5])
    fmu.doStep(1.0, 1.0)
    np.testing.assert_allclose(get_real(outputs), second, atol=1e-3)
    fmu.terminate()
    fmu.freeInstance()


@needs_c
@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds_in("c"))
def test_c_acts_as_the_policy(kind: str, tmp_path: Path) -> None:
    what = POLICIES[kind]()
    assert written(what, "c", tmp_path).microseconds is not None
    if what.policy.recurrence is None or not what.policy.recurrence.previous.with_reward:
        asked, expected = own_actions(what, 50)
        answers = asked_in_c(tmp_path / "controller", asked.rows)
        assert not answers[:, 0].any()
        scale = np.concatenate([np.maximum(1, np.abs(f.scale)) for f in action_fields(what.policy.action_spec)])
        np.testing.assert_array_less(np.abs(answers[:, 1:] - expected) / scale[: expected.shape[1]], 1e-3)


@needs_c
@needs_fortran
@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds_in("fortran"))
def test_fortran_acts_as_the_policy(kind: str, tmp_path: Path) -> None:
    made = written(POLICIES[kind](), "fortran", tmp_path)
    assert made.difference is not None
    assert [file.name for file in made.files] == [
        "controller.h",
        "controller.c",
        "controller_module.f90",
        "controller.fortran.proof.json",
    ]
    assert "GNU Fortran" in made.asked_by


@needs_c
@pytest.mark.parametrize("format_name", ["fortran", "fmu"])
@pytest.mark.parametrize("name", ["a_new_name_with_VERSION_and_GUID", "g" * 40])
def test_any_name_compiles(format_name: str, name: str, tmp_path: Path) -> None:
    """Also one with words of the templates in it, and one that makes the longest lines of Fortran."""
    if format_name == "fortran" and shutil.which("gfortran") is None:
        pytest.skip("there is no Fortran compiler")
    what = subject(box(3), spaces.Discrete(2), model={"fcnet_hiddens": [4]})
    made = export(what, format_name, tmp_path / f"{name}{FORMATS[format_name].ending}")
    assert made.difference is not None


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds_in("onnx"))
def test_onnx_acts_as_the_policy(kind: str, tmp_path: Path) -> None:
    import onnxruntime

    what = POLICIES[kind]()
    made = written(what, "onnx", tmp_path)
    assert "onnxruntime" in made.asked_by
    if what.policy.recurrence is not None:
        return
    from shoal.export.tensor_names import action_names, obs_tensors

    asked, expected = own_actions(what, 20)
    fields, actions = obs_fields(what.policy.obs_spec), action_fields(what.policy.action_spec)
    session = onnxruntime.InferenceSession(str(made.files[0]), providers=["CPUExecutionProvider"])
    given = {field.name: tensor for field, tensor in zip(fields, obs_tensors(fields, asked), strict=True)}
    found = session.run(action_names(fields, actions), given)  # all at once
    rows = np.concatenate([np.asarray(part, np.float64).reshape(20, -1) for part in found], axis=1)
    np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-3)


@needs_onnx
def test_a_small_onnx_model_is_made_without_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from exported_policies import POLICIES;"
        "from shoal.export.exporting import export;"
        "made = export(POLICIES['filtered'](), 'onnx', Path(sys.argv[1]));"
        "assert made.difference < 1e-4; assert 'torch' not in sys.modules"
    )
    shared = Path(__file__).parents[2] / "shared"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(shared)!r}); {script}"]
    subprocess.run([*command, str(tmp_path / "x.onnx")], check=True)
    assert (tmp_path / "x.onnx.proof.json").is_file()


@needs_c
@needs_onnx
@pytest.mark.repeats(0, slow=4)
@pytest.mark.parametrize("activation", get_args(Activation))
def test_every_activation_is_the_same_in_every_language(activation: str, tmp_path: Path) -> None:
    what = subject(box(3), box(2), model={"fcnet_activation": activation, "fcnet_hiddens": [8, 8]})
    network = what.policy.network
    assert isinstance(network, MLP)
    network.layer_norm = activation in ("relu", "silu")
    for format_name in ("numpy", "c", "onnx"):
        written(what, format_name, tmp_path)


@needs_c
@needs_fmpy
@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds_in("fmu"))
@pytest.mark.parametrize("version", ["2.0", "3.0"])
def test_an_fmu_acts_as_the_policy(kind: str, version: str, tmp_path: Path) -> None:
    import fmpy

    what = POLICIES[kind]()
    file = written(what, "fmu", tmp_path, version).files[0]
    description = fmpy.read_model_description(str(file), validate=True)
    assert description.fmiVersion == version
    asked, expected = own_actions(what, 30)
    variables = description.modelVariables
    inputs = [v for v in variables if v.causality == "input"]
    outputs = [v for v in variables if v.causality == "output"]
    fmu, set_whole, set_real, get_whole, get_real = begun_fmu(description, fmpy.extract(str(file), str(tmp_path / "u")))
    kept = None
    for row in range(30):
        numbers = [*asked.rows[row], asked.rewards[row]]
        for variable, number in zip(inputs, numbers, strict=False):
            if variable.type in ("Integer", "Int32"):
                set_whole([variable.valueReference], [int(number)])
            else:
                set_real([variable.valueReference], [float(number)])
        if row == 10:  # a step that is taken back, and taken again
            kept = fmu.getFMUState()
            fmu.doStep(10.0, 1.0)
            fmu.setFMUState(kept)
            fmu.freeFMUState(kept)
        fmu.doStep(float(row), 1.0)
        found = []
        for variable in outputs:
            get = get_whole if variable.type in ("Integer", "Int32") else get_real
            found += get([variable.valueReference])
        np.testing.assert_allclose(found, expected[row], rtol=1e-4, atol=1e-3)
    assert kept is not None
    if version == "3.0":
        [time] = [v for v in variables if v.causality == "independent"]
        assert get_real([time.valueReference]) == [30.0]
    fmu.terminate()
    fmu.freeInstance()


def begun_fmu(description: Any, folder: str) -> tuple[Any, Any, Any, Any, Any]:
    """An FMU that was initialized, and what sets and gets its integers and reals."""
    named = {
        "guid": description.guid,
        "unzipDirectory": folder,
        "modelIdentifier": description.coSimulation.modelIdentifier,
    }
    if description.fmiVersion == "3.0":
        from fmpy.fmi3 import FMU3Slave

        fmu = FMU3Slave(**named)
        fmu.instantiate()
        calls = fmu.setInt32, fmu.setFloat64, fmu.getInt32, fmu.getFloat64
    else:
        from fmpy.fmi2 import FMU2Slave

        fmu = FMU2Slave(**named)
        fmu.instantiate()
        fmu.setupExperiment()
        calls = fmu.setInteger, fmu.setReal, fmu.getInteger, fmu.getReal
    fmu.enterInitializationMode()
    fmu.exitInitializationMode()
    return fmu, *calls


@needs_c
@needs_fmpy
@pytest.mark.slow
def test_an_fmu_of_fmi3_can_be_compiled_from_its_own_sources(tmp_path: Path) -> None:
    """By what its buildDescription.xml lists; FMPy then simulates it as any other."""
    import fmpy
    from fmpy.model_description import read_build_description

    what = subject(box(3), spaces.Discrete(3))
    file = written(what, "fmu", tmp_path, "3.0").files[0]
    folder = Path(fmpy.extract(str(file), str(tmp_path / "u")))
    [built] = read_build_description(str(folder))
    [binary] = (folder / "binaries").glob("*/*")
    binary.unlink()
    sources = [folder / "sources" / name for group in built.sourceFileSets for name in group.sourceFiles]
    subprocess.run(
        ["cc", "-std=c99", "-Wall", "-Werror", "-fPIC", "-shared", "-o", binary, *sources, "-lm"], check=True
    )
    found = fmpy.simulate_fmu(str(folder), stop_time=3.0, output_interval=1.0)
    assert found["action"].tolist()[1:] == [found["action"][-1]] * 3, "with inputs that stay as they are"


@pytest.mark.slow
@pytest.mark.parametrize("format_name", ["torchscript", "torch_export"])
@pytest.mark.parametrize("kind", kinds_in("torchscript"))
def test_a_module_of_pytorch_acts_as_the_policy(kind: str, format_name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if (kind, format_name) == ("custom_memory", "torch_export"):
        pytest.skip("its model loops over a batch as Python does; that it is refused is another test's")
    made = written(POLICIES[kind](), format_name, tmp_path)
    assert json.loads(made.files[-1].read_text())["any_batch"]


def all_bytes(file: Path) -> Iterator[tuple[str, bytes]]:
    """The bytes of a file, and of each member if it is an archive."""
    yield file.name, file.read_bytes()
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                yield name, archive.read(name)


@pytest.mark.parametrize(
    ("kind", "format_name"), [("lstm", "torchscript"), ("lstm", "torch_export"), ("attention", "onnx")]
)
def test_a_file_of_pytorch_names_no_folder_of_the_machine_that_made_it(
    kind: str, format_name: str, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    if format_name == "onnx":
        pytest.importorskip("onnxruntime")
    file = written(POLICIES[kind](), format_name, tmp_path).files[0]
    folders = {tmp_path, Path.home(), Path(__file__).parent, Path(made.__file__).parent, Path(torch.__file__).parent}
    for name, content in all_bytes(file):
        for folder in folders:
            assert str(folder).encode() not in content, name
        assert b"exporting.py" not in content, name


def test_a_wrong_shape_is_told_without_the_exporters_own_stack(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    policy = torch.jit.load(str(written(POLICIES["sequence"](), "torchscript", tmp_path).files[0]))
    with pytest.raises(RuntimeError) as refused:
        policy(torch.zeros(1, 7))
    assert "site-packages" not in str(refused.value)
    assert str(Path(made.__file__).parent) not in str(refused.value)


@pytest.mark.repeats(1)
@pytest.mark.parametrize("kind", kinds_in("hub"))
def test_a_hub_folder_has_a_card_weights_and_configuration(kind: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    what = POLICIES[kind]()
    video = tmp_path / "iteration_000003.mp4"
    video.write_bytes(b"video")
    written(
        dataclasses.replace(what, video=video, experiment={"name": "x", "results_dir": "/home/me"}), "hub", tmp_path
    )
    folder = tmp_path / "controller"
    card = (folder / "README.md").read_text()
    from shoal.config.yaml_files import load_text

    metadata: Any = load_text(card.split("---")[1], "card").tree
    assert metadata["library_name"] == "shoal"
    assert metadata["model-index"][0]["results"][0]["metrics"][0]["value"] == "12.50"
    assert "evaluation" not in card
    assert "/home/me" not in (folder / "config.json").read_text()
    arrays = load_file(folder / "policy.safetensors")
    for name, value in what.policy.get_weights().items():
        np.testing.assert_array_equal(arrays[name], value)
    assert ("filter.mean" in arrays) == (what.policy.filter is not None)
    assert (folder / "policy.py").is_file() == (TOLD[kind, "numpy"] == "yes")
    assert (folder / "replay.mp4").read_bytes() == b"video"


@pytest.mark.parametrize(
    ("kind", "told", "lines"),
    [
        ("filtered", None, ["policy = Policy()", "action = policy.act(obs)", "```"]),
        (
            "squashed_gru",
            "| memory | GRU; sees the last action and reward |",
            [
                "policy.reset()  # where an episode begins",
                "action = policy.act(obs)",
                "action = policy.act(next_obs, rew",
            ],
        ),
        (
            "picture_gru",
            "| memory | GRU |",
            ["policy.reset()", "action = policy.act(obs)", "action = policy.act(next_obs)"],
        ),
        ("attention", "| memory | attention |", []),
    ],
)
def test_a_card_says_how_a_policy_with_memory_is_asked(
    kind: str, told: str | None, lines: list[str], tmp_path: Path
) -> None:
    written(POLICIES[kind](), "hub", tmp_path)
    card = (tmp_path / "controller/README.md").read_text()
    assert told in card if told else "memory" not in card
    use = card[card.index("## Use") :].splitlines()
    begin = use.index("policy = Policy()") + (kind != "filtered") if lines else 0
    assert all(line.startswith(start) for line, start in zip(use[begin:], lines, strict=False)), use


def test_a_card_has_what_the_evaluation_of_its_checkpoint_gave(tmp_path: Path) -> None:
    evaluation = {"episode_reward_mean": 319.3, "episode_reward_std": 93.8, "episodes_this_iter": 3}
    summary = {"episode_reward_mean": 25.1, **{f"evaluation/{key}": value for key, value in evaluation.items()}}
    written(dataclasses.replace(POLICIES["filtered"](), summary=summary), "hub", tmp_path)
    card = (tmp_path / "controller/README.md").read_text()
    from shoal.config.yaml_files import load_text

    metadata: Any = load_text(card.split("---")[1], "card").tree
    assert metadata["model-index"][0]["results"][0]["metrics"][0]["value"] == "319.30 +/- 93.80"
    for row in ("| mean return in evaluation | 319.3 |", "| episodes of the evaluation | 3 |", "in training | 25.1 |"):
        assert row in card


def test_an_export_that_differs_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(policy: Any, model: Any) -> Any:
        plan = plan_of(policy, model)
        head = dataclasses.replace(plan.head, bias=plan.head.bias + np.float32(1e-2) * np.arange(3, dtype=np.float32))
        return dataclasses.replace(plan, head=head)

    monkeypatch.setattr(made, "plan_of", wrong)
    with pytest.raises(ShoalError, match=r"differs from the policy by 0\.0"):
        export(POLICIES["filtered"](), "numpy", tmp_path / "x.py")
    assert not list(tmp_path.iterdir())


def test_a_wrong_choice_counts_by_what_the_policy_thinks_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a format tells no outputs."""
    asked = numpy_export.asked_numpy

    def swapped(*arguments: Any) -> Any:
        answers = asked(*arguments)
        return dataclasses.replace(answers, actions=1 - answers.actions, outputs=None)

    monkeypatch.setattr(numpy_export, "asked_numpy", swapped)
    what = subject(box(3), spaces.Discrete(2))
    with pytest.raises(ShoalError, match="differs"):
        export(what, "numpy", tmp_path / "x.py")
    what.policy.network.params[:] = 0  # every action is as good as any other
    assert export(what, "numpy", tmp_path / "x.py").difference <= BOUND  # type: ignore[operator]


@pytest.mark.parametrize("kind", [kind for kind in POLICIES if "no" in [TOLD[kind, name] for name in FORMATS]])
def test_what_a_format_cannot_carry_is_refused_with_one_that_can(kind: str, tmp_path: Path) -> None:
    """Every "no" of the page's table, and what is said to take is no "no"."""
    pytest.importorskip("torch")
    what = POLICIES[kind]()
    for format_name in FORMATS:
        if TOLD[kind, format_name] != "no":
            continue
        with pytest.raises(ConfigError, match=f"^--format {format_name}: .* use --format ") as refused:
            export(what, format_name, tmp_path / "x")
        instead = str(refused.value).rpartition(" use --format ")[2].split(" or ")
        assert instead
        assert "no" not in [TOLD[kind, name] for name in instead]
    assert not list(tmp_path.iterdir())


def test_an_fmu_has_up_to_2000_numbers(tmp_path: Path) -> None:
    assert TOLD["picture", "fmu"] == "up to 2000 numbers"
    large = subject(box(3000), spaces.Discrete(2))
    with pytest.raises(ConfigError, match=r"3,000 numbers.*use --format c"):
        export(large, "fmu", tmp_path / "x.fmu")
    assert not list(tmp_path.iterdir())


def test_a_custom_model_is_written_by_pytorch_or_refused_with_a_format_that_takes_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for kind in ("custom", "custom_memory"):
        written(POLICIES[kind](), "torchscript", tmp_path)
    with pytest.raises(ConfigError, match=r"torch_export: PyTorch cannot write this policy: .* use --format torchscr"):
        export(POLICIES["custom_memory"](), "torch_export", tmp_path / "x.pt2")
    what = POLICIES["custom"]()
    network: Any = what.policy.network

    def refuse(*_: Any) -> Any:
        raise RuntimeError("not while it is traced")

    network.module.act = refuse
    with pytest.raises(ConfigError, match=r"torchscript: PyTorch cannot write .* not while .* --format hub"):
        export(what, "torchscript", tmp_path / "x.pt")


def test_without_a_compiler_an_export_is_refused_or_says_that_it_is_not_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    what = subject(MASKED, spaces.MultiDiscrete([2, 3]))
    for format_name in ("c", "fortran", "fmu"):
        with pytest.raises(ConfigError, match=r"no such C compiler here, .* or add --unproved"):
            export(what, format_name, tmp_path / f"x{FORMATS[format_name].ending}")
    assert not list(tmp_path.iterdir())
    found = export(what, "c", tmp_path / "x", may_be_unproved=True)
    assert found.difference is None
    assert "no such C compiler" in found.unproved
    proof = json.loads((tmp_path / "x/x.c.proof.json").read_text())
    assert proof["proved"] is False
    assert "no such C compiler" in proof["not_proved_because"]
    assert (tmp_path / "x/x.c").is_file()
    export(what, "fmu", tmp_path / "x.fmu", may_be_unproved=True)
    with zipfile.ZipFile(tmp_path / "x.fmu") as archive:
        assert not [name for name in archive.namelist() if name.startswith("binaries/")]
        assert "sources/x.c" in archive.namelist()


def test_the_action_before_is_squashed_once() -> None:
    pytest.importorskip("torch")
    policy = POLICIES["squashed_gru"]().policy
    assert policy.recurrence is not None
    previous = policy.recurrence.previous
    rows = np.array([[0.7, -1.2]], np.float32)
    sampled = previous(rows, np.zeros(1))
    by_hand = previous.from_env(list(policy.action_spec.decode(rows)), [0.0])
    np.testing.assert_allclose(by_hand, sampled, atol=1e-6)
