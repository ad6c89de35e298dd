"""Densities and their derivatives, with torch.distributions and autograd in double precision as the oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal, kl_divergence

from shoal.envs.spaces import ActionSpec
from shoal.models.distributions import (
    Bernoulli,
    Categorical,
    Gaussian,
    Product,
    SquashedGaussian,
    distribution_for,
    log_std_inputs,
)

ROWS = 17
FAMILIES = {
    "one choice": Categorical(5),
    "one of one": Categorical(1),
    "three choices": Categorical(4, 3),
    "bits": Bernoulli(3),
    "one number": Gaussian(1),
    "numbers": Gaussian(3),
    "product": Product([Categorical(3, 2), Gaussian(2), Bernoulli(2), Categorical(7)]),
}
families = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def torch_factors(family, inputs):
    """(distribution, number of action columns) for each factor, each over `[B, columns]`."""
    if isinstance(family, Product):
        pieces = torch.split(inputs, [f.num_inputs for f in family.factors], dim=1)
        return [pair for f, piece in zip(family.factors, pieces, strict=True) for pair in torch_factors(f, piece)]
    if isinstance(family, Categorical):
        inner = TorchCategorical(logits=inputs.reshape(len(inputs), family.count, family.n))
    elif isinstance(family, Bernoulli):
        inner = TorchBernoulli(logits=inputs)
    else:
        mean, log_std = inputs.split(family.num_actions, dim=1)
        inner = Normal(mean, log_std.clamp(-20, 2).exp())
    return [(Independent(inner, 1), family.num_actions)]


def torch_evaluate(family, inputs, actions, old_inputs):
    now, old = torch_factors(family, inputs), torch_factors(family, old_inputs)
    columns = torch.split(actions, [count for _, count in now], dim=1)
    log_prob = sum(d.log_prob(a) for (d, _), a in zip(now, columns, strict=True))
    entropy = sum(d.entropy() for d, _ in now)
    kl = sum(kl_divergence(o, d) for (o, _), (d, _) in zip(old, now, strict=True))
    return log_prob, entropy, kl


def situation(family, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    inputs = (spread * rng.standard_normal((ROWS, family.num_inputs))).astype(np.float32)
    old = (inputs + 0.5 * rng.standard_normal(inputs.shape)).astype(np.float32)
    noise = np.concatenate([family.noise(rng, 1) for _ in range(ROWS)])
    return inputs, old, family.sample(old, noise)


def double(array):
    return torch.tensor(np.asarray(array), dtype=torch.float64)


@families
@pytest.mark.parametrize("spread", [1.0, 5.0])
def test_evaluation_agrees_with_torch(family, spread) -> None:
    inputs, old, actions = situation(family, spread=spread)
    wanted = torch_evaluate(family, double(inputs), double(actions), double(old))
    got = family.evaluate(inputs, actions, old)
    for mine, theirs in zip((got.log_prob, got.entropy, got.kl), wanted, strict=True):
        assert mine.shape == (ROWS,)
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)
    assert family.evaluate(inputs, actions).kl is None


@families
@pytest.mark.parametrize("wanted", ["log_prob", "entropy", "kl", "all", "all, scalar"])
def test_gradients_agree_with_autograd(family, wanted) -> None:
    inputs, old, actions = situation(family, seed=1)
    rng = np.random.default_rng(2)
    if wanted == "all, scalar":
        coefficients = [0.7, -0.3, 0.2]
    else:
        coefficients = [
            rng.standard_normal(ROWS).astype(np.float32) if wanted in (name, "all") else 0.0
            for name in ("log_prob", "entropy", "kl")
        ]
    x = double(inputs).requires_grad_()
    total = sum(
        (torch.as_tensor(c) * term).sum()
        for c, term in zip(coefficients, torch_evaluate(family, x, double(actions), double(old)), strict=True)
    )
    (gradient,) = torch.autograd.grad(total, x)
    got = family.gradient(family.evaluate(inputs, actions, old), *coefficients)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, gradient, rtol=1e-4, atol=1e-5 * max(1.0, gradient.abs().max().item()))


@families
def test_without_old_inputs_the_kl_has_no_gradient(family) -> None:
    inputs, _, actions = situation(family)
    e = family.evaluate(inputs, actions)
    np.testing.assert_array_equal(family.gradient(e, 1.0, 0.5, 9.0), family.gradient(e, 1.0, 0.5, 0.0))


@families
def test_fisher_is_the_hessian_of_the_kl(family) -> None:
    inputs, _, actions = situation(family, seed=3)
    tangent = np.random.default_rng(4).standard_normal(inputs.shape).astype(np.float32)
    x = double(inputs)
    _, wanted = torch.autograd.functional.hvp(
        lambda now: torch_evaluate(family, now, double(actions), x)[2].sum(), x, double(tangent)
    )
    scale = max(1.0, wanted.abs().max().item())
    np.testing.assert_allclose(family.fisher(inputs, tangent), wanted, rtol=1e-4, atol=1e-5 * scale)


def test_a_spread_outside_its_range_stays_and_does_not_move() -> None:
    family = Gaussian(3)
    inputs = np.array([[0, 0, 0, -25, 1.9, 5]], np.float32)
    old = np.array([[0.1, 0.1, 0.1, -20, 1, 3]], np.float32)
    actions = np.array([[0, 1, 2]], np.float32)
    x = double(inputs).requires_grad_()
    log_prob, entropy, kl = torch_evaluate(family, x, double(actions), double(old))
    got = family.evaluate(inputs, actions, old)
    np.testing.assert_allclose(got.log_prob, log_prob.detach(), rtol=1e-5)
    np.testing.assert_allclose(got.entropy, entropy.detach(), rtol=1e-5)
    (gradient,) = torch.autograd.grad(log_prob.sum() + entropy.sum() + kl.sum() * 1e-9, x)
    mine = family.gradient(got, 1.0, 1.0, 1e-9)
    np.testing.assert_allclose(mine[:, 1:], gradient[:, 1:], rtol=1e-4, atol=1e-5)
    assert mine[0, 3] == mine[0, 5] == 0
    assert mine[0, 4] != 0
    assert family.fisher(inputs, np.ones((1, 6), np.float32))[0, 3:].tolist() == [0, 2, 0]


def draws(family, inputs, count):
    return family.sample(
        np.repeat(inputs, count, axis=0).astype(np.float32), family.noise(np.random.default_rng(11), count)
    )


def test_choices_come_as_often_as_their_probabilities_say() -> None:
    family, logits, count = Categorical(4, 2), np.array([[0, 1, 2, -3, 1, 1, 0, -1]], np.float32), 40_000
    actions = draws(family, logits, count)
    for choice in range(2):
        row = logits[0, 4 * choice : 4 * choice + 4].astype(np.float64)
        wanted = count * np.exp(row) / np.exp(row).sum()
        seen = np.bincount(actions[:, choice], minlength=4)
        assert np.square(seen - wanted).__truediv__(wanted).sum() < 16.27, "chi-square, 3 degrees of freedom, 0.1 %"
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.02


def test_bits_come_as_often_as_their_probabilities_say() -> None:
    logits, count = np.array([[-2.0, 0.0, 1.0]]), 40_000
    bits = draws(Bernoulli(3), logits, count)
    p = 1 / (1 + np.exp(-logits[0]))
    z = (bits.sum(axis=0) - count * p) / np.sqrt(count * p * (1 - p))
    assert (np.abs(z) < 3.3).all()
    assert set(np.unique(bits)) == {0, 1}


def test_numbers_have_their_mean_and_spread() -> None:
    inputs, count = np.array([[3.0, -1.0, np.log(0.5), np.log(2.0)]]), 40_000
    numbers = draws(Gaussian(2), inputs, count)
    np.testing.assert_allclose(numbers.mean(axis=0), [3, -1], atol=0.04)
    np.testing.assert_allclose(numbers.std(axis=0), [0.5, 2], rtol=0.02)


@families
def test_a_sample_is_a_function_of_its_own_row(family) -> None:
    inputs, _, _ = situation(family)
    noise = np.stack([family.noise(np.random.default_rng(k), 1)[0] for k in range(ROWS)])
    whole = family.sample(inputs, noise)
    assert whole.shape == (ROWS, family.num_actions)
    for row in (0, ROWS - 1):
        np.testing.assert_array_equal(family.sample(inputs[row : row + 1], noise[row : row + 1]), whole[row : row + 1])


@pytest.mark.parametrize("family", [Categorical(4, 3), Bernoulli(3), Gaussian(2)], ids=["choices", "bits", "numbers"])
def test_noise_drawn_in_pieces_or_at_once_is_the_same_for_one_environment(family) -> None:
    whole = family.noise(np.random.default_rng(0), 6)
    rng = np.random.default_rng(0)
    assert whole.shape == (6, family.num_noise)
    np.testing.assert_array_equal(np.concatenate([family.noise(rng, 2), family.noise(rng, 4)]), whole)


@families
def test_no_action_is_likelier_than_the_mode(family) -> None:
    inputs, _, _ = situation(family)
    best = family.evaluate(inputs, family.mode(inputs)).log_prob
    rng = np.random.default_rng(8)
    for _ in range(50):
        actions = family.sample(inputs, np.concatenate([family.noise(rng, 1) for _ in range(ROWS)]))
        assert (family.evaluate(inputs, actions).log_prob <= best + 1e-5).all()


def test_certain_choices_have_no_entropy_and_no_nan() -> None:
    logits = np.array([[200, 0, -200]], np.float32)
    family = Categorical(3)
    e = family.evaluate(logits, np.array([[0]]), logits)
    assert e.log_prob[0] == e.entropy[0] == e.kl[0] == 0
    assert np.isfinite(family.gradient(e, 1.0, 1.0, 1.0)).all()
    bits = np.array([[200, -200]], np.float32)
    e = Bernoulli(2).evaluate(bits, np.array([[1, 0]]), bits)
    assert e.log_prob[0] == e.entropy[0] == e.kl[0] == 0


@pytest.mark.parametrize(
    ("space", "factors", "free"),
    [
        (spaces.Discrete(4, start=3), [(Categorical, 4)], []),
        (spaces.MultiDiscrete([3, 3, 3]), [(Categorical, 9)], []),
        (spaces.MultiDiscrete([3, 3, 2]), [(Categorical, 6), (Categorical, 2)], []),
        (spaces.MultiBinary((2, 2)), [(Bernoulli, 4)], []),
        (spaces.Box(-1, 1, (2,)), [(Gaussian, 4)], [2, 3]),
        (spaces.Box(0, 4, (2,), np.int64), [(Categorical, 10)], []),
        (
            spaces.Dict(a=spaces.Box(-1, 1), b=spaces.Discrete(2), c=spaces.Box(-1, 1, (2,))),
            [(Gaussian, 2), (Categorical, 2), (Gaussian, 4)],
            [1, 6, 7],
        ),
    ],
    ids=str,
)
def test_every_action_space_has_its_distribution(space, factors, free) -> None:
    family = distribution_for(ActionSpec(space))
    parts = family.factors if isinstance(family, Product) else [family]
    assert [(type(f), f.num_inputs) for f in parts] == factors
    assert log_std_inputs(family).tolist() == free
    assert family.num_actions == ActionSpec(space).size


def line_of(family, mean, log_std, count=20_001):
    """Numbers before the tanh, far into both tails, and their distribution's evaluation."""
    u = np.linspace(mean - 12 * np.exp(log_std), mean + 12 * np.exp(log_std), count)
    inputs = np.tile(np.array([[mean, log_std]], np.float32), (count, 1))
    return u, family.evaluate(inputs, u[:, None].astype(np.float32))


def integral(y, x):
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum())


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.8, -0.7), (-1.5, -2.0), (0.3, 1.0)])
def test_densities_integrate_to_one_over_what_the_policy_samples(mean, log_std) -> None:
    u, plain = line_of(Gaussian(1), mean, log_std)
    assert integral(np.exp(plain.log_prob.astype(np.float64)), u) == pytest.approx(1, abs=1e-4)
    # The squashed number lies between -1 and 1, and its density there integrates to one and to its entropy.
    u, squashed = line_of(SquashedGaussian(np.array([True])), mean, log_std)
    density = np.exp(squashed.log_prob.astype(np.float64))
    assert integral(density, np.tanh(u)) == pytest.approx(1, abs=2e-3)
    entropy = integral(-density * squashed.log_prob, np.tanh(u))
    assert squashed.entropy[0] == pytest.approx(entropy, abs=1e-2)


def test_a_squashed_number_has_the_density_that_torch_gives_it() -> None:
    family = SquashedGaussian(np.array([True, False]))
    inputs, _, actions = situation(family)
    mean, log_std = double(inputs[:, :2]), double(inputs[:, 2:])
    normal = Normal(mean, log_std.exp())
    u = double(actions)
    wanted = normal.log_prob(u).sum(dim=1) - torch.log(1 - torch.tanh(u[:, 0]) ** 2)
    np.testing.assert_allclose(family.evaluate(inputs, actions).log_prob, wanted, rtol=1e-4, atol=1e-4)
    far = family.evaluate(inputs[:1], np.array([[60, 0]], np.float32))
    assert np.isfinite(far.log_prob).all()


def test_squashing_changes_neither_kl_nor_fisher_nor_the_gradient_of_log_probabilities() -> None:
    family, plain = SquashedGaussian(np.array([True, False])), Gaussian(2)
    inputs, old, actions = situation(family)
    mine, theirs = family.evaluate(inputs, actions, old), plain.evaluate(inputs, actions, old)
    np.testing.assert_array_equal(mine.kl, theirs.kl)
    np.testing.assert_array_equal(family.gradient(mine, 0.7, 0.0, 0.3), plain.gradient(theirs, 0.7, 0.0, 0.3))
    np.testing.assert_array_equal(family.fisher(inputs, old), plain.fisher(inputs, old))
    assert log_std_inputs(family).tolist() == [2, 3]


def test_the_entropy_of_squashed_numbers_has_the_slope_it_says() -> None:
    family = SquashedGaussian(np.array([True, False, True]))
    inputs, _, actions = situation(family)
    weights = np.random.default_rng(3).standard_normal(ROWS).astype(np.float32)
    gradient = family.gradient(family.evaluate(inputs, actions), 0.0, weights, 0.0)
    for column in range(family.num_inputs):
        step = np.zeros_like(inputs)
        step[:, column] = 1e-2
        above, below = (family.evaluate(inputs + sign * step, actions).entropy for sign in (1, -1))
        inside = (np.abs(inputs[:, column]) < 1.9) | (column < 3)
        slope = weights * (above - below) / 2e-2
        np.testing.assert_allclose(gradient[inside, column], slope[inside], atol=2e-3)


@pytest.mark.parametrize("space", [spaces.Box(-2, 6, (3,)), spaces.Box(0, 1000, (2,), np.int64)], ids=str)
def test_squashed_actions_lie_between_their_bounds_and_reach_them(space) -> None:
    spec = ActionSpec(space, squash=True)
    assert isinstance(distribution_for(spec), SquashedGaussian)
    rows = np.linspace(-30, 30, 61, dtype=np.float32)[:, None].repeat(spec.size, axis=1)
    decoded = spec.decode(rows)
    assert all(space.contains(action) for action in decoded)
    assert (decoded[0] == space.low).all()
    assert (decoded[-1] == space.high).all()
    middle = (np.float64(space.low) + np.float64(space.high)) / 2
    np.testing.assert_allclose(decoded[30], middle)
    assert type(distribution_for(ActionSpec(spaces.Box(0, np.inf, (2,)), squash=True))) is Gaussian


@pytest.mark.parametrize(("steps", "num_envs"), [(1, 1), (3, 7), (64, 33)])
def test_the_noise_of_many_environments_is_that_of_each(steps, num_envs):
    distribution = Categorical(3, count=2)
    alone = [distribution.noise(np.random.default_rng(seed), steps) for seed in range(num_envs)]
    rngs = [np.random.default_rng(seed) for seed in range(num_envs)]
    together = distribution.noise_of_all(rngs, steps)
    assert np.stack(alone).tobytes() == together.tobytes()
    after = [np.random.default_rng(seed) for seed in range(num_envs)]
    for rng in after:
        distribution.noise(rng, steps)
    assert [rng.random() for rng in after] == [rng.random() for rng in rngs]
