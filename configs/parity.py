"""Parity of 10 bits: a 1-layer Transformer that GELU cannot teach and a learned spline can.

python -m ssa_jax.main --config=configs/parity.py --workdir=runs/parity

2 CPU cores: about 5 minutes. Expect, over 16 fresh seeds (32 for two searches), test accuracy: learned .96 [.91, 1.0]
with median .997 and a median of 250 steps to 99 %; gelu .41 [.39, .42] and relu .54 [.40, .68], which do not get there.
"""

import ml_collections

from configs import default


def get_config() -> ml_collections.ConfigDict:
    config = default.get_config()
    # settings were found on split 0 and searches 0 to 2; what is reported is on a fresh split and fresh seeds
    config.task = dict(name="parity", seed=1, bits=10, train_fraction=0.6, validation_fraction=0.1, test_fraction=0.3)
    config.model = default.transformer(hidden=64, norm="rmsnorm")
    config.functions.mlp = default.spline(low=-5.0, high=5.0, init="constant")
    config.functions.smoothness = 1e-3
    config.stage1.update(dict(seeds=(10, 11), replicas=8, steps=2400, restart_every=800))
    config.stage2.update(dict(replicas=16, first_seed=200_000, steps=1000, learning_rates=(3e-4, 1e-3, 3e-3, 1e-2)))
    config.checkpoint_every = 200
    return config
