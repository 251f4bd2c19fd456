"""What every registered task keeps."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssa_jax import tasks
from ssa_jax.tasks import generated
from tests.tasks.rows import batches, compiling_fast, contents, rows

TRAINING = ("weights", "architecture")
drawn = [name for name in tasks.names() if issubclass(tasks.registry.builder(name), tasks.Generated)]
counted = [name for name in tasks.names() if issubclass(tasks.registry.builder(name), tasks.Enumerated)]


fast = pytest.fixture(compiling_fast, autouse=True, scope="module")


def fixed(task):
    return [split for split in task.splits if split not in ("train", *TRAINING)]


def assert_lawful(task, batch, size):
    inputs, targets, mask = (np.asarray(batch[part]) for part in ("inputs", "targets", "mask"))
    assert inputs.shape == targets.shape == mask.shape == (size, inputs.shape[1])
    assert task.answers <= inputs.shape[1] <= task.length
    assert (inputs.dtype, targets.dtype, mask.dtype) == (np.int32, np.int32, bool)
    assert inputs.min() >= 0 and inputs.max() < task.vocab_size
    assert targets.min() >= 0 and targets.max() < task.outputs
    assert mask[:, -1].all()
    assert not mask[:, : mask.shape[1] - task.answers].any()


@pytest.mark.parametrize("name", tasks.names())
def test_batches_have_the_announced_shapes_and_ranges(name):
    task = tasks.get(name)
    widths = {}
    for split in task.splits:
        batch = rows(task, split)
        assert_lawful(task, batch, 1024)
        widths[split] = batch["inputs"].shape[1]
    assert len({widths[split] for split in task.splits if split not in task.shifted}) == 1
    assert max(widths.values()) == task.length


@pytest.mark.parametrize("name", tasks.names())
def test_a_batch_is_a_pure_function_of_key_split_and_size(name):
    task = tasks.get(name)
    first, again, other = (batches(task, "train")(jax.random.key(seed)) for seed in (3, 3, 4))
    for part in ("inputs", "targets", "mask"):
        np.testing.assert_array_equal(first[part], again[part])
    assert not np.array_equal(first["inputs"], other["inputs"])


@pytest.mark.parametrize("name", tasks.names())
def test_a_finite_split_gives_the_same_batch_inside_and_outside_jit(name):
    task, key = tasks.get(name), jax.random.key(3)
    inside = jax.jit(task.batch, static_argnums=(1, 2))(key, "validation", 64)
    jax.tree.map(np.testing.assert_array_equal, inside, task.batch(key, "validation", 64))


@pytest.mark.parametrize("name", tasks.names())
def test_no_example_is_in_two_splits(name):
    task = tasks.get(name)
    pad = getattr(task, "pad", None)
    sets = {split: set(contents(jax.tree.map(np.asarray, task.examples(split)), pad)) for split in fixed(task)}
    for split in TRAINING:
        sets[split] = set(contents(rows(task, split, 8192), pad))
    for one, other in itertools.combinations(sets, 2):
        assert not sets[one] & sets[other], (one, other)
    train = set(contents(rows(task, "train", 8192), pad))
    assert train & sets["weights"] or name in drawn
    for split in fixed(task):
        assert not sets[split] & train


@pytest.mark.parametrize("name", tasks.names())
def test_finite_splits_have_their_size_and_no_duplicate(name):
    task = tasks.get(name)
    for split in fixed(task):
        examples = task.examples(split)
        start, stop = task.ranges[split] if name in counted else (0, getattr(task, f"{split}_size", task.test_size))
        assert_lawful(task, examples, stop - start)
        assert len(set(contents(jax.tree.map(np.asarray, examples)))) == stop - start
        members = set(contents(jax.tree.map(np.asarray, examples)))
        assert set(contents(rows(task, split))) <= members


@pytest.mark.parametrize("name", tasks.names())
def test_every_part_of_a_split_is_drawn_about_as_often(name):
    task = tasks.get(name)
    size = task.examples("validation")["inputs"].shape[0]
    found = contents(rows(task, "validation", 8192))
    frequency = np.unique([hash(row) for row in found], return_counts=True)[1]
    expected = 8192 / size
    assert len(frequency) == size or expected < 20
    assert ((frequency - expected) ** 2 / expected).sum() < size + 6 * (2 * size) ** 0.5


@pytest.mark.parametrize("name", tasks.names())
def test_trivial_predictors_equal_a_direct_count(name):
    task = tasks.get(name)
    test = jax.tree.map(np.asarray, task.examples("test"))
    right = 0
    for position in range(test["inputs"].shape[1]):
        seen = [row[position] for row, mask in zip(test["targets"], test["mask"], strict=True) if mask[position]]
        right += max((seen.count(target) for target in set(seen)), default=0)
    trivial = task.trivial()
    assert trivial["majority"] == pytest.approx(right / test["mask"].sum())
    assert trivial["chance"] == pytest.approx(1 / task.outputs)
    assert trivial["chance"] < trivial["majority"] < 0.6


@pytest.mark.parametrize("name", tasks.names())
def test_an_example_is_shown_in_one_line_that_tells_examples_apart(name):
    task, batch = tasks.get(name), rows(tasks.get(name), "train")
    lines = [task.show(jax.tree.map(lambda part, i=i: part[i], batch)) for i in range(64)]
    assert all("\n" not in line and line.count(" -> ") == 1 for line in lines)
    assert len(set(lines)) == len(set(contents(jax.tree.map(lambda part: part[:64], batch))))


@pytest.mark.parametrize("name", tasks.names())
def test_tasks_are_values(name):
    task = tasks.get(name)
    assert task == tasks.get(name) and hash(task) == hash(tasks.get(name))
    assert task != tasks.get(name, seed=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.seed = 2


@pytest.mark.parametrize("name", tasks.names())
def test_another_seed_makes_another_test_set(name):
    one, other = tasks.get(name), tasks.get(name, seed=7)
    if name in counted:
        test, members = (set(task.order[slice(*task.ranges["test"])].tolist()) for task in (one, other))
        assert len(test & members) < 0.5 * len(test)
    else:
        examples = one.examples("test")["inputs"]
        assert one._belongs(one._fingerprint(examples), "test").all()
        assert other._belongs(other._fingerprint(examples), "test").mean() < 0.2


@pytest.mark.parametrize("name", tasks.names())
def test_unknown_options_and_splits_are_refused(name):
    with pytest.raises(ValueError, match=r"'sed'.*Did you mean 'seed'"):
        tasks.get(name, sed=1)
    for call in (lambda: tasks.get(name).examples("tset"), lambda: tasks.get(name).batch(jax.random.key(0), "tset", 2)):
        with pytest.raises(ValueError, match=r"'tset'.*Did you mean 'test'.*validation"):
            call()


def test_an_unknown_task_is_refused():
    with pytest.raises(ValueError, match="Did you mean 'parity'"):
        tasks.get("party")


fraction = st.floats(0.1, 0.6)


@pytest.mark.parametrize("name", counted)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), train=fraction, validation=fraction, test=fraction, held_out=st.floats(0.1, 0.9))
def test_counted_splits_are_ranges_of_a_permutation(name, seed, train, validation, test, held_out):
    options = dict(seed=seed, validation_fraction=validation, test_fraction=test, held_out_fraction=held_out)
    if train + validation + test > 1:
        with pytest.raises(ValueError, match="exceeds 1"):
            tasks.get(name, train_fraction=train, **options)
        return
    task = tasks.get(name, train_fraction=train, **options)
    assert sorted(task.order) == list(range(task.count))
    part = {split: set(task.order[slice(*bounds)].tolist()) for split, bounds in task.ranges.items()}
    assert part["weights"] | part["architecture"] == part["train"]
    assert len(part["architecture"]) == pytest.approx(held_out * train * task.count, abs=1)
    for one, other in itertools.combinations(("weights", "architecture", "validation", "test"), 2):
        assert not part[one] & part[other]
    for split, share in (("train", train), ("validation", validation), ("test", test)):
        assert len(part[split]) == pytest.approx(share * task.count, abs=1)
    smaller = tasks.get(name, train_fraction=train / 2, **options)
    for split in ("validation", "test"):
        assert set(smaller.order[slice(*smaller.ranges[split])].tolist()) == part[split]
    for split in ("train", "weights"):
        assert set(smaller.order[slice(*smaller.ranges[split])].tolist()) < part[split]


@pytest.mark.parametrize("name", counted)
@pytest.mark.parametrize("field", ["train_fraction", "validation_fraction", "test_fraction", "held_out_fraction"])
def test_an_empty_split_is_refused(name, field):
    with pytest.raises(ValueError, match="empty"):
        tasks.get(name, **{field: 0.0})


@pytest.mark.parametrize("name", drawn)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), held_out=st.floats(0.05, 0.95))
def test_a_content_belongs_to_exactly_one_split(name, seed, held_out):
    inputs = rows(tasks.get(name), "train")["inputs"]
    task = tasks.get(name, seed=seed, held_out_fraction=held_out)
    hashed = np.asarray(task._fingerprint(inputs))
    parts = {split: np.asarray(task._belongs(hashed, split)) for split in task.splits}
    of = sum(parts[split].astype(int) for split in task.splits if split != "train")
    assert (of == 1).all()
    assert (parts["train"] == (parts["weights"] | parts["architecture"])).all()


@pytest.mark.parametrize("name", drawn)
def test_padding_does_not_move_an_example_to_another_split(name):
    task, inputs = tasks.get(name), rows(tasks.get(name), "train")["inputs"]
    wider = np.pad(inputs, ((0, 0), (5, 0)), constant_values=task.pad)
    np.testing.assert_array_equal(task._fingerprint(inputs), task._fingerprint(wider))


@pytest.mark.parametrize("name", drawn)
def test_the_splits_have_the_announced_shares_of_what_is_drawn(name):
    task = tasks.get(name)
    stream = generated._stream(dataclasses.replace(task, validation_size=1, test_size=1), "train")
    draws = [stream(jax.random.key(seed)) for seed in range(4)]
    inputs, hashed = (np.concatenate(part) for part in zip(*((rows["inputs"], h) for rows, h in draws), strict=True))
    hashed = hashed[np.unique(inputs, axis=0, return_index=True)[1]]
    left = 1 - len(fixed(task)) / 16
    shares = dict.fromkeys(fixed(task), 1 / 16) | {"architecture": 0.2 * left, "weights": 0.8 * left, "train": left}
    for split, share in shares.items():
        found = task._belongs(hashed, split).mean()
        assert abs(found - share) < 5 * (share * (1 - share) / len(hashed)) ** 0.5, split


@pytest.mark.parametrize("name", drawn)
def test_a_finite_train_set_is_nested_and_held_out(name):
    large, small = (tasks.get(name, train_size=size, validation_size=50, test_size=50) for size in (200, 100))
    parts = {}
    for task in (large, small):
        for split in task.splits[:5]:
            parts[task.train_size, split] = set(contents(jax.tree.map(np.asarray, task.examples(split)), task.pad))
    assert [len(parts[200, split]) for split in ("train", "weights", "architecture")] == [200, 160, 40]
    for split in ("train", "weights", "architecture"):
        assert parts[100, split] < parts[200, split]
    assert parts[200, "weights"] < parts[200, "train"]
    if large.levels("architecture") == large.levels("train"):
        assert parts[200, "weights"] | parts[200, "architecture"] == parts[200, "train"]
    for one, other in itertools.combinations(("weights", "architecture", "validation", "test"), 2):
        assert not parts[200, one] & parts[200, other]
    assert not parts[200, "train"] & (parts[200, "validation"] | parts[200, "test"])
    batch = jax.tree.map(np.asarray, small.batch(jax.random.key(0), "train", 1024))
    assert set(contents(batch, small.pad)) == parts[100, "train"]
    with pytest.raises(ValueError, match="difficulty"):
        small.batch(jax.random.key(0), "train", 2, difficulty=1)


@pytest.mark.parametrize("name", drawn)
def test_an_endless_split_has_no_list_and_bad_sizes_are_refused(name):
    with pytest.raises(ValueError, match="train_size"):
        tasks.get(name).examples("train")
    for options in (
        dict(held_out_fraction=0.0),
        dict(test_size=0),
        dict(train_size=2),
        dict(train_size=-1),
        dict(mixture=(1.0,) * 99),
        dict(mixture=(-1.0,) * len(tasks.get(name).levels("train"))),
    ):
        with pytest.raises(ValueError, match="|".join(options)):
            tasks.get(name, **options)
