"""Every recipe exports with the real package, and its bundle runs a closed loop as the eager policy does.

Both sides run a loop of their own: what each does changes what it sees next. A frozen or drifting model leaves the other one.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.distributions import Distribution

import leapp
from leapp import InferenceManager
from leapp.runtime import Pipeline

RECIPES = Path(__file__).resolve().parents[1] / "examples" / "recipes"
STEPS = 24

Values = dict[str, torch.Tensor]


@pytest.fixture(autouse=True)
def untouched_process() -> Iterator[None]:
    """The packages set how distributions check their arguments, for the whole process."""
    before = Distribution._validate_args
    yield
    Distribution.set_default_validate_args(before)


@pytest.fixture
def recipe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The recipe that the test is named after, with inputs to come that it has not seen."""
    name = request.function.__name__.removeprefix("test_")
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def exported(recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """The bundle that the recipe leaves when it is run as a program."""
    monkeypatch.setattr(sys, "argv", [recipe.__file__, str(tmp_path)])
    recipe.main()
    printed = capsys.readouterr().out
    assert "bundle" in printed
    assert "eager" in printed
    torch.manual_seed(2026)
    (bundle,) = tmp_path.glob("*/*.yaml")
    return bundle


def nothing_left_the_graph() -> None:
    assert leapp.report().escapes == []
    assert leapp.report().pruned == {}
    assert leapp.report().glue == []


def close_the_loop(
    sense: Callable[[], Values], eager: Callable[[Values], torch.Tensor], bundle: Callable[[Values], torch.Tensor]
) -> None:
    """Run both sides, each seeing the world that its own actions made."""
    ours, theirs = torch.zeros(()), torch.zeros(())
    seen = []
    for _ in range(STEPS):
        world = sense()
        expected = eager(shifted(world, ours))
        actual = bundle(shifted(world, theirs))
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=2e-5)
        ours, theirs = 0.8 * ours + 0.2 * expected.mean(), 0.8 * theirs + 0.2 * actual.mean()
        seen.append(expected)
    assert sum(not torch.allclose(a, b, atol=1e-4) for a, b in zip(seen, seen[1:])) > STEPS / 2  # clipped ones may repeat


def shifted(world: Values, shift: torch.Tensor) -> Values:
    return {name: value + shift for name, value in world.items()}


def deployed(path: Path, node: str, output: str) -> Callable[[Values], torch.Tensor]:
    manager = InferenceManager(path)
    return lambda values: manager.run_policy({f"{node}/{k}": v for k, v in values.items()})[f"{node}/{output}"]


def disturb(module: torch.nn.Module) -> None:
    """A policy fresh from its package hardly reacts; one that does tells a right model from a wrong one."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def test_every_recipe_is_tested_and_described() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    names = {path.stem for path in RECIPES.glob("*.py")}
    assert names <= tested
    pages = "".join(page.read_text() for page in (RECIPES.parents[1] / "docs" / "recipes").glob("*.md"))
    assert [name for name in sorted(names) if f"examples/recipes/{name}.py" not in pages] == []


def test_rsl_rl_policy(recipe: ModuleType, exported: Path) -> None:
    nothing_left_the_graph()
    actor = recipe.make_actor()
    close_the_loop(recipe.sense, lambda values: recipe.step(actor, values), deployed(exported, "policy", "action"))


def test_rsl_rl_recurrent(recipe: ModuleType, exported: Path) -> None:
    nothing_left_the_graph()
    actor = recipe.make_actor()

    def eager(values: Values) -> torch.Tensor:
        with torch.inference_mode():
            return actor(recipe.TensorDict({"policy": values["observation"]}, batch_size=[1])).clone()

    close_the_loop(lambda: {"observation": torch.randn(1, 36)}, eager, deployed(exported, "policy", "action"))


def test_sb3_mlp(recipe: ModuleType, exported: Path, tmp_path: Path) -> None:
    nothing_left_the_graph()
    model = recipe.train()
    disturb(model.policy)
    path = recipe.export(tmp_path / "disturbed", model)

    def eager(values: Values) -> torch.Tensor:
        normal = model.get_vec_normalize_env().normalize_obs(values["observation"].numpy())
        return torch.as_tensor(model.predict(normal, deterministic=True)[0])

    torch.manual_seed(2026)
    close_the_loop(lambda: {"observation": torch.randn(1, 3)}, eager, deployed(path, "policy", "action"))


@pytest.mark.parametrize("algorithm", ["SAC", "PPO", "TD3", "A2C", "DQN"])
def test_sb3_predict(recipe: ModuleType, request: pytest.FixtureRequest, tmp_path: Path, algorithm: str) -> None:
    """The recipe as it stands, once, and every algorithm, with weights that react."""
    import stable_baselines3

    if algorithm == "SAC":
        request.getfixturevalue("exported")
    task = "CartPole-v1" if algorithm == "DQN" else "Pendulum-v1"
    model = getattr(stable_baselines3, algorithm)("MlpPolicy", task, seed=0, device="cpu")
    disturb(model.policy)
    pipeline = Pipeline(recipe.export(tmp_path / "disturbed", model))
    nothing_left_the_graph()
    random, seen = np.random.default_rng(2026), []
    for _ in range(STEPS):
        observation = random.normal(size=(1, *model.observation_space.shape)).astype(np.float32)
        seen.append(model.predict(observation, deterministic=True)[0])
        action = pipeline({"policy/observation": observation})["policy/action"]
        np.testing.assert_allclose(action, seen[-1], rtol=1e-3, atol=2e-5)
    assert len({value.tobytes() for value in seen}) > 1


def test_sb3_recurrent(recipe: ModuleType, exported: Path, tmp_path: Path) -> None:
    nothing_left_the_graph()
    model = recipe.make_model()
    disturb(model.policy)
    path = recipe.export(tmp_path / "disturbed", model)
    memory: Any = None

    def eager(values: Values) -> torch.Tensor:
        nonlocal memory
        action, memory = model.predict(values["observation"].numpy(), state=memory, deterministic=True)
        return torch.as_tensor(action)

    torch.manual_seed(2026)
    close_the_loop(lambda: {"observation": torch.randn(1, 3)}, eager, deployed(path, "policy", "action"))


def test_skrl_policy(recipe: ModuleType, exported: Path) -> None:
    nothing_left_the_graph()
    policy, scaler = recipe.make_agent()
    close_the_loop(
        lambda: {"observation": 2.0 + torch.randn(1, 17)},
        lambda values: recipe.step(policy, scaler, values["observation"]),
        deployed(exported, "policy", "action"),
    )


def test_act_policy(recipe: ModuleType, exported: Path) -> None:
    nothing_left_the_graph()
    controller = recipe.Controller()
    close_the_loop(recipe.sense, lambda values: controller.step(**values), deployed(exported, "act", "action"))


def test_act_policy_forgets_plans_as_they_age(tmp_path: Path) -> None:
    """The ensemble written with a mask is the one written with a list of plans."""
    spec = importlib.util.spec_from_file_location("act", RECIPES / "act_policy.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    controller = recipe.Controller()
    plans: list[torch.Tensor] = []
    for _ in range(2 * recipe.CHUNK):
        sensed = recipe.sense()
        with torch.no_grad():
            plans = [*plans, controller.policy(**sensed)[0]][-recipe.CHUNK :]
        entries = [plan[len(plans) - 1 - i] for i, plan in enumerate(plans)]
        weights = torch.exp(-0.01 * torch.arange(len(plans)))
        expected = (torch.stack(entries) * weights[:, None]).sum(0) / weights.sum()
        torch.testing.assert_close(controller.step(**sensed), expected)


def test_diffusion_policy(recipe: ModuleType, exported: Path) -> None:
    nothing_left_the_graph()
    controller = recipe.Controller()
    close_the_loop(recipe.sense, lambda values: controller.step(**values), deployed(exported, "diffusion", "plan"))


def test_isaac_lab_style(recipe: ModuleType, exported: Path) -> None:
    nothing_left_the_graph()
    environment = recipe.Environment()
    assert exported.name == f"{recipe.TASK}.yaml"
    assert (exported.parent / f"{recipe.TASK}.onnx").exists()
    close_the_loop(recipe.sense, environment.step, deployed(exported, recipe.TASK, "targets"))
    node = yaml.safe_load(exported.read_text())["models"][recipe.TASK]
    ports = {port["name"]: port for port in node["inputs"] + node["outputs"]}
    assert ports["joint_pos"]["isaaclab_connection"] == "state:robot:joint_pos"
    assert ports["joint_pos"]["element_names"] == [[], recipe.JOINTS]
    assert ports["targets"]["isaaclab_connection"] == "write:robot:joint_pos_target"


def test_numpy_observations(recipe: ModuleType, exported: Path) -> None:
    nothing_left_the_graph()
    pipeline, random = Pipeline(exported), np.random.default_rng(2026)
    seen = []
    drift = np.zeros(4, np.float32)
    theirs = drift
    for _ in range(STEPS):
        sensed = recipe.sense(random)
        expected = recipe.step(**{**sensed, "current": sensed["current"] + drift})
        given = {**sensed, "current": sensed["current"] + theirs}
        actual = pipeline({f"policy/{name}": value for name, value in given.items()})["policy/action"]
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=2e-5)
        drift, theirs = 0.5 * expected, 0.5 * actual
        seen.append(expected)
    assert all(not np.allclose(a, b, atol=1e-4) for a, b in zip(seen, seen[1:]))
