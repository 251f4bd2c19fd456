import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssa_jax import tasks
from ssa_jax.tasks.generated import Drawn, _place, below, fingerprint, uniform
from tests.tasks.rows import batches, rows


def test_an_endless_split_gives_the_same_batch_inside_and_outside_jit():
    task, key = tasks.get("copy"), jax.random.key(3)
    jax.tree.map(np.testing.assert_array_equal, batches(task, "train")(key), task.batch(key, "train", 1024))


@pytest.mark.parametrize("name", ["addition", "sort"])
def test_difficulty_caps_the_level_without_a_new_program(name):
    task = tasks.get(name, **({"mixed": True, "mixture": (0, 1, 1)} if name == "addition" else {}))
    levels = task.levels("train")[name == "addition" :]
    batch = jax.jit(lambda key, difficulty: task.batch(key, "train", 64, difficulty))
    tokens = lambda difficulty: (np.asarray(batch(jax.random.key(0), difficulty)["inputs"]) != task.pad).sum(-1).max()
    assert tokens(levels[0]) == tokens(0) == sum(task.sizes(levels[0])) - 1
    assert tokens(levels[-1]) == tokens(99) == sum(task.sizes(levels[-1])) - 1
    assert batch._cache_size() == 1


def test_the_highest_difficulty_changes_nothing():
    task, key = tasks.get("sort"), jax.random.key(5)
    capped = jax.jit(lambda key: task.batch(key, "train", 1024, 10))(key)
    jax.tree.map(np.testing.assert_array_equal, capped, batches(task, "train")(key))


def test_a_vmapped_batch_holds_each_keys_own_batch():
    task, keys = tasks.get("reverse"), jax.random.split(jax.random.key(1), 3)
    together = jax.jit(jax.vmap(lambda key: task.batch(key, "weights", 1024)))(keys)
    for i in range(3):
        alone = batches(task, "weights")(keys[i])
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda part, i=i: part[i], together), alone)


def test_too_few_candidates_are_repeated_and_none_leave_the_mask_empty():
    seen = {}
    for seed in range(8):
        task = tasks.get("reverse", symbols=2, shortest=1, longest=1, longer=2, seed=seed)
        fits = task._belongs(task._fingerprint(jnp.array([[0, 2, 0], [1, 2, 1]])), "architecture")
        seen.setdefault(int(fits.sum()), (task, int(fits.argmax())))
    task, only = seen[1]
    assert (np.asarray(batches(task, "architecture")(jax.random.key(0))["inputs"]) == [only, 2, only]).all()
    task, _ = seen[0]
    assert not batches(task, "architecture")(jax.random.key(0))["mask"].any()


@pytest.mark.parametrize("asked, answered", [(3, 2), (1, 1), (2, 4)])
def test_question_and_answer_are_laid_out_before_their_targets(asked, answered):
    question, answer = jnp.arange(10, 15), jnp.arange(20, 25)
    row = _place(Drawn(question, jnp.int32(asked), answer, jnp.int32(answered)), width=8, pad=99)
    whole = [*range(10, 10 + asked), *range(20, 20 + answered)]
    inputs = [99] * (9 - len(whole)) + whole[:-1]
    assert row["inputs"].tolist() == inputs
    assert row["mask"].tolist() == [False] * (8 - answered) + [True] * answered
    assert row["targets"].tolist() == [0] * (8 - answered) + whole[-answered:]


def test_hashes_differ_for_any_change_of_one_token():
    rows = np.tile(np.array([3, 1, 4, 1, 5, 9]), (61, 1))
    for i in range(60):
        rows[i + 1, i // 10] = i % 10
    distinct = len(np.unique(rows, axis=0))
    hashed = np.asarray(fingerprint(jnp.asarray(rows), jnp.ones(rows.shape, bool), 10, 0))
    assert len(set(hashed.tolist())) == distinct == 55


def test_words_become_integers_and_fractions():
    words = jnp.array([0, 9, 10, 2**32 - 1], jnp.uint32)
    assert below(words, 10).tolist() == [0, 9, 0, 5]
    assert uniform(words)[0] == 0 and float(uniform(words)[-1]) == 1 - 2**-24


def test_the_held_out_share_is_what_was_asked_for():
    task = tasks.get("copy", architecture_longest=10, held_out_fraction=0.4)
    inputs = jnp.asarray(rows(task, "train", 4096)["inputs"])
    assert task._belongs(task._fingerprint(inputs), "architecture").mean() == pytest.approx(0.4, abs=0.05)
